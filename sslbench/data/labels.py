"""Conversion of the text in folders, tables and manifests to `Labels`."""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from sslbench.data.source import Labels
from sslbench.labels import LABELS

SEPARATORS = (";", "|")
"""Separators of several labels in one cell of a table."""


def no_labels(n: int) -> Labels:
    """Return the labels of N unlabelled samples."""
    return Labels("none", (), np.zeros((n, 0), dtype=LABELS["none"].dtype))


def single_labels(names: Sequence[str], classes: Sequence[str] | None = None) -> Labels:
    """Return labels with one class per sample.

    Args:
        names: the class name of each sample.
        classes: the classes in the source's own order; by default those that occur, sorted by name.

    >>> labels = single_labels(["dog", "cat", "dog"])
    >>> labels.classes, labels.values
    (('cat', 'dog'), array([1, 0, 1]))
    """
    ordered = tuple(sorted(set(names)) if classes is None else classes)
    number = {name: i for i, name in enumerate(ordered)}
    return Labels(
        "single", ordered, np.fromiter((number[name] for name in names), dtype=LABELS["single"].dtype, count=len(names))
    )


def multi_labels(
    present: Sequence[Collection[str]],
    ignored: Sequence[Collection[str]] | None = None,
    classes: Sequence[str] | None = None,
) -> Labels:
    """Return labels with any number of classes per sample.

    Args:
        present: the names of the classes each sample has.
        ignored: the names of the classes that are not to be scored for it; a class that is also present is present.
        classes: the classes in the source's own order; by default those that occur, sorted by name.
    """
    hidden = ignored if ignored is not None else [()] * len(present)
    ordered = tuple(sorted({c for row in (*present, *hidden) for c in row}) if classes is None else classes)
    number = {name: i for i, name in enumerate(ordered)}
    values: npt.NDArray[np.int8] = np.zeros((len(present), len(ordered)), dtype=np.int8)
    for row, (names, ignore) in enumerate(zip(present, hidden, strict=True)):
        values[row, [number[name] for name in ignore]] = -1
        values[row, [number[name] for name in names]] = 1
    return Labels("multi", ordered, values)


def among_classes(values: npt.NDArray[np.int8], columns: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.int8]:
    """Return multi-label values over the classes of several sources.

    A class that a source lists and a sample has not is absent (0). A class that the source does not list is ignored
    (-1): nobody may have looked for it in these images, so that they are no examples of its absence. A manifest lists
    its categories, a table of labels the classes that occur in it.

    Args:
        values: (N, c) of a source: 1 present, 0 absent, -1 ignore.
        columns: (c,), the places of its classes among all.
        classes: number of all classes, C.

    >>> among_classes(np.array([[1, 0]], dtype=np.int8), np.array([2, 0]), 3)
    array([[ 0, -1,  1]], dtype=int8)
    """
    spread: npt.NDArray[np.int8] = np.full((len(values), classes), -1, dtype=np.int8)
    spread[:, columns] = values
    return spread


def has_separator(cell: str) -> bool:
    """Return whether a cell holds several labels."""
    return any(separator in cell for separator in SEPARATORS)


def split_cell(cell: str) -> tuple[list[str], list[str]]:
    """Split a cell of a table into present and ignored labels ('?name', as `Labels.text` writes)."""
    for separator in SEPARATORS[1:]:
        cell = cell.replace(separator, SEPARATORS[0])
    names = [name for part in cell.split(SEPARATORS[0]) if (name := part.strip())]
    ignored = [name[1:] for name in names if name.startswith("?") and len(name) > 1]
    return [name for name in names if not (name.startswith("?") and len(name) > 1)], ignored


def present_classes(labels: Labels) -> npt.NDArray[np.bool_]:
    """Return a mask of the classes with at least one sample, (C,)."""
    return class_counts(labels) > 0


def class_counts(labels: Labels) -> npt.NDArray[np.int64]:
    """Return the number of samples of each class, (C,)."""
    if labels.kind == "single":
        return np.bincount(labels.values, minlength=len(labels.classes)).astype(np.int64)
    return np.asarray((labels.values == 1).sum(axis=0), dtype=np.int64)
