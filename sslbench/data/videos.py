"""Videos: with masks of objects, of classes of parts, or with joints, in every frame; and frames of video files."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from sslbench.arrays import ByteArray, FloatArray, IntArray, OfRows
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.images import Files, digests_with
from sslbench.data.maps.files import load
from sslbench.data.maps.types import SAME_SIZE, size_difference
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.wording import refuse_problems, some
from sslbench.errors import DataError
from sslbench.preprocessing import MAX_PIXELS
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Images
from sslbench.targets.videos import UNLABELLED, Ids, ObjectIds, Parts, Poses, Tracks, inside


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

    `videos` maps names to the positions of their frames. `classes` names the numbers of the masks, background first; ()
    if these are numbers of objects.
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
    short, empty = list[str](), list[str]()
    for video, rows in zip(ids, frames, strict=True):
        if len(rows) < least:
            short.append(f"{video} ({len(rows)})")
            continue
        first_ids = masks.read_ids(rows[0])
        if not (first_ids[first_ids != UNLABELLED] if classes else first_ids).any():
            empty.append(video)
    problems = {few: short, f"have no {thing} in the first frame, so there is nothing to track": empty}
    refuse_problems(name, "videos", len(ids), problems, "Leave these videos out.")
    first = images.select(np.array([rows[0] for rows in frames], dtype=np.int64))
    target = Parts(classes, images, masks, frames) if classes else Tracks(images, masks, frames)
    return Source(name, ids, target, first, notes)


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

    `videos` maps names to the positions of their frames, `sizes` to height and width, `joints` to (T, J, 2), see
    `Poses`.
    """
    if not videos:
        raise DataError(f"{name} has no video")
    ids = tuple(sorted(videos))
    problems: dict[str, list[str]] = {}
    for video in ids:
        if problem := _problem(joints[video], sizes[video]):
            problems.setdefault(problem, []).append(video)
    refuse_problems(name, "videos", len(ids), problems, "Leave these videos out.")
    frames = tuple(tuple(videos[video]) for video in ids)
    first = images.select(np.array([rows[0] for rows in frames], dtype=np.int64))
    target = Poses(names, images, frames, tuple(joints[video] for video in ids))
    return Source(name, ids, target, first, notes)


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


@dataclasses.dataclass(frozen=True, eq=False)
class PaletteMasks(OfRows):
    """Masks in palette or grey images, one per frame; see `targets.videos.ObjectIds`.

    Attributes:
        files: of the frames.
        classes: number of classes, and pixels with 255 have none; 0 for masks of objects, where 255 is background.
    """

    of_rows = ("files",)
    files: Files
    classes: int = 0

    def read_ids(self, row: int) -> Ids:
        """Return the objects or classes of a frame."""
        path = self.files.path(row)
        try:
            ids = load(self.files, row, MAX_PIXELS).indices()
        except UnreadableImage as error:
            raise DataError(f"{path} cannot be used: {error.reason}") from error
        # In DAVIS 255 is void, which counts as background.
        if not self.classes:
            ids[ids == UNLABELLED] = 0
        elif (beyond := ids[(ids >= self.classes) & (ids != UNLABELLED)]).size:
            raise DataError(f"{path} has class {beyond.max()}; there are the classes 0 to {self.classes - 1}, and 255")
        return ids

    def fingerprint(self) -> str:
        """Return a hash of the files."""
        return self.files.digests().tobytes().hex()


def frames_in(folder: Path, pattern: str) -> list[str]:
    """Return the names of the frames of a video in order: numbers without leading zeros are sorted as numbers."""
    return sorted((file.name for file in matching(folder, pattern)), key=lambda name: (len(name), name))


def palette_videos(
    name: str, photos: Path, annotations: Path, names: Sequence[str], *, classes: tuple[str, ...] = ()
) -> Source:
    """Return the videos PHOTOS/NAME/*.jpg with their masks ANNOTATIONS/NAME/*.png."""
    frames, videos = list[str](), dict[str, list[int]]()
    for video in names:
        own = [f"{video}/{Path(file).stem}" for file in frames_in(photos / video, "*.jpg")]
        videos[video] = list(range(len(frames), len(frames) + len(own)))
        frames += own
    missing = [frame for frame in frames if not (annotations / f"{frame}.png").is_file()]
    if missing:
        raise DataError(f"{name}: {len(missing):,} of {len(frames):,} frames have no mask: {some(missing, 5)}")
    both = [(size_in_file(photos / f"{f}.jpg"), size_in_file(annotations / f"{f}.png")) for f in frames]
    differ = [
        f"{frame} ({difference})"
        for frame, (own, mask) in zip(frames, both, strict=True)
        # 0, 0: the head of a file cannot be read, which decoding it explains.
        if (0, 0) not in (own, mask) and (difference := size_difference(mask, own, "the mask"))
    ]
    if differ:
        raise DataError(
            f"{name}: {len(differ):,} masks are not of the size of their frame: {some(differ, 3)}", SAME_SIZE
        )
    images = Files(tuple(f"{frame}.jpg" for frame in frames), str(photos))
    masks = PaletteMasks(Files(tuple(f"{frame}.png" for frame in frames), str(annotations)), len(classes))
    return videos_source(name, videos, images, masks, classes=classes)


