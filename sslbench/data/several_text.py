"""Several sources in one string: several:coco=instances.json,o365@2=photos/ (name, weight behind an '@', location)."""

import re
from collections.abc import Callable

from sslbench.errors import UsageError

SCHEME = "several:"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""What a source may be called: its name stands in front of ids, before a '/'."""
NAME_RULE = "Letters, digits, '-', '_' and '.', with a letter or digit in front."
# A comma separates only where a name and '=' follow, since locations may have commas of their own: {a,b}.tar.
_SEPARATOR = re.compile(r",(?=[^,={}?&]*=)")
_PART = re.compile(r"(?P<name>[^=@]*)(?:@(?P<weight>[^=]*))?=(?P<data>.*)", re.DOTALL)


def is_several(spec: str) -> bool:
    """Whether the string is such a list, right or wrong."""
    return spec.startswith(SCHEME)


def parse(spec: str) -> list[tuple[str, str | None, str]]:
    """(name, weight as it is written or None, location) of each source.

    Raises:
        UsageError: the string is none, or a name or location is missing.
    """
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


def with_locations(spec: str, change: Callable[[str], str]) -> str:
    """The same list with every location changed.

    Raises:
        UsageError: as for `parse`.
    """
    parts = (f"{name}{'' if weight is None else f'@{weight}'}={change(data)}" for name, weight, data in parse(spec))
    return SCHEME + ",".join(parts)
