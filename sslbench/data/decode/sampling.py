"""Sampling of the frames of a video: spread over it, by stride, by time, or by number; one clip or several."""

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from sslbench.arrays import ByteArray, FloatArray, IntArray
from sslbench.config import setting
from sslbench.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

_VERSION = 1
"""Raised when the same settings give other frames or pixels; part of the keys of features."""
_TIME = re.compile(r"\d+(\.\d+)?s")
_TOLERANCE = 1e-6  # seconds; time stamps are fractions of a second


class TooFewFrames(Exception):  # noqa: N818 (a state of a file, which is then counted as unreadable)
    """Video with fewer frames than asked for; the text is the reason."""


@dataclasses.dataclass(frozen=True)
class ClipOptions:
    """Options behind a '?' of any videos: videos/?frames=16&stride=4&clips=2.

    Raises:
        UsageError: settings that exclude each other, or without effect.

    >>> ClipOptions(frames=3, stride=2).rows(np.arange(9) / 25)
    array([2, 4, 6])
    """

    unit: Literal["clip"] = setting("clip", "unit of a sample: the clips of a video")
    frames: int = setting(16, "frames of a clip", within="[1, 1024]")
    stride: int = setting(
        0, "distance between the frames of a clip, in frames of the file; 0: spread over the video", within="[0, inf)"
    )
    fps: float = setting(0.0, "frames per second of a clip, by time stamps, in place of a stride", within="[0, inf)")
    clips: int = setting(1, "clips of a video, evenly spaced; needs stride or fps", within="[1, 256]")
    crops: int = setting(1, "squares of every clip, evenly along the longer side; 1: whole frames", within="[1, 16]")
    average: Literal["features", "crops", "views"] = setting(
        "features", "average in test: of features; of the probabilities of crops; of all views, clips times crops"
    )
    at: str = setting("", "frames by number from 0 (0|12|30) or by time (0.5s|1s|2s), in place of all these")
    short: Literal["stop", "repeat"] = setting("stop", "video shorter than a clip: unreadable, or frames of it again")

    def __post_init__(self) -> None:
        others = [name for name in ("frames", "stride", "fps", "clips", "short") if self._given(name)]
        if self.at and others:
            raise UsageError(
                f"at={self.at} names the frames, so {others[0]}= has no effect", f"Leave out {others[0]}=."
            )
        if self.stride and self.fps:
            raise UsageError("stride= and fps= exclude each other", "Give the distance in frames, or the rate.")
        if self.clips > 1 and not (self.stride or self.fps):
            raise UsageError(
                f"clips={self.clips}: one clip is spread over the whole video, so others would be the same",
                "Give the distance of frames as well: stride=4, or fps=4.",
            )
        if self.average != "features" and self.views == 1:
            raise UsageError(
                f"average={self.average} has no effect on one {'crop' if self.average == 'crops' else 'clip'}",
                "Give crops=3 as well, or with average=views clips=2 and stride=4.",
            )
        if self.at and not (self._times() or all(word.isdecimal() for word in self._words())):
            raise UsageError(f"at={self.at} should be numbers of frames, 0|12|30, or times in seconds, 0.5s|1s|2s")

    def _given(self, name: str) -> bool:
        return bool(getattr(self, name) != next(f.default for f in dataclasses.fields(self) if f.name == name))

    def _words(self) -> list[str]:
        return [word.strip() for word in self.at.replace("|", ",").split(",")]

    def _times(self) -> list[float]:
        """Return the times in `at`, in seconds; [] where it has none, or others beside them."""
        words = self._words()
        return [float(word[:-1]) for word in words] if all(map(_TIME.fullmatch, words)) else []

    @property
    def total(self) -> int:
        """Number of frames of a video, over all clips and their crops."""
        return (len(self._words()) if self.at else self.frames * self.clips) * self.crops

    @property
    def passes(self) -> int:
        """Number of parts of a video that a network of clips takes one by one."""
        return self.clips * self.crops

    @property
    def views(self) -> int:
        """Number of parts of a video that have probabilities of their own."""
        return {"features": 1, "crops": self.crops, "views": self.passes}[self.average]

    def by_view(self, frames: "Tensor") -> "Tensor":
        """Return the frames of the views one after the other, (B * views, n * C, H, W), of videos (B, total * C, H, W).

        >>> import torch
        >>> videos = torch.arange(4.0).reshape(1, 4, 1, 1)  # clip 1 at places 1 and 2, clip 2 at places 1 and 2
        >>> options = ClipOptions(frames=1, stride=1, clips=2, crops=2, average="crops")
        >>> options.by_view(videos).squeeze().tolist()
        [[0.0, 2.0], [1.0, 3.0]]
        """
        if self.views == 1:
            return frames
        parts = frames.reshape(len(frames), -1, self.crops, frames.shape[1] // self.passes, *frames.shape[2:])
        if self.average == "crops":
            parts = parts.transpose(1, 2)
        return parts.reshape(len(frames) * self.views, -1, *frames.shape[2:])

    def key(self) -> bytes:
        """Return the text that decides the frames and the features, for keys."""
        # Other videos have the keys from before there were crops and averages.
        added = {"crops": 1, "average": "features"}
        fields = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != added.get(f.name)]
        return f"clip {_VERSION} {[(name, getattr(self, name)) for name in fields]}".encode()

    def text(self) -> str:
        """Return the sampling in words.

        >>> ClipOptions(frames=8, fps=4, clips=2).text(), ClipOptions().text()
        ('2 clips of 8 frames (4 per second)', '16 frames (spread over the video)')
        """
        crops = f"{self.crops} crops" if self.crops > 1 else ""
        if self.average != "features":
            crops = ", ".join(filter(None, (crops, f"probabilities averaged over {self.average}")))
        if self.at:
            return f"frames at {self.at}" + (f" ({crops})" if crops else "")
        clips = "" if self.clips == 1 else f"{self.clips} clips of "
        spread = f"{self.fps:g} per second" if self.fps else f"stride {self.stride}"
        if not self.stride and not self.fps:
            spread = "spread over the video"
        how = ", ".join(filter(None, (spread, crops)))
        return f"{clips}{self.frames} {'frame' if self.frames == 1 else 'frames'} ({how})"

    def rows(self, times: FloatArray) -> IntArray:
        """Return the numbers of the frames, (total / crops,), clip by clip.

        A clip alone lies in the middle of the video. Spread frames are the middles of equal parts (Wang et al. 2016,
        TSN, section 3.1, in place of a random frame of each part).

        Args:
            times: seconds of the N frames from the first one, ascending.

        Raises:
            TooFewFrames: the video is too short.
        """
        count = len(times)
        if self.at:
            return self._named(times)
        if not self.stride and not self.fps:
            self._need(self.frames, count)
            return ((np.arange(self.frames) + 0.5) * count / self.frames).astype(np.int64)
        if self.stride:
            offsets = np.arange(self.frames) * self.stride
            self._need(int(offsets[-1]) + 1, count)
            room = max(count - 1 - int(offsets[-1]), 0)
            starts = np.floor(self._places() * room).astype(np.int64)
            return np.asarray(np.minimum(starts[:, None] + offsets, count - 1).reshape(-1))
        seconds = np.arange(self.frames) / self.fps
        left = times[-1] - seconds[-1]
        if left < -_TOLERANCE and self.short == "stop":
            raise TooFewFrames(
                f"{times[-1]:.2f} s from its first to its last frame; {self.frames} frames at {self.fps:g} per second "
                f"take {seconds[-1]:.2f} s"
            )
        wanted = (self._places() * max(left, 0.0))[:, None] + seconds
        return np.asarray(np.searchsorted(times, wanted.reshape(-1) + _TOLERANCE, side="right") - 1)

    def squares(self, frames: Sequence[ByteArray]) -> list[ByteArray]:
        """Return the crops of the frames of `rows`, (H, W, C) each: all of one clip and place, then the next place.

        Squares of the shorter side, from the beginning to the end of the longer one (three of them: Wang et al. 2018,
        "Non-local neural networks", section 4.1).

        >>> frame = np.arange(6, dtype=np.uint8).reshape(1, 6, 1)
        >>> [int(each.item()) for each in ClipOptions(frames=1, crops=3).squares([frame])]
        [0, 2, 5]
        """
        if self.crops == 1:
            return list(frames)
        height, width = frames[0].shape[:2]
        side, size = min(height, width), len(frames) * self.crops // self.passes
        starts = (np.arange(self.crops) * (max(height, width) - side) // (self.crops - 1)).tolist()
        clips = [frames[i : i + size] for i in range(0, len(frames), size)]
        return [
            frame[start : start + side] if height > width else frame[:, start : start + side]
            for clip in clips
            for start in starts
            for frame in clip
        ]

    def _places(self) -> FloatArray:
        """Return the beginnings of the clips, as shares of the room that a clip has."""
        return np.array([0.5]) if self.clips == 1 else np.linspace(0, 1, self.clips)

    def _named(self, times: FloatArray) -> IntArray:
        if named := self._times():
            asked = np.array(named)
            if asked.max() > times[-1] + _TOLERANCE:
                raise TooFewFrames(f"its last frame is at {times[-1]:.2f} s, and at={self.at} asks for later ones")
            return np.asarray(np.searchsorted(times, asked + _TOLERANCE, side="right") - 1)
        rows = np.array([int(word) for word in self._words()], dtype=np.int64)
        if rows.max() >= len(times):
            raise TooFewFrames(f"{len(times)} frames, and at={self.at} asks for number {rows.max()} (from 0)")
        return rows

    def _need(self, needed: int, count: int) -> None:
        if count < needed and self.short == "stop":
            raise TooFewFrames(
                f"{count} frames, and a clip of {self.frames} frames with stride {max(self.stride, 1)} takes {needed}"
            )
