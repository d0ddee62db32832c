"""Objects of images, in memory or in files that processes share."""

import dataclasses
import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.text_rows import TextRows, write_texts
from sslbench.metrics.detection import masks as rle

_COLUMNS = ("boxes", "classes", "crowd", "difficult", "areas", "numbers", "masked", "keypoints", "starts")
_OF_OBJECTS = _COLUMNS[:-1]


@dataclasses.dataclass(frozen=True, eq=False)
class Objects:
    """Objects of one image, n of them.

    Attributes:
        boxes: float32 (n, 4), x1, y1, x2, y2 in pixels of the upright image; the first pixel reaches from 0 to 1.
        classes: int64 (n,), position in the source's classes.
        crowd: bool (n,): a region with many objects (COCO's iscrowd). Not trained on, not counted.
        difficult: bool (n,): VOC's difficult, kwcoco's ignore. Not counted.
        areas: float64 (n,), pixels of the object, by which COCO tells small from large: of the mask where the manifest
            says so, else of the box.
        masks: per object the segmentation as the manifest has it, or None; None if no object has one.
        numbers: int64 (n,), the ids of the annotations; None where they have none. No score depends on them.
        keypoints: float64 (n, K, 3), x, y as in COCO's files (the centre of the first pixel is 0, 0) and visibility:
            0 not labelled, 1 labelled and hidden, 2 visible; None without a skeleton.
    """

    boxes: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]
    crowd: npt.NDArray[np.bool_]
    difficult: npt.NDArray[np.bool_]
    areas: npt.NDArray[np.float64]
    masks: tuple[rle.Segmentation | None, ...] | None = None
    numbers: IntArray | None = None
    keypoints: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        lengths = [len(self.classes), len(self.crowd), len(self.difficult), len(self.areas)]
        lengths += [len(part) for part in (self.masks, self.keypoints) if part is not None]
        if self.boxes.shape != (len(self.boxes), 4) or set(lengths) != {len(self.boxes)}:
            raise ValueError(f"boxes {self.boxes.shape} and {lengths} of the rest")

    def __len__(self) -> int:
        return len(self.boxes)

    def select(self, rows: Sequence[int]) -> "Objects":
        """Return the objects at these positions."""
        at = np.asarray(rows, dtype=np.int64)
        masks = None if self.masks is None else tuple(self.masks[i] for i in rows)
        flags = self.crowd[at], self.difficult[at]
        numbers = None if self.numbers is None else self.numbers[at]
        keypoints = None if self.keypoints is None else self.keypoints[at]
        return Objects(self.boxes[at], self.classes[at], *flags, self.areas[at], masks, numbers, keypoints)


def no_objects() -> Objects:
    """Return the objects of an image without any."""
    flags = np.zeros(0, dtype=np.bool_)
    return Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), flags, flags, np.zeros(0))


