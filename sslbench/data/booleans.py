"""Booleans of manifests: 0, 1, true and false, as values or as text, and nothing else."""

from collections.abc import Mapping
from typing import Any

from sslbench.errors import DataError

TEXTS = {"0": False, "1": True, "false": False, "true": True}


def boolean(value: object, where: str, key: str) -> bool:
    """Return a boolean of a manifest; false where there is none.

    Python takes every text for true, also "0" and "false", by which a whole data set would lose its objects.

    >>> boolean(1, "a.json, annotation 3", "iscrowd"), boolean("0", "a.json, annotation 3", "iscrowd")
    (True, False)
    """
    if value is None:
        return False
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    found = TEXTS.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise DataError(f"{where}: {key} is {value!r:.60}", "It should be 0, 1, true or false.")
    return found


def marks(spec: str, annotation: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether an annotation of a COCO or kwcoco manifest is a crowd, and whether it is not to be counted."""
    values = annotation.get("iscrowd"), annotation.get("ignore"), annotation.get("difficult")
    if values[0] in _USUAL and values[1] in _USUAL and values[2] in _USUAL:  # a manifest has millions of them
        return bool(values[0]), bool(values[1] or values[2])
    where = f"{spec}, annotation {annotation['id']}"
    crowd, ignored, difficult = (
        boolean(value, where, key) for value, key in zip(values, ("iscrowd", "ignore", "difficult"), strict=True)
    )
    return crowd, ignored or difficult


_USUAL = (None, 0, 1)


FLAGS = {text: int(flag) for text, flag in TEXTS.items()} | {"-1": -1, "0.0": 0, "1.0": 1, "-1.0": -1}
"""Cells of a column of one class, in lower case -> 1 present, 0 absent, -1 ignore."""
