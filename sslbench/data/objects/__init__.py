"""Images with objects of every format."""

import dataclasses
import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sslbench.config import setting
from sslbench.data.decode.reading import DEFAULT, Reading
from sslbench.data.groups import group_numbers
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.metrics.detection import Truth
from sslbench.metrics.detection import masks as rle
from sslbench.metrics.detection.keypoints import Skeleton
from sslbench.targets.objects import Boxes


@dataclasses.dataclass(frozen=True)
class ObjectOptions:
    """Options of boxes behind a '?'."""

    images: str = setting("", "folder of the images")
    group: str = setting("", "key of the images, or column: a seeded split keeps equal values on one side")


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectSource(Source):
    """Samples whose targets are boxes of objects.

    Attributes:
        target: the objects.
        reading: settings of the decoding.
    """

    target: Boxes
    reading: Reading = DEFAULT

    @classmethod
    def of(cls, source: Source) -> "ObjectSource":
        """Return a source that is known to have boxes."""
        if not isinstance(source, cls):
            raise TypeError(f"{source.name} has {source.target.title}, not boxes")
        return source

    @classmethod
    def with_boxes(cls, source: Source, boxes: Boxes, grouped_by: str = "") -> "ObjectSource":
        """Return the samples of a source with boxes of the same length, grouped by an attribute."""
        return cls(source.name, source.ids, boxes, source.images, source.notes, source.attributes, grouped_by)

    def with_classes(self, classes: tuple[str, ...], class_numbers: tuple[int, ...]) -> "ObjectSource":
        """Change the order of the classes, add classes, or drop those without objects."""
        return dataclasses.replace(self, target=self.target.with_classes(classes, class_numbers))

    def bitmaps_of(self, index: int, height: int, width: int) -> npt.NDArray[np.bool_] | None:
        """Return the masks of the same objects, (n, height, width); None if one of them has no mask."""
        self.check_size(index, height, width)
        found = self.target.objects[index]
        counted = np.flatnonzero(~found.crowd).tolist()
        parts = [part for i in counted if found.masks is not None and (part := found.masks[i]) is not None]
        if len(parts) < len(counted):
            return None
        try:
            return np.stack([rle.decode(rle.to_rle(part, height, width)) for part in parts])
        except ValueError as error:
            raise DataError(f"{self.name}: {self.images.path(index)}: {error}") from error

    def check_size(self, index: int, height: int, width: int) -> None:
        """Check that an upright, decoded image has the size given in the manifest, in whose pixels its boxes are."""
        said = tuple(int(side) for side in self.target.sizes[index])
        if said in ((0, 0), (height, width)):
            return
        message = (
            f"{self.name}: {self.images.path(index)} is {width} x {height} pixels, "
            f"but the annotations are for {said[1]} x {said[0]}"
        )
        if said == (width, height):
            message = f"{message}: it is turned by EXIF, and these are width and height of its stored pixels"
            boxes = self.target.objects[index].boxes
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
        """Return the masks of one image as run lengths."""
        objects, (height, width) = self.target.objects[index], (int(side) for side in self.target.sizes[index])
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
        """
        target = self.target
        points = None
        if skeleton is not None:
            points = target.keypoints(skeleton)
        boxes, classes, crowd, difficult, areas = map(
            target.column, ("boxes", "classes", "crowd", "difficult", "areas")
        )
        return Truth(
            len(self),
            target.classes,
            target.images(),
            boxes,
            classes,
            crowd,
            difficult,
            areas,
            masks=tuple(mask for i in range(len(self)) for mask in self.masks_of(i)) if masks else None,
            groups=group_numbers(self.attributes.get(self.grouped_by, ())),
            federated=target.federated,
            keypoints=points,
            skeleton=skeleton,
        )

    def objects_fingerprint(self) -> str:
        """Return a hash of ids, image contents, objects, class names and groups, for keys of scores; 32 hex digits."""
        digest = hashlib.sha256("\n".join((*self.ids, "", *self.target.classes)).encode())
        digest.update(self.images.digests().tobytes())
        self.target.update(digest)
        if self.grouped_by:
            digest.update("\n".join(("groups", *self.attributes[self.grouped_by])).encode())
        federated = self.target.federated
        if federated is not None:
            digest.update(("federated" + repr(federated.frequencies)).encode())
            digest.update(federated.negative.tobytes() + b" " + federated.not_exhaustive.tobytes())
        return digest.hexdigest()[:32]

    def content_key(self) -> bytes:
        """Return the key of the objects."""
        return ("objects" + self.objects_fingerprint()).encode()


def with_objects(sources: Mapping[str, Source]) -> dict[str, Source]:
    """Return the images that have an object; regions with many objects (COCO's iscrowd) are none."""
    kept: dict[str, Source] = {}
    for split, source in sources.items():
        boxes = Boxes.of(source.target)
        rows = [i for i in range(len(source)) if len(boxes.boxes_of(i))]
        left_out = len(source) - len(rows)
        note = f"{source.name}: {left_out:,} of {len(source):,} images have no object and are left out"
        if rows:
            kept[split] = dataclasses.replace(source.select(rows), notes=(*source.notes, *([note] if left_out else [])))
    if not kept:
        total = sum(map(len, sources.values()))
        raise DataError(f"none of the {total:,} images has an object", "Give images with boxes.")
    return kept
