"""Videos with masks of objects, or of classes of parts, in every frame."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.labels import no_labels
from sslbench.data.source import Images, Source
from sslbench.data.wording import some
from sslbench.errors import DataError

Ids = npt.NDArray[np.int32]
"""(H, W) numbers of objects or classes, 0 for background."""
UNLABELLED = 255
"""Number of pixels without a class, in masks of classes."""


class ObjectIds(Protocol):
    """Masks of objects in M frames, read one by one, from any process (an implementation must be picklable)."""

    def read_ids(self, row: int) -> Ids:
        """Return the objects of a frame; a number stands for the same object in all frames of a video.

        In masks of classes a number stands for the same class in all videos.

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

    sized: ClassVar[bool | None] = True
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
    name: str,
    videos: Mapping[str, Sequence[int]],
    images: Images,
    masks: ObjectIds,
    notes: tuple[str, ...] = (),
    *,
    classes: tuple[str, ...] = (),
) -> Source:
    """Return the source of videos, in order of their names; the first masks are read to check them.

    Args:
        name: location as the user wrote it, with the split.
        videos: name -> positions of its frames, in order.
        images: all frames.
        masks: of the same frames.
        notes: of the source.
        classes: names of the numbers of the masks, background first; () if these are numbers of objects.

    Raises:
        DataError: there is no video; or videos have too few frames to score one (three, of classes two), or no object
            or part in the first frame. All of them are listed.
    """
    if not videos:
        raise DataError(f"{name} has no video")
    ids = tuple(sorted(videos))
    frames = tuple(tuple(videos[video]) for video in ids)
    least, few, thing = (
        (2, "have fewer than two frames: the first one is given", "part")
        if classes
        else (
            3,
            "have fewer than three frames: the first one is given, and neither it nor the last one is scored",
            "object",
        )
    )
    short = [f"{video} ({len(rows)})" for video, rows in zip(ids, frames, strict=True) if len(rows) < least]
    empty = [
        video
        for video, rows in zip(ids, frames, strict=True)
        if len(rows) >= least and not _with_content(masks.read_ids(rows[0]), classes)
    ]
    problems = {few: short, f"have no {thing} in the first frame, so there is nothing to track": empty}
    found = [
        f"{len(which):,} of {len(ids):,} videos {what}: {some(which, 5)}" for what, which in problems.items() if which
    ]
    if found:
        raise DataError(f"{name}:\n" + "\n".join(f"  {line}" for line in found), "Leave these videos out.")
    first = images.select(np.array([rows[0] for rows in frames], dtype=np.int64))
    labels = dataclasses.replace(no_labels(len(ids)), kind="parts" if classes else "tracks", classes=classes)
    return Source(name, ids, labels, first, notes, tuples=Videos(images, masks, frames))


def _with_content(ids: Ids, classes: tuple[str, ...]) -> bool:
    return bool((ids[ids != UNLABELLED] if classes else ids).any())
