"""UCF101: one frame from the middle of each video, split 1.

The videos are offered as a .rar, which needs a program of its own: it has to be unpacked before.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sslbench.data.prepare.layout import LayoutPlan, members
from sslbench.data.prepare.official import Official
from sslbench.errors import DataError, UsageError

VIDEOS, LISTS = "UCF-101", "UCF101TrainTestSplits-RecognitionTask.zip"
ARCHIVES = (Official(VIDEOS, others=("UCF101.rar",)), Official(LISTS))
_LINE = re.compile(r"(\w+)/(v_\w+)\.avi(?: \d+)?")
_FRAME_BYTES = 40_000


def plan(archives: Mapping[str, Path]) -> LayoutPlan:
    """Plan train/ACTION/ and test/ACTION/ of JPEGs.

    Raises:
        UsageError: the videos are still packed.
    """
    videos = archives[VIDEOS]
    if not videos.is_dir():
        raise UsageError(
            f"Python cannot read the compression of {videos}",
            f"Unpack it (unrar x {videos.name}, or bsdtar -xf) and give the folder: --archive {VIDEOS}",
        )
    listed = _listed(archives[LISTS])

    def files() -> Iterator[tuple[str, Callable[[], bytes]]]:
        for part, action, video in listed:
            yield f"{part}/{action}/{video}.jpg", _middle_frame(videos / action / f"{video}.avi")

    return LayoutPlan(files(), len(listed) * _FRAME_BYTES)


def _listed(lists: Path) -> list[tuple[str, str, str]]:
    """Return (train or test, action, video) of split 1."""
    found = []
    for name, content in members(lists):
        part = {"trainlist01.txt": "train", "testlist01.txt": "test"}.get(name.rpartition("/")[2])
        if part is None:
            continue
        for number, line in enumerate(content().decode("utf-8", "replace").split("\n"), 1):
            if not line.strip():
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None:
                raise DataError(f"{lists}: {name}, line {number}: {line!a} is not 'ACTION/VIDEO.avi'")
            found.append((part, match[1], match[2]))
    if {part for part, _, _ in found} != {"train", "test"}:
        raise DataError(f"{lists} does not hold trainlist01.txt and testlist01.txt")
    return found


def _middle_frame(video: Path) -> Callable[[], bytes]:
    """Return a function that decodes a video up to its middle and encodes that frame as JPEG, quality 95."""

    def read() -> bytes:
        import cv2

        if not video.is_file():
            raise DataError(f"there is no {video}", "Unpack the whole archive.")
        capture = cv2.VideoCapture(str(video))
        try:
            middle = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) // 2
            frame = None
            for _ in range(middle + 1):  # seeking to a frame is inexact in these files
                good, picture = capture.read()
                frame = picture if good else frame
        finally:
            capture.release()
        if frame is None:
            raise DataError(f"{video} has no frame that can be decoded", "Unpack or download it again.")
        done, encoded = cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, 95])
        if not done:
            raise DataError(f"{video}: its middle frame cannot be written as JPEG")
        return bytes(encoded)

    return read
