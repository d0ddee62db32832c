"""What every kind of data with objects is turned into."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.data.source import Images
from sslbench.errors import DataError
from sslbench.metrics import masks as rle
from sslbench.metrics.detection import Truth

Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Objects:
    """The n objects of one image.

    Attributes:
        boxes: float32 (n, 4), x1, y1, x2, y2 in pixels of the upright image; the first pixel reaches from 0 to 1.
        classes: int64 (n,), position in the source's classes.
        crowd: bool (n,): a region with many objects (COCO's iscrowd). Not trained on, not counted.
        difficult: bool (n,): VOC's difficult, kwcoco's ignore. Not counted.
        areas: float64 (n,), pixels of the object, by which COCO tells small from large: of the mask where the manifest
            says so, else of the box.
        masks: per object the segmentation as the manifest has it, or None; None if no object has one.
    """

    boxes: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]
    crowd: npt.NDArray[np.bool_]
    difficult: npt.NDArray[np.bool_]
    areas: npt.NDArray[np.float64]
    masks: tuple[rle.Segmentation | None, ...] | None = None

    def __post_init__(self) -> None:
        lengths = [len(self.classes), len(self.crowd), len(self.difficult), len(self.areas)]
        lengths += [len(self.masks)] if self.masks is not None else []
        if self.boxes.shape != (len(self.boxes), 4) or set(lengths) != {len(self.boxes)}:
            raise ValueError(f"boxes {self.boxes.shape} and {lengths} of the rest")

    def __len__(self) -> int:
        return len(self.boxes)

    def select(self, rows: Sequence[int]) -> "Objects":
        """Some of the objects."""
        at = np.asarray(rows, dtype=np.int64)
        masks = None if self.masks is None else tuple(self.masks[i] for i in rows)
        flags = self.crowd[at], self.difficult[at]
        return Objects(self.boxes[at], self.classes[at], *flags, self.areas[at], masks)


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectSource:
    """N images in order of their id, and their objects.

    Attributes:
        name: what the user calls it, with the split.
        ids: unique, ascending, stable between machines.
        images: of the same length.
        objects: of the same length; an image without objects has an empty one.
        sizes: int64 (N, 2), height and width of the upright image as the manifest has them; 0, 0 where nothing says.
        classes: the C names.
        numbers: the N image ids of the manifest (VOC: 1, 2, ...), as COCO's result files name them.
        class_numbers: the C category ids of the manifest (VOC: 1, 2, ...).
        notes: what was found on opening and may surprise, one sentence each.
    """

    name: str
    ids: tuple[str, ...]
    images: Images
    objects: tuple[Objects, ...]
    sizes: Indices
    classes: tuple[str, ...]
    numbers: tuple[int, ...]
    class_numbers: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(x) for x in (self.ids, self.images, self.objects, self.sizes, self.numbers)}
        if len(lengths) != 1 or len(self.classes) != len(self.class_numbers):
            raise ValueError(f"{self.name}: parts of {lengths}, {len(self.classes)} classes")

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, indices: Sequence[int] | Indices, name: str | None = None) -> "ObjectSource":
        """Some of the images. `indices` must ascend, so that the ids still do."""
        chosen = np.asarray(indices, dtype=np.int64)
        if len(chosen) and np.any(np.diff(chosen) <= 0):
            raise ValueError("indices must be strictly ascending")
        return dataclasses.replace(
            self,
            name=name or self.name,
            ids=tuple(self.ids[i] for i in chosen),
            images=self.images.select(chosen),
            objects=tuple(self.objects[i] for i in chosen),
            sizes=self.sizes[chosen],
            numbers=tuple(self.numbers[i] for i in chosen),
        )

    def with_classes(self, classes: tuple[str, ...], class_numbers: tuple[int, ...]) -> "ObjectSource":
        """The same with classes in another order, more of them, or without some that no object has."""
        place = {name: i for i, name in enumerate(classes)}
        moved = np.array([place.get(name, -1) for name in self.classes], dtype=np.int64)
        objects = tuple(dataclasses.replace(o, classes=moved[o.classes]) for o in self.objects)
        if any((o.classes < 0).any() for o in objects):
            raise ValueError(f"{self.name} has objects of a class that is not among {classes}")
        return dataclasses.replace(self, objects=objects, classes=classes, class_numbers=class_numbers)

    def counts(self, *, crowds: bool = False) -> Indices:
        """(C,) objects of each class, with or without crowds."""
        kept = [o.classes if crowds else o.classes[~o.crowd] for o in self.objects]
        return np.bincount(np.concatenate([np.zeros(0, np.int64), *kept]), minlength=len(self.classes))

    @property
    def has_masks(self) -> bool:
        """Whether there are objects and every one has a segmentation."""
        some = [o.masks for o in self.objects if len(o)]
        return bool(some) and all(m is not None and all(part is not None for part in m) for m in some)

    def check_size(self, index: int, height: int, width: int) -> None:
        """Compares an upright, decoded image with what the manifest says: its boxes would lie elsewhere.

        Raises:
            DataError: the sizes differ.
        """
        said = tuple(int(side) for side in self.sizes[index])
        if said in ((0, 0), (height, width)):
            return
        message = (
            f"{self.name}: {self.images.path(index)} is {width} x {height} pixels, "
            f"but the annotations are for {said[1]} x {said[0]}"
        )
        if said == (width, height):
            raise DataError(
                f"{message}: they seem to be made on the image before its EXIF rotation",
                "Boxes belong to the upright image: turn them, or remove the orientation from the file.",
            )
        raise DataError(message, "Was the image resized after it was annotated? Boxes and size must be scaled with it.")

    def masks_of(self, index: int) -> tuple[rle.Rle, ...]:
        """The masks of one image as run lengths.

        Raises:
            DataError: an object has no segmentation, one that is of another size, or the size is not known.
        """
        objects, (height, width) = self.objects[index], (int(side) for side in self.sizes[index])
        parts = objects.masks or (None,) * len(objects)
        if any(part is None for part in parts) or not height:
            what = "an object without segmentation" if height else "no width and height"
            raise DataError(f"{self.name}: {self.images.path(index)} has {what}, so its masks cannot be used")
        try:
            return tuple(rle.to_rle(part, height, width) for part in parts if part is not None)
        except ValueError as error:
            raise DataError(f"{self.name}: {self.images.path(index)}: {error}") from error

    def truth(self, *, masks: bool = False) -> Truth:
        """All objects as arrays, for the metrics.

        Args:
            masks: with the masks as run lengths.

        Raises:
            DataError: masks are asked for and one is missing or damaged.
        """
        images = np.repeat(np.arange(len(self)), [len(o) for o in self.objects])
        joined = [(o.boxes, o.classes, o.crowd, o.difficult, o.areas) for o in (*self.objects, _NOTHING)]
        boxes, labels, crowd, difficult, areas = (np.concatenate(column) for column in zip(*joined, strict=True))
        found = tuple(m for i in range(len(self)) for m in self.masks_of(i)) if masks else None
        return Truth(len(self), self.classes, images, boxes, labels, crowd, difficult, areas, found)

    def fingerprint(self) -> str:
        """Hash of ids, image contents, objects and class names, 32 hex digits: what a score depends on."""
        digest = hashlib.sha256("\n".join((*self.ids, "", *self.classes)).encode())
        digest.update(self.images.digests().tobytes())
        for objects in self.objects:
            digest.update(len(objects).to_bytes(8, "little"))
            for column in (objects.boxes, objects.classes, objects.crowd, objects.difficult, objects.areas):
                digest.update(np.ascontiguousarray(column).tobytes())
            digest.update(json.dumps(objects.masks, default=repr).encode())
        return digest.hexdigest()[:32]


def no_objects() -> Objects:
    """Of an image without any."""
    flags = np.zeros(0, dtype=np.bool_)
    return Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), flags, flags, np.zeros(0))


_NOTHING = no_objects()
