"""Videos of a COCO or kwcoco manifest whose annotations have masks and track ids."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.arrays import IntArray
from sslbench.data.formats.coco.columns import FRAME, VIDEO, Rows
from sslbench.data.objects import ObjectSource
from sslbench.data.source import Source
from sslbench.data.videos import videos_source
from sslbench.errors import DataError
from sslbench.metrics.detection import masks as rle
from sslbench.targets.objects import Objects
from sslbench.targets.videos import Ids


@dataclasses.dataclass(frozen=True, eq=False)
class TrackMasks:
    """Masks of M frames, drawn on reading; see `tracks.ObjectIds`.

    Of masks that overlap, the smaller one is drawn last and stays whole.

    Attributes:
        source: frames with masks.
        numbers: of each frame, the number of each of its objects in the video, from 1 on.
        chosen: rows of them that are selected; None: all.
    """

    source: ObjectSource
    numbers: tuple[IntArray, ...]
    chosen: tuple[int, ...] | None = None

    def _row(self, index: int) -> int:
        return index if self.chosen is None else self.chosen[index]

    def read_ids(self, row: int) -> Ids:
        """Return the objects of a frame."""
        row = self._row(row)
        masks = self.source.masks_of(row)
        height, width = (int(side) for side in self.source.target.sizes[row])
        ids = np.zeros((height, width), dtype=np.int32)
        for i in np.argsort(-rle.areas(masks), kind="stable").tolist():
            ids[rle.decode(masks[i])] = self.numbers[row][i]
        return ids

    def select(self, indices: IntArray) -> "TrackMasks":
        """Return the masks at `indices`, in that order."""
        chosen = [int(i) for i in indices]
        return TrackMasks(self.source, self.numbers, tuple(self._row(i) for i in chosen))

    def fingerprint(self) -> str:
        """Return a hash of masks and numbers."""
        digest = hashlib.sha256()
        for row in range(len(self.numbers)) if self.chosen is None else self.chosen:
            objects, numbers = self.source.target.objects[row], self.numbers[row]
            digest.update(json.dumps([objects.masks, numbers.tolist()], default=repr).encode())
        return digest.hexdigest()


def has_tracks(file: Path) -> bool:
    """Return whether a manifest mentions track ids."""
    try:
        return b'"track_id"' in file.read_bytes()
    except OSError:
        return False


def video_sources(sources: Mapping[str, ObjectSource], rows: Rows) -> dict[str, Source]:
    """Return the videos of every split."""
    tracks = {row["id"]: row.get("track_id") for row in rows["annotations"]}
    return {split: _videos(source, tracks) for split, source in sources.items()}


def _videos(source: ObjectSource, tracks: Mapping[Any, Any]) -> Source:
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
    return videos_source(source.name, videos, source.images, TrackMasks(source, tuple(numbers)), source.notes)


def _annotations(objects: Objects) -> list[int]:
    return [] if objects.numbers is None else [int(number) for number in objects.numbers]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
