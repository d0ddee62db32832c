"""Conversion of the text in folders, tables and manifests to targets."""

import unicodedata
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.errors import DataError
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target
from sslbench.targets.times import Times

SEPARATORS = (";", "|")
"""Separators of several labels in one cell of a table."""


NONE_OF_THE_CLASSES = (
    "An empty label is a missing one: fill it in or leave the sample out. A sample with none of the classes has only 0 "
    "in columns of 0 and 1, one per class, or an empty list in Python."
)
"""Remedy for empty labels: the rule for samples of several labels that have none."""

NO_LABEL_COLUMN = "no label column was recognised among:"
"""Words of the note of a table without labels, which refusals repeat."""
NO_CLASS_FOLDERS = "no class folders, so its images have no labels"
"""Words of the note of images that lie in no class folders."""
DECIMALS = "holds numbers such as"
"""Words of the note of a column of classes that are numbers with decimals, which refusals repeat."""
NUMBERED_FOLDERS = "the class folders are numbers"
"""Words of the note of folders named by numbers, which is wrong where these number the classes of train."""


def single_labels(names: Sequence[str], classes: Sequence[str] | None = None) -> Classes:
    """Return labels with one class per sample.

    Accents as characters of their own (NFD, macOS) make no other class. Classes that are not given are sorted by name.

    >>> labels = single_labels(["dog", "cat", "dog"])
    >>> labels.classes, labels.values
    (('cat', 'dog'), array([1, 0, 1]))
    """
    composed = {name: unicodedata.normalize("NFC", name) for name in {*names, *(classes or ())}}
    ordered = tuple(
        sorted({composed[n] for n in names}) if classes is None else dict.fromkeys(composed[n] for n in classes)
    )
    number = {name: i for i, name in enumerate(ordered)}
    of_name = {name: number[text] for name, text in composed.items()}
    return Classes(ordered, np.fromiter((of_name[name] for name in names), dtype=np.int64, count=len(names)))


def decimals_note(name: str, column: str, classes: Sequence[str]) -> tuple[str, ...]:
    """Return a note on classes that are all numbers, some of them not whole; () for others.

    >>> decimals_note("trees.csv", "height", ["2.5", "3"])[0].partition(";")[0]
    "trees.csv: 'height' holds numbers such as 2.5, taken as 2 classes"
    >>> decimals_note("trees.csv", "kind", ["2.5", "oak"])
    ()
    """
    try:
        first = next((text for text in classes if not float(text).is_integer()), None)
        numbers = np.isfinite([float(text) for text in classes]).all()
    except (ValueError, OverflowError):
        return ()
    if first is None or not numbers:
        return ()
    return (
        f"{name}: '{column}' {DECIMALS} {first}, taken as {len(classes):,} classes; to predict the numbers, give "
        f"--value-col '{column}'",
    )


def times_of(values: npt.NDArray[np.float64], time: str, event: str, rows: Sequence[str], name: str) -> Times:
    """Return the columns of times and events as a target.

    `values`: (N, 2); `time`, `event`: names of the columns; `rows`: name of each row, for messages.

    >>> times_of(np.array([[3.5, 1], [12, 0]]), "months", "dead", ["a", "b"], "t.csv").text(1)
    '12+'
    """
    for column, wrong, wanted in (
        (time, values[:, 0] < 0, "a time is 0 or later"),
        (event, ~np.isin(values[:, 1], (0, 1)), "1 is an event, and 0 a time at which the observation ended without"),
    ):
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            found = f"{values[first, int(column == event)]:g} in {rows[first]}"
            raise DataError(f"{name}: the column '{column}' has {found}, and {wanted}", "Correct or remove these rows.")
    return Times((time, event), values)


def multi_labels(
    present: Sequence[Collection[str]],
    ignored: Sequence[Collection[str]] | None = None,
    classes: Sequence[str] | None = None,
) -> MultiLabel:
    """Return labels with any number of classes per sample.

    A class that is both present and ignored is present. Classes that are not given are sorted by name.
    """
    hidden = ignored if ignored is not None else [()] * len(present)
    composed = {
        c: unicodedata.normalize("NFC", c) for c in {*(classes or ()), *(c for r in (*present, *hidden) for c in r)}
    }
    ordered = tuple(sorted(set(composed.values())) if classes is None else dict.fromkeys(composed[c] for c in classes))
    number = {name: i for i, name in enumerate(ordered)}
    values: npt.NDArray[np.int8] = np.zeros((len(present), len(ordered)), dtype=np.int8)
    for row, (names, ignore) in enumerate(zip(present, hidden, strict=True)):
        values[row, [number[composed[name]] for name in ignore]] = -1
        # After the ignored ones: a class that is both is present.
        values[row, [number[composed[name]] for name in names]] = 1
    return MultiLabel(ordered, values)


