"""Videos of a kwcoco manifest; their frames are its images."""

from collections.abc import Collection
from typing import Any

from sslbench.data.wording import some
from sslbench.errors import DataError

VIDEO, FRAME = "video", "frame_index"
"""Attributes of a frame: the name of its video, and its position there."""


class Videos:
    """Videos, and the frames among the images."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self._n = 0
        self._of_images: dict[int, tuple[int | str, str]] = {}  # position -> video and place in it
        self._names: dict[int | str, str] = {}

    def table(self, rows: object) -> None:
        """Take the list 'videos'."""
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{self.spec}: 'videos' is not a list of mappings")
        for row in rows:
            number = row.get("id")
            if not isinstance(number, int | str) or number in self._names:
                what = "not a whole number or a name" if not isinstance(number, int | str) else "there twice"
                raise DataError(f"{self.spec}: the id {number!r} of an entry of 'videos' is {what}")
            self._names[number] = str(row.get("name") or number)

    def add(self, image: dict[str, Any]) -> None:
        """Take an image, which may be a frame."""
        number = image.get("video_id")
        if number is not None and not isinstance(number, int | str):
            raise DataError(f"{self.spec}: video_id of 'images' should be a whole number or a name, not {number!r}")
        if number is not None:
            frame = image.get(FRAME)
            self._of_images[self._n] = number, "" if frame is None else str(frame).strip()
        self._n += 1

    def attributes(self, without: Collection[str] = ()) -> dict[str, list[str]]:
        """Return 'video' and 'frame_index' -> one text per image; columns without any are dropped."""
        used = {number for number, _ in self._of_images.values()}
        if used - set(self._names):
            unknown = sorted(used - set(self._names), key=str)
            raise DataError(f"{self.spec}: images have video_id {some(unknown)}, which is not in 'videos'")
        if not used:
            return {}
        alike = len(set(self._names.values())) < len(self._names)  # the names are not unique
        shown = {number: f"{name} ({number})" if alike else name for number, name in self._names.items()}
        frames = [self._of_images.get(i) for i in range(self._n)]
        found = {
            VIDEO: ["" if frame is None else shown[frame[0]] for frame in frames],
            FRAME: ["" if frame is None else frame[1] for frame in frames],
        }
        return {key: column for key, column in found.items() if key not in without and any(column)}
