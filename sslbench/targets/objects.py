"""Objects of images: boxes and classes, perhaps masks, keypoints and texts; in memory, or in files."""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, overload

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.metrics.dense import discovery
from sslbench.metrics.detection import masks as rle
from sslbench.metrics.detection.keypoints import Skeleton, labelled
from sslbench.metrics.detection.matches import Federated
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.target import Rows, WithoutValues
from sslbench.text_rows import TextRows, write_texts

_COLUMNS = ("boxes", "classes", "crowd", "difficult", "areas", "numbers", "masked", "keypoints", "points", "starts")
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
        texts: per object its texts (captions of the region), perhaps none; None if no object has one.
        points: float64 (n, 2), a point x, y in each object, in the pixels of boxes; NaN where it has none, None if no
            object has one.
    """

    boxes: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]
    crowd: npt.NDArray[np.bool_]
    difficult: npt.NDArray[np.bool_]
    areas: npt.NDArray[np.float64]
    masks: tuple[rle.Segmentation | None, ...] | None = None
    numbers: IntArray | None = None
    keypoints: npt.NDArray[np.float64] | None = None
    texts: tuple[tuple[str, ...], ...] | None = None
    points: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        lengths = [len(self.classes), len(self.crowd), len(self.difficult), len(self.areas)]
        further = (self.masks, self.keypoints, self.texts, self.points)
        lengths += [len(part) for part in further if part is not None]
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
        texts = None if self.texts is None else tuple(self.texts[i] for i in rows)
        points = None if self.points is None else self.points[at]
        boxes, classes, areas = self.boxes[at], self.classes[at], self.areas[at]
        return Objects(boxes, classes, *flags, areas, masks, numbers, keypoints, texts, points)


_NO_FLAGS = np.zeros(0, dtype=np.bool_)
NOTHING = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), _NO_FLAGS, _NO_FLAGS, np.zeros(0))
"""The objects of an image without any."""


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
        # Without the cached columns: numpy pickles a memory map as the whole array.
        return {"folder": self.folder, "rows": self.rows, "moved": self.moved}

    @functools.cached_property
    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        """Memory-mapped columns, of which the system keeps one copy for all processes."""
        return {name: np.load(f"{self.folder}/{name}.npy", mmap_mode="r", allow_pickle=False) for name in _COLUMNS}

    @functools.cached_property
    def _masks(self) -> TextRows:
        return TextRows(f"{self.folder}/masks")

    @functools.cached_property
    def _texts(self) -> TextRows | None:
        """Texts of each object as a list in JSON, '' for none; None if no object has one."""
        file = f"{self.folder}/texts"
        return TextRows(file) if os.path.exists(file) else None  # noqa: PTH110

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
        # Copies: slices of the memory map are read-only.
        parts: dict[str, Any] = {name: np.array(self._columns[name][start:stop]) for name in _OF_OBJECTS}
        masked = bool(parts.pop("masked").any())
        for name in ("keypoints", "points"):
            if not parts[name].shape[1]:
                parts[name] = None
        if self._texts is not None:
            texts = tuple(tuple(json.loads(text)) if text else () for text in self._texts[start:stop])
            parts["texts"] = texts if any(texts) else None
        if self.moved is not None:
            parts["classes"] = self.moved[parts["classes"]]
        return _Viewed.of((self._masks, start, stop), parts) if masked else Objects(**parts)

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
            # For each object of the chosen images: its place among them, moved by as much as its image is in the file.
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
        # `__init__` has stored None there, which would hide the cached property; a frozen dataclass refuses setattr.
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
    # np.concatenate refuses an empty list; NOTHING has the columns' types.
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
    columns["points"] = np.zeros((counts.sum(), 0))
    if any(one.points is not None for one in objects):
        columns["points"] = np.concatenate(
            [np.full((len(one), 2), np.nan) if one.points is None else one.points for one in objects]
        )
    masks = [mask for one in objects for mask in (one.masks if one.masks is not None else (None,) * len(one))]
    columns["masked"] = np.array([mask is not None for mask in masks], dtype=np.bool_)
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column)
    write_texts(["" if mask is None else _json(mask) for mask in masks], folder / "masks")
    if any(one.texts is not None for one in objects):
        texts = [own for one in objects for own in (one.texts if one.texts is not None else ((),) * len(one))]
        write_texts([json.dumps(own) if own else "" for own in texts], folder / "texts")


def _json(mask: rle.Segmentation) -> str:
    """Return a segmentation as JSON; of polygons Python's own text is the same, and faster."""
    # By exact type: a bool is an int, too, and Python writes it differently from JSON.
    if type(mask) is list and set(map(type, itertools.chain.from_iterable(mask))) <= {int, float}:
        return repr(mask)
    return json.dumps(mask)


