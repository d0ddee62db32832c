"""Formatting of numbers, lists and file names in messages."""

import functools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from sslbench.errors import DataError

T = TypeVar("T")


def counted(n: int, thing: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "image"), counted(2, "class"), counted(1000, "category")
    ('1 image', '2 classes', '1,000 categories')
    """
    if n == 1:
        return f"1 {thing}"
    plural = f"{thing}es" if thing.endswith(("s", "x")) else f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{n:,} {plural}"


def some(names: Sequence[object], n: int = 3, *, total: int | None = None) -> str:
    """Return the first `n` of many names, and the number of others; `total` counts all where only the first are given.

    >>> some(["ant", "bee", "cat", "dog"], 2)
    'ant, bee and 2 more'
    """
    listed, total = ", ".join(str(name) for name in names[:n]), len(names) if total is None else total
    return listed if total <= n else f"{listed} and {total - n:,} more"


def one_line(error: object, most: int = 200) -> str:
    """Return the text of an error without line breaks, cut to some characters; of one without text its name."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def repeated(values: Iterable[T]) -> list[T]:
    """Return the values that occur more than once, in the order of their texts.

    >>> repeated(["dog", "ant", "dog"])
    ['dog']
    """
    return sorted((value for value, times in Counter(values).items() if times > 1), key=str)


def refuse_problems(name: str, things: str, total: int, problems: Mapping[str, Sequence[object]], remedy: str) -> None:
    """Raise if something has one of the problems, with the number of things that have it and some of them."""
    lines = [
        f"  {len(having):,} of {total:,} {things} {problem}: {some(having, 5)}"
        for problem, having in problems.items()
        if having
    ]
    if lines:
        raise DataError("\n".join([f"{name}:", *lines]), remedy)


def part_name(spec: str, split: str) -> str:
    """Return the name of a split of a location; a location without splits is called as it is.

    >>> part_name("photos/", "test"), part_name("photos/", "all")
    ('photos/ (test)', 'photos/')
    """
    return spec if split == "all" else f"{spec} ({split})"


def in_python(path: Path) -> str:
    """Return the Python that reads train and test from one file of NumPy, as Keras distributes its data sets."""
    return (
        f"In Python: sslbench.evaluate(MODEL, numpy.load('{path}')) takes x_train, y_train, x_test and y_test; the "
        "model of features is None."
    )


_log = logging.getLogger("sslbench")


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning unless this process has logged the same one before."""
    _log.warning(message)
