"""Images with objects of every format, as detection reads them."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence, Sized

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.decode.reading import DEFAULT, Reading
from sslbench.data.groups import group_numbers
from sslbench.data.objects.rows import NOTHING, ObjectRows
from sslbench.data.objects.rows import Objects as Objects
from sslbench.data.objects.rows import no_objects as no_objects
from sslbench.errors import DataError
from sslbench.metrics.detection import Truth
from sslbench.metrics.detection import masks as rle
from sslbench.metrics.detection.keypoints import Skeleton, labelled
from sslbench.metrics.detection.matches import Federated
from sslbench.targets.target import Images


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectSource:
    """N images in order of their id, and their objects.

    Attributes:
        name: the location as the user wrote it, with the split.
        ids: unique, ascending, stable between machines.
        images: of the same length.
        objects: of the same length; an image without objects has an empty one.
        sizes: int64 (N, 2), height and width of the upright image as the manifest has them; 0, 0 where nothing says.
        classes: the C names.
        numbers: the N image ids of the manifest (VOC: 1, 2, ...), as COCO's result files name them.
        class_numbers: the C category ids of the manifest (VOC: 1, 2, ...).
        notes: remarks on what was left out or changed on opening, one sentence each.
        attributes: as of a `Source`: name -> one text per image.
        grouped_by: as of a `Source`: the attribute whose equal values a seeded split keeps on one side.
        federated: the classes that were looked for in each image (LVIS); None: all of them.
        skeleton: the keypoints that objects may have; None: they have none.
        image_texts: of a manifest whose image ids are texts, id of the image -> this text; `numbers` count them.
        class_texts: the same of categories: class -> text.
        sized: annotations say the sizes; False: some are those of the image files, which tell no turn by EXIF.
        reading: settings of the decoding.
    """

    name: str
    ids: tuple[str, ...]
    images: Images
    objects: Sequence[Objects]
    sizes: IntArray
    classes: tuple[str, ...]
    numbers: tuple[int, ...]
    class_numbers: tuple[int, ...]
    notes: tuple[str, ...] = ()
    attributes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    grouped_by: str = ""
    federated: Federated | None = None
    skeleton: Skeleton | None = None
    image_texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    class_texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sized: bool = True
    reading: Reading = DEFAULT

    def __post_init__(self) -> None:
        columns: tuple[Sized, ...] = (
            self.ids,
            self.images,
            self.objects,
            self.sizes,
            self.numbers,
            *self.attributes.values(),
        )
        lengths = {len(column) for column in columns}
        if len(lengths) != 1 or len(self.classes) != len(self.class_numbers):
            raise ValueError(f"{self.name}: parts of {lengths}, {len(self.classes)} classes")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def _rows(self) -> ObjectRows | None:
        """Objects in files, for operations on whole columns; None if they are in memory."""
        return self.objects if isinstance(self.objects, ObjectRows) else None

    def boxes_of(self, index: int) -> npt.NDArray[np.float32]:
        """Return the boxes of an image, (n, 4); regions of many objects (COCO's iscrowd) are left out."""
        found = self.objects[index]
        return np.asarray(found.boxes[~found.crowd])

    def bitmaps_of(self, index: int, height: int, width: int) -> npt.NDArray[np.bool_] | None:
        """Return the masks of the same objects, (n, height, width); None if one of them has no mask.

        Raises:
            DataError: the image has another size than its objects were annotated in, or a mask is damaged.
        """
        self.check_size(index, height, width)
        found = self.objects[index]
        counted = np.flatnonzero(~found.crowd).tolist()
        parts = [part for i in counted if found.masks is not None and (part := found.masks[i]) is not None]
        if len(parts) < len(counted):
            return None
        try:
            return np.stack([rle.decode(rle.to_rle(part, height, width)) for part in parts])
        except ValueError as error:
            raise DataError(f"{self.name}: {self.images.path(index)}: {error}") from error

    def select(self, indices: Sequence[int] | IntArray, name: str | None = None) -> "ObjectSource":
        """Return a source of the images at `indices`, which must ascend, as ids do."""
        chosen = np.asarray(indices, dtype=np.int64)
        if len(chosen) and np.any(np.diff(chosen) <= 0):
            raise ValueError("indices must be strictly ascending")
        return dataclasses.replace(
            self,
            name=name or self.name,
            ids=tuple(self.ids[i] for i in chosen),
            images=self.images.select(chosen),
            objects=self._rows.select(chosen) if self._rows is not None else tuple(self.objects[i] for i in chosen),
            sizes=self.sizes[chosen],
            numbers=tuple(self.numbers[i] for i in chosen),
            attributes={key: tuple(column[i] for i in chosen) for key, column in self.attributes.items()},
            federated=None if self.federated is None else self.federated.select(chosen, len(self)),
        )

    def with_classes(self, classes: tuple[str, ...], class_numbers: tuple[int, ...]) -> "ObjectSource":
        """Change the order of the classes, add classes, or drop those without objects."""
        place = {name: i for i, name in enumerate(classes)}
        moved = np.array([place.get(name, -1) for name in self.classes], dtype=np.int64)
        objects: Sequence[Objects]
        if self._rows is not None:
            objects = self._rows.with_classes(moved)
            unknown = bool((objects.column("classes") < 0).any())
        else:
            objects = tuple(dataclasses.replace(o, classes=moved[o.classes]) for o in self.objects)
            unknown = any((o.classes < 0).any() for o in objects)
        if unknown:
            raise ValueError(f"{self.name} has objects of a class that is not among {classes}")
        federated = None if self.federated is None else self.federated.with_classes(moved, len(classes))
        return dataclasses.replace(
            self, objects=objects, classes=classes, class_numbers=class_numbers, federated=federated
        )

    def without_keypoints(self) -> "ObjectSource":
        """Return the source without a skeleton."""
        objects = tuple(dataclasses.replace(one, keypoints=None) for one in self.objects)
        return dataclasses.replace(self, objects=objects, skeleton=None)

    def counts(self, *, crowds: bool = False) -> IntArray:
        """Return the number of objects of each class, (C,), with or without crowds."""
        if self._rows is not None:
            classes = self._rows.column("classes")
            return np.bincount(classes if crowds else classes[~self._rows.column("crowd")], minlength=len(self.classes))
        kept = [o.classes if crowds else o.classes[~o.crowd] for o in self.objects]
        return np.bincount(np.concatenate([np.zeros(0, np.int64), *kept]), minlength=len(self.classes))

    @property
    def has_masks(self) -> bool:
        """True if there are objects and every one has a segmentation."""
        if self._rows is not None:
            masked = self._rows.column("masked")
            return bool(len(masked) and masked.all())
        some = [o.masks for o in self.objects if len(o)]
        return bool(some) and all(m is not None and all(part is not None for part in m) for m in some)

    @property
    def labelled_keypoints(self) -> IntArray:
        """Number of objects that count in which each keypoint is labelled, (K,); empty without a skeleton."""
        if self.skeleton is None:
            return np.zeros(0, dtype=np.int64)
        total = np.zeros(len(self.skeleton), dtype=np.int64)
        for found in self.objects:
            if found.keypoints is not None:
                total += labelled(found.keypoints[~found.crowd]).sum(axis=0)
        return total

    def check_size(self, index: int, height: int, width: int) -> None:
        """Check that an upright, decoded image has the size given in the manifest, in whose pixels its boxes are.

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
            message = f"{message}: it is turned by EXIF, and these are width and height of its stored pixels"
            boxes = self.objects[index].boxes
            if len(boxes) and (boxes[:, 2:].max(axis=0) > (width + 1, height + 1)).any():  # boxes may end a pixel later
                raise DataError(
                    f"{message}, as are the boxes",
                    "Boxes refer to the upright image: rotate them, or remove the orientation from the file.",
                )
            raise DataError(
                message,
                "If the boxes were drawn on the image as it is seen, swap width and height; if on its stored pixels, "
                "rotate the boxes, or remove the orientation from the file.",
            )
        raise DataError(message, "If the image was resized after annotation, scale boxes and size likewise.")

    def masks_of(self, index: int) -> tuple[rle.Rle, ...]:
        """Return the masks of one image as run lengths.

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

    def truth(self, *, masks: bool = False, skeleton: Skeleton | None = None) -> Truth:
        """Return all objects as arrays, for the metrics.

        Args:
            masks: with the masks as run lengths.
            skeleton: with the keypoints: that of the source, with sigmas.

        Raises:
            DataError: masks are asked for and one is missing or damaged.
        """
        names = ("boxes", "classes", "crowd", "difficult", "areas")
        if self._rows is not None:
            counts: Sequence[int] | IntArray = self._rows.counts()
            boxes, labels, crowd, difficult, areas = (self._rows.column(name) for name in names)
        else:
            counts = [len(o) for o in self.objects]
            joined = [[getattr(o, name) for o in (*self.objects, NOTHING)] for name in names]
            boxes, labels, crowd, difficult, areas = map(np.concatenate, joined)
        images = np.repeat(np.arange(len(self)), counts)
        found = tuple(m for i in range(len(self)) for m in self.masks_of(i)) if masks else None
        groups = group_numbers(self.attributes.get(self.grouped_by, ()))
        points = None
        if skeleton is not None:
            none = np.zeros((0, len(skeleton), 3))
            parts = [o.keypoints for o in self.objects if o.keypoints is not None]
            points = self._rows.column("keypoints") if self._rows is not None else np.concatenate([none, *parts])
        return Truth(
            len(self),
            self.classes,
            *(images, boxes, labels, crowd, difficult, areas),
            masks=found,
            groups=groups,
            federated=self.federated,
            keypoints=points,
            skeleton=skeleton,
        )

    def fingerprint(self) -> str:
        """Return a hash of ids, image contents, objects, class names and groups, for keys of scores; 32 hex digits."""
        digest = hashlib.sha256("\n".join((*self.ids, "", *self.classes)).encode())
        digest.update(self.images.digests().tobytes())
        for objects in self.objects:
            digest.update(len(objects).to_bytes(8, "little"))
            for column in (objects.boxes, objects.classes, objects.crowd, objects.difficult, objects.areas):
                digest.update(np.ascontiguousarray(column).tobytes())
            digest.update(json.dumps(objects.masks, default=repr).encode())
            if objects.keypoints is not None:
                digest.update(objects.keypoints.tobytes())
        if self.skeleton is not None:
            digest.update(("skeleton" + repr(self.skeleton)).encode())
        if self.grouped_by:
            digest.update("\n".join(("groups", *self.attributes[self.grouped_by])).encode())
        if self.federated is not None:
            digest.update(("federated" + repr(self.federated.frequencies)).encode())
            digest.update(self.federated.negative.tobytes() + b" " + self.federated.not_exhaustive.tobytes())
        return digest.hexdigest()[:32]