@dataclasses.dataclass(frozen=True, eq=False)
class Boxes(WithoutValues):
    """Boxes of objects of N images.

    Attributes:
        classes: the C names.
        objects: one entry per image; an image without objects has an empty one.
        sizes: int64 (N, 2), height and width of the upright image as the manifest has them; 0, 0 where nothing says.
        numbers: the N image ids of the manifest (VOC: 1, 2, ...), as COCO's result files name them.
        class_numbers: the C category ids of the manifest (VOC: 1, 2, ...).
        federated: the classes that were looked for in each image (LVIS); None: all of them.
        skeleton: the keypoints that objects may have; None: they have none.
        image_texts: of a manifest whose image ids are texts, id of the image -> this text; `numbers` count them.
        class_texts: the same of categories: class -> text.
        sized: annotations say the sizes; False: some are those of the image files, which tell no turn by EXIF.
    """

    name: ClassVar[str] = "boxes"
    title: ClassVar[str] = "boxes of objects"
    default: ClassVar[tuple[str, str]] = ("textures:images", "drawn textures")
    metric: ClassVar[str] = "corloc"
    of_pixels: ClassVar[bool] = True
    given_columns: ClassVar[tuple[str, ...]] = discovery.DISCOVERY_COLUMNS
    classes: tuple[str, ...]
    objects: Sequence[Objects]
    sizes: IntArray
    numbers: tuple[int, ...]
    class_numbers: tuple[int, ...]
    federated: Federated | None = None
    skeleton: Skeleton | None = None
    image_texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    class_texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sized: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = {len(self.objects), len(self.sizes), len(self.numbers)}
        if len(lengths) != 1 or len(self.classes) != len(self.class_numbers):
            raise ValueError(f"columns of {lengths} images, {len(self.classes)} classes")

    def __len__(self) -> int:
        return len(self.objects)

    def size_text(self) -> str:
        """Return the numbers of objects and classes."""
        return f"{int(self.counts().sum())} objects, {len(self.classes)} classes"

    @property
    def _rows(self) -> ObjectRows | None:
        """Objects in files, for operations on whole columns; None if they are in memory."""
        return self.objects if isinstance(self.objects, ObjectRows) else None

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of all objects, as `Objects` has it."""
        if self._rows is not None:
            return self._rows.column(name)
        return np.concatenate([getattr(one, name) for one in (*self.objects, NOTHING)])

    def keypoints(self, skeleton: Skeleton) -> npt.NDArray[Any]:
        """Return the keypoints of all objects, (n, K, 3)."""
        if self._rows is not None:
            return self._rows.column("keypoints")
        none = np.zeros((0, len(skeleton), 3))
        return np.concatenate([none, *(one.keypoints for one in self.objects if one.keypoints is not None)])

    def images(self) -> IntArray:
        """Return the position of the image of each object."""
        counts = self._rows.counts() if self._rows is not None else [len(one) for one in self.objects]
        return np.repeat(np.arange(len(self)), counts)

    def counts(self, *, crowds: bool = False) -> IntArray:
        """Return the number of objects of each class, (C,), with or without crowds."""
        classes = self.column("classes")
        return np.bincount(classes if crowds else classes[~self.column("crowd")], minlength=len(self.classes))

    def narrow(self, longest: int) -> IntArray:
        """Return the images of which nothing is left when the longer side is reduced to `longest` pixels."""
        shorter, longer = self.sizes.min(axis=1), self.sizes.max(axis=1)
        return np.flatnonzero(2 * shorter * longest < longer)  # less than half a pixel; 0, 0 is an unknown size

    def boxes_of(self, index: int) -> npt.NDArray[np.float32]:
        """Return the boxes of an image, (n, 4); regions of many objects (COCO's iscrowd) are left out."""
        objects = self.objects[index]
        return np.asarray(objects.boxes[~objects.crowd])

    def select(self, indices: IntArray) -> Self:
        """Return the objects of the images at `indices`."""
        return self.changed(
            objects=self._rows.select(indices) if self._rows is not None else tuple(self.objects[i] for i in indices),
            sizes=self.sizes[indices],
            numbers=tuple(self.numbers[i] for i in indices),
            federated=None if self.federated is None else self.federated.select(indices, len(self)),
        )

    def with_classes(self, classes: tuple[str, ...], class_numbers: tuple[int, ...]) -> Self:
        """Change the order of the classes, add classes, or drop those without objects."""
        place = {name: i for i, name in enumerate(classes)}
        moved = np.array([place.get(name, -1) for name in self.classes], dtype=np.int64)
        if (moved[self.column("classes")] < 0).any():
            raise ValueError(f"there are objects of a class that is not among {classes}")
        objects = (
            self._rows.with_classes(moved)
            if self._rows is not None
            else tuple(dataclasses.replace(one, classes=moved[one.classes]) for one in self.objects)
        )
        federated = None if self.federated is None else self.federated.with_classes(moved, len(classes))
        return self.changed(objects=objects, classes=classes, class_numbers=class_numbers, federated=federated)

    def without_keypoints(self) -> Self:
        """Return the same objects without a skeleton."""
        objects = tuple(dataclasses.replace(one, keypoints=None) for one in self.objects)
        return self.changed(objects=objects, skeleton=None)

    @property
    def has_masks(self) -> bool:
        """True if there are objects and every one has a segmentation."""
        if self._rows is not None:
            masked = self._rows.column("masked")
            return bool(len(masked) and masked.all())
        masks = [one.masks for one in self.objects if len(one)]
        return bool(masks) and all(m is not None and all(mask is not None for mask in m) for m in masks)

    @property
    def has_texts(self) -> bool:
        """True if an object has a text."""
        return any(one.texts is not None for one in self.objects)

    @property
    def labelled_keypoints(self) -> IntArray:
        """Number of objects that count in which each keypoint is labelled, (K,); empty without a skeleton."""
        if self.skeleton is None:
            return np.zeros(0, dtype=np.int64)
        total = np.zeros(len(self.skeleton), dtype=np.int64)
        for one in self.objects:
            if one.keypoints is not None:
                total += labelled(one.keypoints[~one.crowd]).sum(axis=0)
        return total

    def content_key(self) -> bytes:
        """Return the key of the objects; that of an `ObjectSource` holds more."""
        digest = hashlib.sha256()
        self.update(digest)
        return digest.digest()

    def update(self, digest: "hashlib._Hash") -> None:
        """Add all that a score can depend on to a hash."""
        for one in self.objects:
            digest.update(len(one).to_bytes(8, "little"))
            # Not `numbers`, `texts` and `points`: no score of boxes depends on them.
            for column in (one.boxes, one.classes, one.crowd, one.difficult, one.areas):
                digest.update(np.ascontiguousarray(column).tobytes())
            digest.update(json.dumps(one.masks, default=repr).encode())
            if one.keypoints is not None:
                digest.update(one.keypoints.tobytes())
        if self.skeleton is not None:
            digest.update(("skeleton" + repr(self.skeleton)).encode())

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of discovered objects."""
        return discovery.discovery_measures(scores.astype(np.float64))
