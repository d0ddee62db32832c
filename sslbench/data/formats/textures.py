"""Drawn textures: textures:images (images of one object), textures:videos (two objects that cross)."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.arrays import OfRows
from sslbench.data.containers.names import numbered_ids
from sslbench.data.format import NoOptions, Reader, SampleReader, SourceFormat, plain_reader
from sslbench.data.formats.boundaries import with_boundaries
from sslbench.data.formats.coco.masks import open_maps
from sslbench.data.images import Arrays
from sslbench.data.maps.classes import LabelMapOptions
from sslbench.data.maps.foreground import map_readers
from sslbench.data.objects.types import ObjectSource
from sslbench.data.source import Source
from sslbench.data.textures import (
    CLASSES,
    IMAGES,
    PREFIX,
    SIDE,
    VIDEOS,
    TexturedImages,
    TexturedVideos,
    draw_images,
    draw_videos,
)
from sslbench.data.tracks import videos_source
from sslbench.errors import UsageError
from sslbench.metrics.detection import masks as rle
from sslbench.targets.classes import Classes
from sslbench.targets.label_maps import Foreground
from sslbench.targets.objects import Boxes, Objects
from sslbench.targets.pixel_values import Boundaries
from sslbench.targets.videos import Ids, Tracks

_NAME = re.compile(rf"{PREFIX}(?P<what>images|videos)(-seed(?P<seed>\d{{1,9}}))?")
_NUMBERS = {"train": 72, "test": 48}
_VIDEOS, _FRAMES = 8, 12
_NOTE = "Drawn textures, an example: scores are not comparable with those of a benchmark."


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnIds(OfRows):
    """Objects of M drawn frames; see `tracks.ObjectIds`.

    Attributes:
        ids: int32 (M, H, W).
    """

    of_rows = ("ids",)
    ids: npt.NDArray[np.int32]

    def read_ids(self, row: int) -> Ids:
        """Return the objects of a frame."""
        return np.asarray(self.ids[row])

    def fingerprint(self) -> str:
        """Return a hash of the masks."""
        return hashlib.sha256(repr(self.ids.shape).encode() + np.ascontiguousarray(self.ids).tobytes()).hexdigest()


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'textures:'."""
    return spec.startswith(PREFIX)


def open(spec: str) -> dict[str, Source]:
    """Return the images of both splits, labelled with the class of their object."""
    sources = {}
    for split, drawn in _images(spec).items():
        name, images = f"{spec} ({split})", Arrays(drawn.images, f"{spec} ({split})")
        labels = Classes(CLASSES, drawn.classes)
        sources[split] = Source(name, numbered_ids(len(images)), labels, images, (_NOTE,))
    return sources


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """Return the images of both splits with box and mask of their object; see `open`."""
    sources = {}
    for split, drawn in _images(spec).items():
        n, name = len(drawn.classes), f"{spec} ({split})"
        sources[split] = ObjectSource(
            name,
            numbered_ids(n),
            Boxes(
                CLASSES,
                tuple(_object(drawn, i) for i in range(n)),
                sizes=np.full((n, 2), SIDE, dtype=np.int64),
                numbers=tuple(range(1, n + 1)),
                class_numbers=tuple(range(1, len(CLASSES) + 1)),
            ),
            Arrays(drawn.images, name),
            (_NOTE,),
        )
    return sources


def open_videos(spec: str) -> dict[str, Source]:
    """Return the videos with the masks of their objects, as a test part."""
    drawn = _videos(_seed(spec, "videos"))
    frames, name = drawn.frames.reshape(-1, *drawn.frames.shape[2:]), f"{spec} (test)"
    places = {video: range(i * _FRAMES, (i + 1) * _FRAMES) for i, video in enumerate(numbered_ids(_VIDEOS))}
    masks = DrawnIds(drawn.ids.reshape(-1, *drawn.ids.shape[2:]))
    return {"test": videos_source(name, places, Arrays(frames, name), masks, (_NOTE,))}


def _object(drawn: TexturedImages, index: int) -> Objects:
    mask = drawn.masks[index]
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], dtype=np.float32)
    no = np.zeros(1, dtype=np.bool_)
    area = np.array([mask.sum()], dtype=np.float64)
    return Objects(box, drawn.classes[index : index + 1], no, no, area, (rle.text(rle.encode(mask)),))


def _seed(spec: str, what: str) -> int:
    """Return the seed in a name."""
    match = _NAME.fullmatch(spec)
    if match is None:
        raise UsageError(
            f"there are no drawn textures '{spec}'",
            f"Known: {IMAGES}, {VIDEOS}; other drawings of them: {IMAGES}-seed1.",
        )
    if match["what"] != what:
        other = "`sslbench eval tracking` takes videos." if what == "images" else f"{IMAGES} are images."
        raise UsageError(f"{spec} holds no {what}", f"{other} Give {PREFIX}{what}.")
    return int(match["seed"] or 0)


def _images(spec: str) -> Mapping[str, TexturedImages]:
    return _both_splits(_seed(spec, "images"))


@functools.cache
def _both_splits(seed: int) -> Mapping[str, TexturedImages]:
    return {split: draw_images(n, test=split == "test", seed=seed) for split, n in _NUMBERS.items()}


@functools.cache
def _videos(seed: int) -> TexturedVideos:
    return draw_videos(_VIDEOS, frames=_FRAMES, seed=seed)


def _is_no_file(spec: str) -> bool:
    return recognises(spec) and not Path(spec).exists()


def _open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    return open_maps(spec, options, open_objects)


_MAPS = map_readers(lambda spec, _: _is_no_file(spec), _open_maps, LabelMapOptions)


def _open_boundaries(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    masks = _MAPS[Foreground].open(spec, options)
    return {split: with_boundaries(source, regions=True) for split, source in masks.items()}


FORMAT = SourceFormat(
    __doc__,
    SampleReader(recognises, lambda request: open(request.spec), NoOptions),
    {
        Boxes: plain_reader(_is_no_file, open_objects),
        **_MAPS,
        Boundaries: Reader(_MAPS[Foreground].recognises, _open_boundaries, LabelMapOptions),
        Tracks: plain_reader(_is_no_file, open_videos),
    },
)