def labels_of(values: Any, n: int, *, classes: Sequence[str] = (), name: str = "labels") -> Target:
    """Return labels in memory as those of a data set.

    Args:
        values: N class names or numbers ('cat;dog' has several); N lists of them, an empty one for a sample with none
            of the classes; an array (N, C) of 0, 1 and -1 (ignore), a column per class; floats (N,) or (N, C) that are
            not all whole, to predict; None: unlabelled.
        n: number of samples.
        classes: names of the class numbers; by default the numbers themselves. Those without a sample are left out of
            labels with one class per sample.
        name: of the data, for messages.

    >>> labels_of([2, 0, 2], 3).classes, labels_of([2, 0, 2], 3, classes=["cat", "dog", "owl"]).classes
    (('0', '2'), ('cat', 'owl'))
    >>> labels_of([[0, 1], [1, 1]], 2).name, labels_of([0.5, 1.0], 2).name
    ('multi', 'value')
    """
    if values is None:
        return Unlabelled(n)
    # Texts, mappings, sets and single labels have another order or number than the samples.
    if isinstance(values, str | bytes | Mapping | Set) or not hasattr(values, "__iter__"):
        raise DataError(
            f"{name}: the labels are of the type {type(values).__name__}",
            "Give one label per sample, in a list or an array.",
        )
    if getattr(values, "ndim", 1) > 2:
        raise DataError(f"{name}: labels should be an array (N,) or (N, C), not {tuple(values.shape)}")
    rows = values.tolist() if hasattr(values, "tolist") else [v.tolist() if hasattr(v, "tolist") else v for v in values]
    if len(rows) != n:
        raise DataError(f"{name}: {n:,} samples and {len(rows):,} labels")
    if rows and all(isinstance(row, list | tuple | set | frozenset) for row in rows):
        found = _of_lists([list(row) for row in rows], classes, name)
        if isinstance(found, MultiLabel) and hasattr(values, "ndim") and len(found.classes) != values.shape[1]:
            raise DataError(f"{name}: an array {tuple(values.shape)} of labels should hold 0, 1 and -1 (ignore)")
        return found
    if rows and all(type(row) is float for row in rows):
        if not np.isfinite(rows).all():
            raise DataError(f"{name}: {int((~np.isfinite(rows)).sum()):,} labels are no finite number")
        if not all(row.is_integer() for row in rows):
            return Numbers(("value",), np.array(rows, dtype=np.float64)[:, None])
    texts = [_class_name(row, classes, name) for row in rows]
    used = set(texts)
    return single_labels(texts, [c for c in classes if c in used]) if classes else labels_of_cells(texts)


def _of_lists(rows: list[list[Any]], classes: Sequence[str], name: str) -> Target:
    """Return the labels of rows of equal length of flags or numbers, or of rows of names."""
    widths = {len(row) for row in rows}
    numeric = all(isinstance(cell, int | float) for row in rows for cell in row)
    if widths == {1}:
        return labels_of([row[0] for row in rows], len(rows), classes=classes, name=name)
    if numeric and len(widths) == 1 and {cell for row in rows for cell in row} <= {-1, 0, 1}:
        names = tuple(classes) if len(classes) in widths else tuple(map(str, range(len(rows[0]))))
        return MultiLabel(names, np.array(rows, dtype=np.int8))
    if numeric and len(widths) == 1 and any(isinstance(cell, float) for row in rows for cell in row):
        if not np.isfinite(rows).all():
            raise DataError(f"{name}: a number to predict is not finite")
        return Numbers(tuple(f"value{i}" for i in range(len(rows[0]))), np.array(rows, dtype=np.float64))
    return multi_labels([[_class_name(cell, classes, name) for cell in row] for row in rows], classes=classes or None)


def _class_name(value: Any, classes: Sequence[str], name: str) -> str:
    """Return the name of a class; a number is that of `classes`, or its own."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, int) and classes:
        if not 0 <= value < len(classes):
            raise DataError(f"{name}: there is a label {value}, but {len(classes)} classes")
        return classes[value]
    if not isinstance(value, int | str) or not str(value).strip():
        remedy = (
            NONE_OF_THE_CLASSES if isinstance(value, str) else "Every sample needs a class: a name or a whole number."
        )
        raise DataError(f"{name}: a label is {value!r:.40}", remedy)
    return str(value).strip()


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


def split_cell(cell: str) -> tuple[list[str], list[str]]:
    """Split a cell of a table into present and ignored labels ('?name', as `MultiLabel.text` writes)."""
    for separator in SEPARATORS[1:]:
        cell = cell.replace(separator, SEPARATORS[0])
    names = [name for part in cell.split(SEPARATORS[0]) if (name := part.strip())]
    ignored = [name[1:] for name in names if name.startswith("?") and len(name) > 1]
    return [name for name in names if not (name.startswith("?") and len(name) > 1)], ignored


def labels_of_cells(cells: Sequence[str]) -> Classes | MultiLabel:
    """Return the labels of cells: one class each, unless one of them holds several, see `split_cell`."""
    if not any(separator in cell for cell in cells for separator in SEPARATORS):
        return single_labels(cells)
    present, ignored = zip(*map(split_cell, cells), strict=True)
    return multi_labels(present, ignored)


_USUAL = (None, 0, 1)
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
    # The usual case without a call of `boolean`: a manifest has millions of annotations.
    if values[0] in _USUAL and values[1] in _USUAL and values[2] in _USUAL:
        return bool(values[0]), bool(values[1] or values[2])
    where = f"{spec}, annotation {annotation['id']}"
    crowd, ignored, difficult = (
        boolean(value, where, key) for value, key in zip(values, ("iscrowd", "ignore", "difficult"), strict=True)
    )
    return crowd, ignored or difficult


FLAGS = {text: int(flag) for text, flag in TEXTS.items()} | {"-1": -1, "0.0": 0, "1.0": 1, "-1.0": -1}
"""Cells of a column of one class, in lower case -> 1 present, 0 absent, -1 ignore."""
