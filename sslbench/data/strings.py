"""Data locations for several files or sources: braces (train-{0000..0099}.tar, {a,b}.tar) and `several:` lists."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sslbench.errors import UsageError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_SHARDS = 100_000


def expanded(spec: str) -> list[str]:
    """Expand braces, in order; an existing file stands for itself.

    >>> expanded("train-{08..10}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar']
    """
    if Path(spec).exists() or not _BRACES.search(spec):
        return [spec]
    parts = _BRACES.split(spec)  # text, braces, text, braces, ..., text
    choices = [_choices(spec, part) if i % 2 else [part] for i, part in enumerate(parts)]
    # As a float: the product of many braces would overflow 64 bits.
    count = int(np.prod([len(choice) for choice in choices], dtype=np.float64))
    if count > _MAX_SHARDS:
        raise UsageError(f"{spec} stands for {count:,} files, the limit is {_MAX_SHARDS:,}")
    return ["".join(combination) for combination in itertools.product(*choices)]


def _choices(spec: str, inside: str) -> list[str]:
    if match := _RANGE.fullmatch(inside):
        first, last = match.groups()
        if int(first) > int(last) or int(last) - int(first) >= _MAX_SHARDS:
            raise UsageError(f"'{{{inside}}}' in {spec} is not an ascending range")
        return [f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)]
    if ".." in inside or not inside:
        raise UsageError(f"'{{{inside}}}' in {spec} is not a range", "Write {0000..0099}, or {a,b,c}.")
    return inside.split(",")


SCHEME = "several:"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""Valid name of a member of a list; it stands in front of ids, before a '/'."""
NAME_RULE = "Letters, digits, '-', '_' and '.', with a letter or digit in front."
# A comma separates only before NAME=, since locations may contain commas: {a,b}.tar.
_SEPARATOR = re.compile(r",(?=[^,={}?&]*=)")
_LABELS = re.compile(r"(?:(?<=\?labels=)|(?<=&labels=))[^&?]+")
_PART = re.compile(r"(?P<name>[^=@]*)(?:@(?P<weight>[^=]*))?=(?P<data>.*)", re.DOTALL)


def is_several(spec: str) -> bool:
    """Return whether the string is meant as a list of several sources."""
    return spec.startswith(SCHEME)


def parse(spec: str) -> list[tuple[str, str | None, str]]:
    """Split a list into (name, weight as text or None, location) of each source."""
    found = []
    for part in _SEPARATOR.split(spec.removeprefix(SCHEME)):
        match = _PART.fullmatch(part)
        if match is None or not match["data"]:
            raise UsageError(
                f"{spec}: '{part}' should be NAME=LOCATION or NAME@WEIGHT=LOCATION",
                f"Such as {SCHEME}coco=instances.json,o365@2=photos/ (or list the sources in a YAML file).",
            )
        found.append((match["name"], match["weight"], match["data"]))
    return found


def with_labels_at(spec: str, change: Callable[[str], str]) -> str:
    """Apply `change` to the place of the labels behind a '?'.

    >>> with_labels_at("photos/?labels=a.csv&channels=1", str.upper)
    'photos/?labels=A.CSV&channels=1'
    """
    return _LABELS.sub(lambda match: change(match[0]), spec)


def with_locations(spec: str, change: Callable[[str], str]) -> str:
    """Apply `change` to every location of a list."""
    parts = (f"{name}{'' if weight is None else f'@{weight}'}={change(data)}" for name, weight, data in parse(spec))
    return SCHEME + ",".join(parts)