NOTHING = no_objects()


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectRows(Sequence[Objects]):
    """Objects of images in files that `write_objects` wrote; only the folder's name is sent to other processes.

    Attributes:
        folder: of the files.
        rows: int64, the images that count, in order; None for all of them.
        moved: int64 (C,), what the classes in the files have become; -1: no object may have it.
    """

    folder: str
    rows: IntArray | None = None
    moved: IntArray | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "rows": self.rows, "moved": self.moved}

    @functools.cached_property
    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        """Memory-mapped columns, of which the system keeps one copy for all processes."""
        return {name: np.load(f"{self.folder}/{name}.npy", mmap_mode="r", allow_pickle=False) for name in _COLUMNS}

    @functools.cached_property
    def _texts(self) -> TextRows:
        return TextRows(f"{self.folder}/masks")

    def __len__(self) -> int:
        return len(self._columns["starts"]) - 1 if self.rows is None else len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Objects: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Objects, ...]: ...
    def __getitem__(self, index: int | slice) -> Objects | tuple[Objects, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        row = range(len(self))[index] if self.rows is None else int(self.rows[index])
        start, stop = self._columns["starts"][row : row + 2].tolist()
        parts: dict[str, Any] = {name: np.array(self._columns[name][start:stop]) for name in _OF_OBJECTS}
        masked = bool(parts.pop("masked").any())
        if not parts["keypoints"].shape[1]:
            parts["keypoints"] = None
        if self.moved is not None:
            parts["classes"] = self.moved[parts["classes"]]
        return _Viewed.of((self._texts, start, stop), parts) if masked else Objects(**parts)

    def select(self, indices: IntArray) -> "ObjectRows":
        """Return the objects of the images at `indices`, in that order."""
        return dataclasses.replace(self, rows=indices if self.rows is None else self.rows[indices])

    def with_classes(self, moved: IntArray) -> "ObjectRows":
        """Map the classes to other numbers, int64 (C,)."""
        return dataclasses.replace(self, moved=moved if self.moved is None else moved[self.moved])

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of all objects: that of `Objects`, or 'masked' (has a segmentation)."""
        found = self._columns[name]
        if self.rows is not None:
            starts, counts = self._columns["starts"], self.counts()
            ends = np.cumsum(counts)
            found = found[np.repeat(starts[:-1][self.rows] - (ends - counts), counts) + np.arange(counts.sum())]
        return self.moved[found] if name == "classes" and self.moved is not None else np.array(found)

    def counts(self) -> IntArray:
        """Return the number of objects of each image."""
        counts = np.diff(self._columns["starts"])
        return np.asarray(counts if self.rows is None else counts[self.rows], dtype=np.int64)


class _Viewed(Objects):
    """Objects with segmentations that are parsed on first access."""

    _texts: tuple[TextRows, int, int]

    @classmethod
    def of(cls, texts: tuple[TextRows, int, int], parts: dict[str, Any]) -> "_Viewed":
        """Return objects with their segmentations in some rows of a file."""
        viewed = cls(**parts)
        del viewed.__dict__["masks"]
        viewed.__dict__["_texts"] = texts
        return viewed

    @functools.cached_property
    def masks(self) -> tuple[rle.Segmentation | None, ...] | None:
        """Segmentations, as in `Objects`."""
        texts, start, stop = self._texts
        return tuple(json.loads(text) if text else None for text in (texts[i] for i in range(start, stop)))


def write_objects(objects: Sequence[Objects], folder: Path) -> None:
    """Write the objects of N images for `ObjectRows`; they have annotation ids.

    Raises:
        OSError: the files cannot be written.
    """
    counts = np.array([len(one) for one in objects], dtype=np.int64)
    whole = (*objects, NOTHING)
    columns: dict[str, npt.NDArray[Any]] = {
        "boxes": np.concatenate([one.boxes for one in whole]),
        "classes": np.concatenate([one.classes for one in whole]),
        "crowd": np.concatenate([one.crowd for one in whole]),
        "difficult": np.concatenate([one.difficult for one in whole]),
        "areas": np.concatenate([one.areas for one in whole]),
        "numbers": np.concatenate([np.zeros(0, np.int64) if one.numbers is None else one.numbers for one in whole]),
        "starts": np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)]),
    }
    points = [one.keypoints for one in objects if one.keypoints is not None]
    columns["keypoints"] = np.concatenate(points) if points else np.zeros((counts.sum(), 0, 3))
    masks = [mask for one in objects for mask in (one.masks if one.masks is not None else (None,) * len(one))]
    columns["masked"] = np.array([mask is not None for mask in masks], dtype=np.bool_)
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column)
    write_texts(["" if mask is None else _json(mask) for mask in masks], folder / "masks")


def _json(mask: rle.Segmentation) -> str:
    """Return a segmentation as JSON; of polygons Python's own text is the same, and faster."""
    if type(mask) is list and set(map(type, itertools.chain.from_iterable(mask))) <= {int, float}:
        return repr(mask)
    return json.dumps(mask)
