"""Videos: with masks of objects, with masks of classes of parts, with joints of persons."""

import dataclasses
import hashlib
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.dense import poses, video
from sslbench.metrics.dense.pooling import counts_of_rows
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.label_maps import ClassAreas
from sslbench.targets.target import Images, Rows, SeveralImages, WithoutValues

Ids = npt.NDArray[np.int32]
"""(H, W) numbers of objects or classes, 0 for background."""

UNLABELLED = 255
"""Number of pixels without a class, in masks of classes."""


def inside(joints: FloatArray, size: tuple[int, int]) -> BoolArray:
    """Return the joints (..., 2) that lie within an image of this height and width, (...).

    >>> inside(np.array([[0.0, 3.4], [-2.0, 1.0], [2.0, 3.6]]), (4, 4)).tolist()
    [True, False, False]
    """
    # Pixels reach half a pixel around their centres, which lie at whole numbers.
    low, high = np.full(2, -0.5), np.array(size[::-1]) - 0.5
    return np.asarray(((joints >= low) & (joints < high)).all(axis=-1))


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


class Videos(SeveralImages, WithoutValues):
    """N videos of M frames in all.

    Attributes:
        images: M frames.
        frames: of each video, the positions of its frames in order.
    """

    frames: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.frames)

    def rows(self, index: int) -> tuple[int, ...]:
        """Return the positions of the frames of a video, in order."""
        return self.frames[index]

    def moved(self, indices: IntArray) -> tuple[IntArray, dict[str, Any]]:
        """Return the frames of the videos at `indices`, and the fields of these videos with those frames only."""
        chosen = [self.frames[i] for i in indices]
        used = np.array([row for rows in chosen for row in rows], dtype=np.int64)
        # Frames are renumbered, since only those of the chosen videos are kept.
        ends = np.cumsum([len(rows) for rows in chosen]).tolist()
        frames = tuple(tuple(range(end - len(rows), end)) for rows, end in zip(chosen, ends, strict=True))
        return used, {"images": self.images.select(used), "frames": frames}


class MaskedVideos(Videos):
    """Videos with a mask of every frame.

    Attributes:
        masks: of the M frames.
    """

    sized = True
    masks: ObjectIds

    def select(self, indices: IntArray) -> Self:
        """Return the videos at `indices`, in that order, with their frames only."""
        used, fields = self.moved(indices)
        return self.changed(masks=self.masks.select(used), **fields)

    def content_key(self) -> bytes:
        """Return the key of frames, masks and their order."""
        digest = hashlib.sha256(self.images.digests().tobytes())
        digest.update((self.masks.fingerprint() + repr(self.frames)).encode())
        return ("tuples" + digest.hexdigest()[:32]).encode()


@dataclasses.dataclass(frozen=True, eq=False)
class Tracks(MaskedVideos):
    """Videos with masks of objects, of which those in the first frame are followed."""

    name = "tracks"
    title = "videos with masks of objects"
    default = ("textures:videos", "videos of drawn textures")
    metric = "jf_mean"
    given_columns = video.TRACK_COLUMNS
    classes = ()
    images: Images
    masks: ObjectIds
    frames: tuple[tuple[int, ...], ...]

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return region similarity and contour accuracy."""
        return [video.measure_of_videos(scores)]


@dataclasses.dataclass(frozen=True, eq=False)
class Parts(MaskedVideos, ClassAreas):
    """Videos with masks of classes, background first."""

    name = "parts"
    title = "videos with masks of classes"
    default = ("textures:videos", "videos of drawn textures")
    metric = "mIoU"
    classes: tuple[str, ...]
    images: Images
    masks: ObjectIds
    frames: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Poses(Videos):
    """Videos with the joints of a person in every frame.

    Attributes:
        classes: names of the J joints.
        joints: of each video of T frames, (T, J, 2) x and y in pixels; (0, 0) is the centre of the first pixel.
    """

    name = "poses"
    title = "videos with joints of persons"
    default = ("textures:videos", "videos of drawn textures")
    metric = "pose_pck@0.1"
    sized = False
    classes: tuple[str, ...]
    images: Images
    frames: tuple[tuple[int, ...], ...]
    joints: tuple[FloatArray, ...]

    def select(self, indices: IntArray) -> Self:
        """Return the videos at `indices`, in that order, with their frames only."""
        _, fields = self.moved(indices)
        return self.changed(joints=tuple(self.joints[i] for i in indices), **fields)

    def content_key(self) -> bytes:
        """Return the key of frames, joints and their order."""
        digest = hashlib.sha256(self.images.digests().tobytes())
        digest.update(repr(self.frames).encode())
        for each in self.joints:
            digest.update(repr(each.shape).encode() + np.ascontiguousarray(each, dtype=np.float64).tobytes())
        return ("tuples" + digest.hexdigest()[:32]).encode()

    @classmethod
    def columns(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the counts of all joints."""
        return tuple(f"{count} {name}" for count in poses.COUNTS for name in classes)

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the shares of frames with a joint at its place."""
        return [poses.pose_measure(counts_of_rows(scores), units)]

    @classmethod
    def per_class(cls, values: Rows, scores: Rows, classes: int) -> list[float]:
        """Return the share of every joint."""
        return list(map(float, poses.pck(counts_of_rows(scores).sum(axis=0))[:, 0]))
