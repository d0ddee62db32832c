"""Masks of a COCO or kwcoco manifest (polygons or run lengths), drawn into label maps, or as objects of videos."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray, OfRows
from sslbench.data.decode.picture import UnreadableImage, check_size
from sslbench.data.formats.coco.columns import FRAME, VIDEO
from sslbench.data.images import digests_of
from sslbench.data.maps.classes import LabelMapOptions, with_ignored
from sslbench.data.maps.types import CodedMaps, Coding, RawMap, source_of_maps
from sslbench.data.objects import ObjectSource
from sslbench.data.source import Source
from sslbench.data.videos import videos_source
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection import masks as rle
from sslbench.targets.label_maps import IGNORED
from sslbench.targets.objects import Objects
from sslbench.targets.videos import Ids


@dataclasses.dataclass(frozen=True, eq=False)
class TrackMasks(OfRows):
    """Masks of M frames, drawn on reading; see `tracks.ObjectIds`.

    Of masks that overlap, the smaller one is drawn last and stays whole.

    Attributes:
        source: frames with masks.
        numbers: of each frame, the number of each of its objects in the video, from 1 on.
        rows: frames that count, in order.
    """

    of_rows = ("rows",)
    source: ObjectSource
    numbers: tuple[IntArray, ...]
    rows: IntArray

    def read_ids(self, row: int) -> Ids:
        """Return the objects of a frame."""
        row = int(self.rows[row])
        masks = self.source.masks_of(row)
        height, width = (int(side) for side in self.source.target.sizes[row])
        ids = np.zeros((height, width), dtype=np.int32)
        for i in np.argsort(-rle.areas(masks), kind="stable").tolist():
            ids[rle.decode(masks[i])] = self.numbers[row][i]
        return ids

    def fingerprint(self) -> str:
        """Return a hash of masks and numbers."""
        digest = hashlib.sha256()
        for row in self.rows.tolist():
            objects, numbers = self.source.target.objects[row], self.numbers[row]
            digest.update(json.dumps([objects.masks, numbers.tolist()], default=repr).encode())
        return digest.hexdigest()


def has_tracks(file: Path) -> bool:
    """Return whether a manifest mentions track ids."""
    try:
        return b'"track_id"' in file.read_bytes()
    except OSError:
        return False


def videos_of(source: ObjectSource, tracks: Mapping[Any, Any]) -> Source:
    """Return the videos of a split; `tracks` has the `track_id` of each annotation."""
    names = source.attributes.get(VIDEO, ("",) * len(source))
    if "" in names:
        raise DataError(f"{source.name}: {source.ids[names.index('')]} belongs to no video (video_id)")
    untracked = sum(tracks.get(number) is None for objects in source.target.objects for number in _annotations(objects))
    if untracked:
        raise DataError(f"{source.name}: {untracked:,} annotations have no track_id, so objects cannot be followed")
    indices = source.attributes.get(FRAME, ("",) * len(source))
    # By number: as text, frame 10 would come before frame 9.
    order = sorted(range(len(source)), key=lambda row: (names[row], _number(indices[row]), row))
    videos: dict[str, list[int]] = {}
    for row in order:
        videos.setdefault(names[row], []).append(row)
    numbers: list[IntArray] = [np.zeros(0, dtype=np.int64)] * len(source)
    for rows in videos.values():
        known: dict[Any, int] = {}
        for row in rows:  # objects of the first frame come first
            own = [
                known.setdefault(tracks[number], len(known) + 1) for number in _annotations(source.target.objects[row])
            ]
            numbers[row] = np.array(own, dtype=np.int64)
    return videos_source(
        source.name, videos, source.images, TrackMasks(source, tuple(numbers), np.arange(len(source))), source.notes
    )


def _annotations(objects: Objects) -> list[int]:
    return [] if objects.numbers is None else [int(number) for number in objects.numbers]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


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
