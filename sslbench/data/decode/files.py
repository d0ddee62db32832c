"""Decoding of an encoded file or an array to a picture, equal to Pillow's bit for bit."""

import dataclasses
import struct

import numpy as np
import numpy.typing as npt
import torch

from sslbench.data.decode import arrays
from sslbench.data.decode.picture import RGB, Decoded, UnreadableImage, Wanted, check_size, from_array, upright
from sslbench.data.decode.pillow import decode_with_pillow as _decode_with_pillow
from sslbench.data.decode.pillow import orientation, strict_and_silent
from sslbench.preprocessing import MAX_PIXELS

try:
    from torchvision.io import ImageReadMode, decode_jpeg
except ImportError:  # deprecated by torchvision 0.29; Pillow gives the same pixels
    decode_jpeg = None

__all__ = ["MAX_PIXELS", "Decoded", "UnreadableImage", "Wanted", "decode"]

_BASELINE_OR_PROGRESSIVE = (0xC0, 0xC1, 0xC2)
_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)


def decode(data: bytes | npt.NDArray[np.uint8], path: str, wanted: Wanted = RGB) -> Decoded:
    """Decode a picture, by default to RGB, as Pillow's open, exif_transpose and convert('RGB') do.

    Baseline and progressive JPEG goes through torchvision.io, which is faster and gives the same pixels. PNG does not:
    torchvision's decoder can crash the process on damaged files and gains little. Differences from Pillow's
    convert('RGB'): samples of 16 bits keep their upper 8 (Pillow clips grey ones to white) and are refused
    where these are almost empty, float pictures are refused, because their range is unknown, and a fourth band of a
    TIFF is dropped only where the file calls it alpha. NumPy files (.npy, .npz) hold an array (H, W) or (H, W,
    channels); where other channels than RGB are wanted, TIFF is read with all its bands.

    Args:
        data: the encoded file; or an array (H, W) or (H, W, channels), uint8.
        path: name of the image in messages.
        wanted: channels, depth and maximum size.

    Raises:
        UnreadableImage: `data` hold no complete picture as wanted; a partial one is never returned.
    """
    if isinstance(data, np.ndarray):
        return from_array(data, path, wanted)
    if not data:
        raise UnreadableImage(path, "empty file")
    if arrays.is_numpy(data, path):
        return arrays.decode_numpy(data, path, wanted)
    if wanted.channels != 3 and arrays.is_tiff(data):
        return arrays.decode_tiff(data, path, wanted)
    with strict_and_silent(wanted.max_pixels):
        header = _jpeg_header(data)
        if header is not None:
            check_size(header.width, header.height, path, wanted.max_pixels)
            scale = _reduction(header, wanted)
            if scale > 1:
                return _decode_with_pillow(data, path, wanted, scale)
            if wanted.channels == 3 and decode_jpeg is not None and (decoded := _decode_jpeg(data, header)) is not None:
                return decoded
        return _decode_with_pillow(data, path, wanted)


@dataclasses.dataclass(frozen=True)
class _JpegHeader:
    width: int
    height: int
    channels: int
    has_metadata: bool  # an APP1 segment: EXIF or XMP, either of which may hold the orientation


def _jpeg_header(data: bytes) -> _JpegHeader | None:
    """Parse the segments before the first scan; None unless the data are an 8-bit grey or colour JPEG."""
    if data[:3] != b"\xff\xd8\xff":
        return None
    at, frame, has_metadata = 2, None, False
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        if marker == 0xDA:
            return _JpegHeader(*frame, has_metadata) if frame is not None else None
        if marker in _BASELINE_OR_PROGRESSIVE and length >= 8 and at + 10 <= len(data):
            precision, height, width, channels = struct.unpack_from(">BHHB", data, at + 4)
            if frame is not None or precision != 8 or channels not in (1, 3):
                return None
            frame = (width, height, channels)
        elif marker in _OTHER_FRAMES or not 0xC0 <= marker <= 0xFE or length < 2:
            return None
        has_metadata = has_metadata or marker == 0xE1
        at += 2 + length
    return None


def _reduction(header: _JpegHeader, wanted: Wanted) -> int:
    """Return the largest factor (8, 4, 2 or 1) by which a JPEG can be reduced and still be twice its resized size.

    Twice, as with Pillow's reducing_gap=2.0: libjpeg cuts off high frequencies that the resize's filter attenuates.
    On two detailed photographs the resized pictures were 0.8 to 2.8 levels off on average, with once 1.4 to 5.3.
    """
    if wanted.resize is None or wanted.channels != 3:
        return 1
    side = wanted.resize if isinstance(wanted.resize, int) else max(wanted.resize)  # EXIF may swap width and height
    return next((part for part in (8, 4, 2) if min(header.width, header.height) >= 2 * part * side), 1)


def _decode_jpeg(data: bytes, header: _JpegHeader) -> Decoded | None:
    """Decode with torchvision.io; return None on failure, so that Pillow decides and gives the reason."""
    try:
        image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
    except RuntimeError:
        return None
    decoded = Decoded(image, ("grey to RGB",) if header.channels == 1 else ())
    return upright(decoded, orientation(data) if header.has_metadata else 1)
