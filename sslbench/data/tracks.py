"""Videos with masks of objects in every frame."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.labels import no_labels
from sslbench.data.source import Images, Source
from sslbench.data.wording import some
from sslbench.errors import DataError

Ids = npt.NDArray[np.int32]
"""(H, W) numbers of objects, 0 for background."""


class ObjectIds(Protocol):
    """Masks of objects in M frames, read one by one, from any process (an implementation must be picklable)."""

    def read_ids(self, row: int) -> Ids:
        """Return the objects of a frame; a number stands for the same object in all frames of a video.

        Raises:
            DataError: the masks cannot be read.
        """
        ...

    def select(self, indices: IntArray) -> "ObjectIds":
        """Return the masks at `indices`, in that order."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the masks."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Videos:
    """N videos of M frames in all; see `source.ImageTuples`.

    Attributes:
        images: M frames.
        masks: of the same M frames.
        frames: of each video, the positions of its frames in order.
    """

    images: Images
    masks: ObjectIds
    frames: tuple[tuple[int, ...], ...]

    def rows(self, index: int) -> tuple[int, ...]:
        """Return the positions of the frames of a video, in order."""
        return self.frames[index]

    def select(self, indices: IntArray) -> "Videos":
        """Return the videos at `indices`, in that order, with their frames only."""
        chosen = [self.frames[i] for i in indices]
        used = np.array([row for rows in chosen for row in rows], dtype=np.int64)
        ends = np.cumsum([len(rows) for rows in chosen]).tolist()
        moved = tuple(tuple(range(end - len(rows), end)) for rows, end in zip(chosen, ends, strict=True))
        return Videos(self.images.select(used), self.masks.select(used), moved)

    def fingerprint(self) -> str:
        """Return a hash of frames, masks and their order, 32 hex digits."""
        digest = hashlib.sha256(self.images.digests().tobytes())
        digest.update((self.masks.fingerprint() + repr(self.frames)).encode())
        return digest.hexdigest()[:32]


def videos_source(
    name: str, videos: Mapping[str, Sequence[int]], images: Images, masks: ObjectIds, notes: tuple[str, ...] = ()
) -> Source:
    """Return the source of videos, in order of their names; the first masks are read to check them.

    Args:
        name: location as the user wrote it, with the split.
        videos: name -> positions of its frames, in order.
        images: all frames.
        masks: of the same frames.
        notes: of the source.

    Raises:
        DataError: there is no video; or videos have fewer than three frames, of which the middle ones are scored, or no
            object in the first frame. All of them are listed.
    """
    if not videos:
        raise DataError(f"{name} has no video")
    ids = tuple(sorted(videos))
    frames = tuple(tuple(videos[video]) for video in ids)
    short = [f"{video} ({len(rows)})" for video, rows in zip(ids, frames, strict=True) if len(rows) < 3]
    empty = [
        video for video, rows in zip(ids, frames, strict=True) if len(rows) >= 3 and not masks.read_ids(rows[0]).any()
    ]
    problems = {
        "have fewer than three frames: the first one is given, and neither it nor the last one is scored": short,
        "have no object in the first frame, so there is nothing to track": empty,
    }
    found = [
        f"{len(which):,} of {len(ids):,} videos {what}: {some(which, 5)}" for what, which in problems.items() if which
    ]
    if found:
        raise DataError(f"{name}:\n" + "\n".join(f"  {line}" for line in found), "Leave these videos out.")
    first = images.select(np.array([rows[0] for rows in frames], dtype=np.int64))
    labels = dataclasses.replace(no_labels(len(ids)), kind="tracks")
    return Source(name, ids, labels, first, notes, tuples=Videos(images, masks, frames))
