"""Masks of a COCO or kwcoco manifest (polygons or run lengths), drawn into label maps."""

import dataclasses
import json
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from sslbench.arrays import OfRows
from sslbench.data.decode.picture import UnreadableImage, check_size
from sslbench.data.images import digests_of
from sslbench.data.maps.classes import LabelMapOptions, with_ignored
from sslbench.data.maps.types import CodedMaps, Coding, RawMap, source_of_maps
from sslbench.data.objects import ObjectSource
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection import masks as rle
from sslbench.targets.label_maps import IGNORED

BACKGROUND = "background"


def open_maps(
    spec: str, options: LabelMapOptions, open_objects: Callable[[str], Mapping[str, ObjectSource]]
) -> dict[str, Source]:
    """Return the masks of a manifest as label maps; see `sslbench.data.open.open_as`."""
    if options.maps or options.classes:
        raise UsageError(f"{spec}: a manifest names its own maps and classes; the options are images= and ignore=")
    sources = open_objects(spec)
    if not any(objects.masks for source in sources.values() for objects in source.target.objects):
        raise DataError(f"{spec} has boxes without masks, from which no label maps can be drawn")
    found = {}
    # Value 0 is background, 1 to C are the classes.
    for split, source in sources.items():
        names = (BACKGROUND, *source.target.classes)
        if len(set(names)) < len(names):
            raise DataError(
                f"{source.name} has a class called {BACKGROUND}, which is reserved for pixels without an object"
            )
        coding = with_ignored(source.name, Coding(tuple(range(len(names))), names, (IGNORED,)), options.ignore)
        note = (
            f"{source.name}: pixels without an object form the class '{BACKGROUND}' "
            f"(?ignore={BACKGROUND} leaves them out)"
        )
        maps = CodedMaps(source.name, source.ids, source.images, ObjectMaps(source), coding)
        found[split] = source_of_maps(maps, (*source.notes, note), source.attributes, source.grouped_by)
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectMaps(OfRows):
    """Label maps drawn on reading.

    Large objects are drawn first, so that small ones stay visible where they overlap. Crowds are drawn as their class
    but are no instances; objects marked ignore or difficult do not count.

    Attributes:
        source: images with masks.
    """

    of_rows = ("source",)
    source: ObjectSource

    def path(self, index: int) -> str:
        """Return a name for the map: 'the masks of a.jpg'."""
        return f"the masks of {self.source.images.path(index)}"

    def read(self, index: int, max_pixels: int) -> RawMap:
        """Read one map; see `Maps`."""
        height, width = (int(side) for side in self.source.target.sizes[index])
        check_size(width, height, self.path(index), max_pixels)
        try:
            masks = self.source.masks_of(index)
        except DataError as error:
            raise UnreadableImage(self.path(index), error.message) from error
        objects = self.source.target.objects[index]
        values = np.zeros((height, width), dtype=np.int32)
        instances = np.zeros((height, width), dtype=np.int32)
        for i in np.argsort(-rle.areas(masks), kind="stable").tolist():
            inside = rle.decode(masks[i])
            values[inside] = IGNORED if objects.difficult[i] else objects.classes[i] + 1
            instances[inside] = 0 if objects.crowd[i] or objects.difficult[i] else i + 1
        return RawMap(values, instances, crowds=int(objects.crowd.sum()))

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes of hashes of the masks, their classes and flags."""
        target = self.source.target
        return digests_of(
            json.dumps(
                [[own.classes.tolist(), own.crowd.tolist(), own.difficult.tolist(), size.tolist()], own.masks],
                default=repr,
            ).encode()
            for own, size in zip(target.objects, target.sizes, strict=True)
        )
