"""Frames of video files as images: each video is decoded once, by OpenCV, for all of its frames."""

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray, OfRows
from sslbench.data.images import DIGEST_BYTES, UNREADABLE_DIGEST, Files, digest
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.targets.none import Unlabelled

MOST_FRAMES = 1000
"""Largest number of frames of a video: all of them are in memory at a time."""
_THREADS = 8

ByteArray = npt.NDArray[np.uint8]


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
    capture = cv2.VideoCapture(file)
    try:
        return max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0) if capture.isOpened() else 0
    finally:
        capture.release()


def decoded_frames(file: str) -> list[ByteArray]:
    """Return the frames of a video file in order, each RGB (H, W, 3)."""
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
        own, found = self.videos.digests(), np.zeros((len(self), DIGEST_BYTES), dtype=np.uint8)
        for row, (video, frame) in enumerate(self.places.tolist()):
            content = own[video].tobytes()
            if content != UNREADABLE_DIGEST:
                found[row] = np.frombuffer(digest(content + f"frame {frame}".encode()), dtype=np.uint8)
        return found

    def shards(self) -> IntArray:
        """Return the number of each frame's video, so that its frames are read together."""
        return self.places[:, 0]

    def fetched(self) -> IntArray:
        """Return zeros: the files are local."""
        return np.zeros(len(self.videos), dtype=np.int64)
