"""Decoding of a video file by PyAV: the chosen frames, one after the other in the channels of a picture."""

import dataclasses
import io
from collections.abc import Collection
from typing import Any, BinaryIO

import numpy as np

from sslbench.arrays import ByteArray, FloatArray
from sslbench.data.decode.picture import RGB, Decoded, UnreadableImage, Wanted, as_wanted, check_size
from sslbench.data.decode.sampling import ClipOptions, TooFewFrames

_MOST_MISSING = 0.1
"""Share of packets that may hold no frame: those at a cut, and those that an encoder left empty."""
_TURNED = "turned upright (display matrix)"


@dataclasses.dataclass(frozen=True)
class ClipHandler:
    """Handler of video files: decodes the frames of their clips.

    Attributes:
        options: sampling of the frames.
        wanted: form of every frame.
    """

    options: ClipOptions
    wanted: Wanted = RGB

    def __call__(self, path: str, buffer: BinaryIO) -> Decoded:
        """Decode the clips of a video, (T * 3, H, W); never returns None."""
        return as_wanted(decode_clips(buffer.read(), path, self.options, self.wanted.max_pixels), path, self.wanted)

    def wanting(self, wanted: Wanted) -> "ClipHandler":
        """Return the handler for other frames."""
        return dataclasses.replace(self, wanted=wanted)


def decode_clips(content: bytes, path: str, options: ClipOptions, max_pixels: int) -> Decoded:
    """Decode the frames that the options choose, as a picture (T * 3, H, W) of T frames.

    A video is decoded from its beginning, since seeking is exact in few formats only.

    Raises:
        UnreadableImage: no video, no video stream, a damaged or cut file, too few frames, too many pixels.
    """
    import av
    import torch

    try:
        times = _times(content, path, options, max_pixels)
        rows = options.rows(times)
        frames, turned, number = _decoded(content, rows.tolist(), path)
        if number <= rows.max():
            if number < (1 - _MOST_MISSING) * len(times):
                raise UnreadableImage(path, f"a damaged video: {number} readable frames of {len(times)}")
            rows = options.rows(times[:number])
            frames, turned, _ = _decoded(content, rows.tolist(), path)
    except TooFewFrames as error:
        raise UnreadableImage(path, str(error)) from error
    except av.error.FFmpegError as error:
        raise UnreadableImage(path, f"not a readable video ({error.strerror or type(error).__name__})") from error
    chosen = [frames[row] for row in rows.tolist()]
    if len({frame.shape for frame in chosen}) > 1:
        raise UnreadableImage(path, "frames of different sizes")
    # Interleaved in memory, (H, W, T * 3), as decoders of pictures write them.
    views = options.squares(chosen)
    picture = torch.from_numpy(np.concatenate(views, axis=2)).permute(2, 0, 1)
    return Decoded(picture, (_TURNED,) if turned else (), frames=len(views))


def _times(content: bytes, path: str, options: ClipOptions, max_pixels: int) -> FloatArray:
    """Return the seconds of all frames from the first one, (N,), in the order of showing; nothing is decoded."""
    import av

    with av.open(io.BytesIO(content), "r") as container:
        stream = _stream(container, path)
        # Before anything is decoded: all frames of a sample are in memory together.
        check_size(stream.width, stream.height * options.total, path, max_pixels)
        # The last packet is empty; an edit list discards packets.
        packets = [p for p in container.demux(stream) if p.size and not p.is_discard]
        stated, rate, base = stream.frames, stream.average_rate, stream.time_base
    if not packets:
        raise UnreadableImage(path, "a video without frames")
    if len(packets) < stated * (1 - _MOST_MISSING):
        raise UnreadableImage(path, f"a cut video: {len(packets)} frames of {stated}")
    stamps = [packet.pts for packet in packets]
    if base is None or any(stamp is None for stamp in stamps):
        return np.arange(len(packets)) / float(rate or 25)
    ordered = np.sort(np.array(stamps, dtype=np.int64))
    return np.asarray((ordered - ordered[0]) * float(base))


def _stream(container: Any, path: str) -> Any:
    """Return the video stream of a file; the picture of an album's cover is none."""
    import av

    cover = av.stream.Disposition.attached_pic
    streams = [each for each in container.streams.video if not each.disposition & cover]
    if not streams:
        kinds = ", ".join(sorted({each.type for each in container.streams})) or "nothing"
        raise UnreadableImage(path, f"no video stream in it ({kinds})")
    return streams[0]


def _decoded(content: bytes, rows: Collection[int], path: str) -> tuple[dict[int, ByteArray], bool, int]:
    """Return the wanted frames (H, W, 3) by their number, whether one was turned, and the number of frames decoded."""
    import av

    wanted, last, turned, number = set(rows), max(rows), False, 0
    frames = dict[int, ByteArray]()
    with av.open(io.BytesIO(content), "r") as container:
        stream = _stream(container, path)
        stream.codec_context.thread_count = 1  # the workers are as many as the cores
        for number, frame in enumerate(container.decode(stream), 1):
            if number - 1 in wanted:
                if frame.is_corrupt:
                    raise UnreadableImage(path, f"a damaged video: frame {number - 1} is incomplete")
                # Degrees anticlockwise.
                quarters = round(frame.rotation / 90) % 4
                frames[number - 1] = np.rot90(frame.to_ndarray(format="rgb24"), quarters)
                turned = turned or quarters > 0
            if number > last:
                break
    return frames, turned, number
