"""Braces in a string that stand for several: train-{0000..0099}.tar, {a,b}.tar."""

import itertools
import re
from pathlib import Path

import numpy as np

from sslbench.errors import UsageError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_SHARDS = 100_000


def expanded(spec: str) -> list[str]:
    """The strings that one with braces stands for, in order; a file that exists stands for itself.

    Raises:
        UsageError: a range cannot be read, or they are more than 100,000.
    """
    if Path(spec).exists() or not _BRACES.search(spec):
        return [spec]
    parts = _BRACES.split(spec)  # text, braces, text, braces, ..., text
    choices = [_choices(spec, part) if i % 2 else [part] for i, part in enumerate(parts)]
    count = int(np.prod([len(choice) for choice in choices], dtype=np.float64))
    if count > _MAX_SHARDS:
        raise UsageError(f"{spec} stands for {count:,} files, the limit is {_MAX_SHARDS:,}")
    return ["".join(combination) for combination in itertools.product(*choices)]


def _choices(spec: str, inside: str) -> list[str]:
    if match := _RANGE.fullmatch(inside):
        first, last = match.groups()
        if int(first) > int(last) or int(last) - int(first) >= _MAX_SHARDS:
            raise UsageError(f"'{{{inside}}}' in {spec} is no range from small to large")
        return [f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)]
    if ".." in inside or not inside:
        raise UsageError(f"'{{{inside}}}' in {spec} is no range", "Write {0000..0099}, or {a,b,c}.")
    return inside.split(",")
