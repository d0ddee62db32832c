"""Labels of a manifest's images, from the categories of their annotations."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.formats.coco.columns import INFO_TYPE, Columns
from sslbench.data.wording import counted, some
from sslbench.targets import kinds
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target


@dataclasses.dataclass(frozen=True)
class ExportedLabels:
    """Labelling of a split before its export.

    Attributes:
        kind: of its targets.
        classes: their names in order, also of those that no image has.
    """

    kind: type[Target]
    classes: tuple[str, ...]


def by_supercategory(columns: Columns) -> Columns:
    """Replace the classes by their supercategories, in the order of their first category."""
    names = list(dict.fromkeys(columns.supers))
    place = {name: i for i, name in enumerate(names)}
    moved = np.array([place[name] for name in columns.supers], dtype=np.int64)
    return dataclasses.replace(columns, classes=moved[columns.classes], names=names, supers=names)


def labels_of(spec: str, columns: Columns, ids: list[str]) -> tuple[Target, tuple[str, ...]]:
    """Return labels and notes; all images decide, so that every split has the same kind and classes."""
    notes = (f"{spec}: {counted(columns.skipped, 'annotation')} without category left out",) if columns.skipped else ()
    present, marked = _pairs(columns)
    names = columns.names
    if not len(present) and not len(marked):
        return Unlabelled(len(ids)), (*notes, f"{spec}: no image has a category, so there are no labels")
    counts = np.bincount(present[:, 0], minlength=len(ids))
    # An image with a class that is to be ignored has not exactly one.
    counts[marked[:, 0]] = 0
    ambiguous = np.flatnonzero(counts != 1)
    if len(ambiguous):
        shown = some([ids[i] for i in ambiguous])
        note = f"{spec}: multi-label, since {counted(len(ambiguous), 'image')} have not exactly one category: {shown}"
        return MultiLabel(tuple(names), _matrix(len(ids), len(names), present, marked)), (*notes, note)
    used = np.unique(present[:, 1])
    unused = [name for i, name in enumerate(names) if i not in set(used.tolist())]
    if unused:
        notes = (*notes, f"{spec}: categories without any image left out: {some(unused)}")
    values = np.empty(len(ids), dtype=np.int64)
    values[present[:, 0]] = np.searchsorted(used, present[:, 1])
    return Classes(tuple(names[i] for i in used), values), notes


def _pairs(columns: Columns) -> tuple[IntArray, IntArray]:
    """Return pairs (n, 2) of image and class: with a clean annotation, and with marked annotations only."""
    width = max(len(columns.names), 1)
    # A pair as one number, which np.unique and np.setdiff1d can compare.
    keys = columns.images * width + columns.classes
    clean = np.unique(keys[~columns.marked])
    only_marked = np.setdiff1d(keys[columns.marked], clean)
    return tuple(np.stack(np.divmod(found, width), axis=1) for found in (clean, only_marked))  # type: ignore[return-value]


def _matrix(n: int, width: int, present: IntArray, marked: IntArray) -> npt.NDArray[np.int8]:
    values: npt.NDArray[np.int8] = np.zeros((n, width), dtype=np.int8)
    values[tuple(marked.T)] = -1
    values[tuple(present.T)] = 1
    return values


def exported_as(info: Any) -> dict[str, ExportedLabels] | None:
    """Return split -> its labelling before export, if `sslbench data to-kwcoco` wrote the manifest."""
    entries = info if isinstance(info, list) else [info]
    entry = next((e for e in entries if isinstance(e, dict) and e.get("type") == INFO_TYPE), None)
    if entry is None or not isinstance(entry.get("splits"), dict):
        return None
    try:
        splits = entry["splits"].items()
        return {split: ExportedLabels(kinds()[kept["labels"]], tuple(kept["classes"])) for split, kept in splits}
    except (TypeError, KeyError):
        return None


def labels_as_exported(columns: Columns, rows: IntArray, kept: ExportedLabels) -> Target | None:
    """Restore the labels of some images; None if the manifest no longer agrees with the record of its export."""
    place = {name: i for i, name in enumerate(kept.classes)}
    if kept.kind is Numbers:
        numbers = [columns.values[i] for i in rows]
        if any(not isinstance(row, list) or len(row) != len(kept.classes) for row in numbers):
            return None
        return Numbers(kept.classes, np.array(numbers, dtype=np.float64).reshape(len(rows), len(kept.classes)))
    row_of = np.full(len(columns.numbers), -1, dtype=np.int64)
    row_of[rows] = np.arange(len(rows))
    class_of = np.array([place.get(name, -1) for name in columns.names], dtype=np.int64)
    pairs = []
    for found in _pairs(columns):
        inside = row_of[found[:, 0]] >= 0
        pairs.append(np.stack([row_of[found[inside, 0]], class_of[found[inside, 1]]], axis=1).reshape(-1, 2))
    present, marked = pairs
    if (present < 0).any() or (marked < 0).any():
        return None
    if kept.kind is Unlabelled:
        return Unlabelled(len(rows)) if not len(present) and not len(marked) else None
    if kept.kind is MultiLabel:
        return MultiLabel(kept.classes, _matrix(len(rows), len(kept.classes), present, marked))
    if len(marked) or not np.array_equal(present[:, 0], np.arange(len(rows))):
        return None
    return Classes(kept.classes, np.ascontiguousarray(present[:, 1]))