MOST_FRAMES = 1000
"""Largest number of frames of a video: all of them are in memory at a time."""
_THREADS = 8


def frames_of(videos: Source, fewest: int = 1) -> Source:
    """Return the frames of videos in order, unlabelled; their ids are VIDEO/0000, VIDEO/0001 and so on."""
    if not isinstance(videos.images, Files):
        raise DataError(f"{videos.name}: videos should be files in folders")
    files = videos.images
    with ThreadPoolExecutor(_THREADS) as pool:
        counts = list(pool.map(lambda index: _count(_file(files, index)), range(len(files))))
    for index, count in enumerate(counts):
        if not fewest <= count <= MOST_FRAMES:
            problem = f"has {count:,} frames" if count > 0 else "is not a video that OpenCV can read"
            raise DataError(f"{files.path(index)} {problem}; {fewest} to {MOST_FRAMES:,} are needed")
    places = [(video, frame) for video, count in enumerate(counts) for frame in range(count)]
    ids = [f"{videos.ids[video]}/{frame:04d}" for video, frame in places]
    order = sorted(range(len(ids)), key=ids.__getitem__)
    frames = VideoFrames(files, np.array([places[i] for i in order], dtype=np.int64).reshape(-1, 2))
    return Source(videos.name, tuple(ids[i] for i in order), Unlabelled(len(ids)), frames)


def _file(files: Files, index: int) -> str:
    return os.path.join(files.root, files.paths[index])  # noqa: PTH118


def _count(file: str) -> int:
    """Return the number of frames that a video file states; 0 where it cannot be opened."""
    import cv2

    capture = cv2.VideoCapture(file)
    try:
        return max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0) if capture.isOpened() else 0
    finally:
        capture.release()


def decoded_frames(file: str) -> list[ByteArray]:
    """Return the frames of a video file in order, each RGB (H, W, 3).

    By OpenCV, since ImageNet-P should need no extra package. PyAV, which clips need, gives the same bits for its sizes;
    of odd sizes it interpolates chroma otherwise.
    """
    import cv2

    capture = cv2.VideoCapture(file)
    try:
        if not capture.isOpened():
            raise OSError("is not a video that OpenCV can read")
        stated, found = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), list[ByteArray]()
        while len(found) <= MOST_FRAMES:
            there, frame = capture.read()
            if not there:
                break
            # OpenCV has blue first.
            found.append(np.ascontiguousarray(frame[:, :, ::-1], dtype=np.uint8))
    finally:
        capture.release()
    # At a frame that it cannot decode OpenCV ends without an error.
    if len(found) != stated:
        raise OSError(f"has {len(found)} readable frames of {stated}")
    return found


@dataclasses.dataclass(eq=False)
class VideoFrames(OfRows):
    """Frames of video files; those of the video that was decoded last are kept.

    Attributes:
        videos: the files.
        places: int64 (N, 2), number of the video and of the frame in it, of each frame.
    """

    of_rows = ("places",)
    videos: Files
    places: IntArray
    _last: tuple[int, list[ByteArray]] | None = dataclasses.field(default=None, init=False)

    def read(self, index: int) -> ByteArray:
        """Return a frame, RGB (H, W, 3)."""
        video, frame = self.places[index].tolist()
        if self._last is None or self._last[0] != video:
            self._last = video, decoded_frames(_file(self.videos, video))
        return self._last[1][int(frame)]

    def path(self, index: int) -> str:
        """Return the file and the number of the frame: 'tilt/cat/1.mp4 (frame 3)'."""
        video, frame = self.places[index].tolist()
        return f"{self.videos.path(video)} (frame {frame})"

    def digests(self) -> ByteArray:
        """Return a digest of the file and the number of the frame, (N, 16); zeros for unreadable files."""
        contents = self.videos.digests()[self.places[:, 0]]
        return digests_with(contents, [f"frame {frame}".encode() for frame in self.places[:, 1]])

    def shards(self) -> IntArray:
        """Return the number of each frame's video, so that its frames are read together."""
        return self.places[:, 0]

    def fetched(self) -> IntArray:
        """Return zeros: the files are local."""
        return np.zeros(len(self.videos), dtype=np.int64)
