"""Videos with the joints of a person in every frame."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.data.labels import no_labels
from sslbench.data.source import Images, Source
from sslbench.data.wording import some
from sslbench.errors import DataError


@dataclasses.dataclass(frozen=True, eq=False)
class Poses:
    """N videos of M frames in all; see `source.ImageTuples`.

    Attributes:
        images: M frames.
        frames: of each video, the positions of its frames in order.
        joints: of each video of T frames, (T, J, 2) x and y in pixels; (0, 0) is the centre of the first pixel.
    """

    sized: ClassVar[bool | None] = False
    images: Images
    frames: tuple[tuple[int, ...], ...]
    joints: tuple[FloatArray, ...]

    def rows(self, index: int) -> tuple[int, ...]:
        """Return the positions of the frames of a video, in order."""
        return self.frames[index]

    def select(self, indices: IntArray) -> "Poses":
        """Return the videos at `indices`, in that order, with their frames only."""
        chosen = [self.frames[i] for i in indices]
        used = np.array([row for rows in chosen for row in rows], dtype=np.int64)
        ends = np.cumsum([len(rows) for rows in chosen]).tolist()
        moved = tuple(tuple(range(end - len(rows), end)) for rows, end in zip(chosen, ends, strict=True))
        return Poses(self.images.select(used), moved, tuple(self.joints[i] for i in indices))

    def fingerprint(self) -> str:
        """Return a hash of frames, joints and their order, 32 hex digits."""
        digest = hashlib.sha256(self.images.digests().tobytes())
        digest.update(repr(self.frames).encode())
        for each in self.joints:
            digest.update(repr(each.shape).encode() + np.ascontiguousarray(each, dtype=np.float64).tobytes())
        return digest.hexdigest()[:32]


def inside(joints: FloatArray, size: tuple[int, int]) -> BoolArray:
    """Return the joints (..., 2) that lie within an image of this height and width, (...).

    >>> inside(np.array([[0.0, 3.4], [-2.0, 1.0], [2.0, 3.6]]), (4, 4)).tolist()
    [True, False, False]
    """
    low, high = np.full(2, -0.5), np.array(size[::-1]) - 0.5
    return np.asarray(((joints >= low) & (joints < high)).all(axis=-1))


def poses_source(
    name: str,
    videos: Mapping[str, Sequence[int]],
    images: Images,
    joints: Mapping[str, FloatArray],
    sizes: Mapping[str, tuple[int, int]],
    names: tuple[str, ...],
    notes: tuple[str, ...] = (),
) -> Source:
    """Return the source of videos, in order of their names.

    Args:
        name: location as the user wrote it, with the split.
        videos: name -> positions of its frames, in order.
        images: all frames.
        joints: name of a video -> (T, J, 2), see `Poses`.
        sizes: name of a video -> height and width of its frames.
        names: of the J joints.
        notes: of the source.

    Raises:
        DataError: there is no video; or videos have one frame, positions that are no numbers, fewer than two joints in
            the first frame, or a frame whose joints are all at one place. All of them are listed.
    """
    if not videos:
        raise DataError(f"{name} has no video")
    ids = tuple(sorted(videos))
    problems: dict[str, list[str]] = {}
    for video in ids:
        if problem := _problem(joints[video], sizes[video]):
            problems.setdefault(problem, []).append(video)
    if problems:
        lines = (f"  {len(v):,} of {len(ids):,} videos {what}: {some(v, 5)}" for what, v in problems.items())
        raise DataError(f"{name}:\n" + "\n".join(lines), "Leave these videos out.")
    frames = tuple(tuple(videos[video]) for video in ids)
    first = images.select(np.array([rows[0] for rows in frames], dtype=np.int64))
    labels = dataclasses.replace(no_labels(len(ids)), kind="poses", classes=names)
    return Source(name, ids, labels, first, notes, tuples=Poses(images, frames, tuple(joints[video] for video in ids)))


def _problem(joints: FloatArray, size: tuple[int, int]) -> str:
    if len(joints) < 2:
        return "have fewer than two frames: the first one is given"
    if not np.isfinite(joints).all():
        return "have joints whose positions are no finite numbers"
    given = inside(joints[0], size)
    if given.sum() < 2:
        return "have fewer than two joints inside the first frame"
    if not (np.ptp(joints[:, given], axis=1) > 0).any(axis=1).all():
        return "have a frame with all joints at one place, so that the person has no size"
    return ""
