"""Lists of class names for data sets whose labels are numbers."""

from collections.abc import Sequence
from pathlib import Path

from sslbench.data.containers.text import read_text
from sslbench.errors import DataError


def class_names(file: Path, highest: int) -> tuple[str, ...]:
    """Return the names in a text file, one line per class, from class 0 on.

    Args:
        file: text file.
        highest: largest class number in the data.

    Raises:
        DataError: the file cannot be read, has too few lines, or a name is empty or repeated.
    """
    lines = [line.strip() for line in read_text(file)[0].splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) <= highest:
        raise DataError(f"{file} names {len(lines)} classes, but there is a class number {highest}")
    if "" in lines or len(set(lines)) < len(lines):
        raise DataError(f"{file}: a line is empty or occurs twice", "It should name each class once, in order.")
    return tuple(lines)


def list_beside(folder: Path) -> Path | None:
    """Return the file of class names in a folder; None without one."""
    names = ("classnames.txt", "classes.txt")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def in_order(names: Sequence[str], used: Sequence[str]) -> list[str]:
    """Return the names that occur in `used`, in the order of `names`."""
    there = set(used)
    return [name for name in names if name in there]
