"""Files with a number, or a vector of three, for every pixel: .npy, .npz, .pfm, PNG of 8 or 16 bits and float TIFF.

Values are returned as they are stored; `values` turns them into metres and unit vectors.
"""

import io
import re
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from sslbench.data.decode.picture import UnreadableImage, check_size
from sslbench.data.decode.pillow import strict_and_silent
from sslbench.data.maps.files import refuse_turned, stored, white_of
from sslbench.preprocessing import MAX_PIXELS

SUFFIXES = (".npy", ".npz", ".pfm", ".png", ".tif", ".tiff")
"""Suffixes of files of values, in lower case."""

_PFM = re.compile(rb"(P[Ff])\s+(\d+)\s+(\d+)\s+(-?[\d.]+(?:[eE][-+]?\d+)?)[ \t\r]*\n")
_NAMES = ("depth", "depths", "normals", "normal", "arr_0")
_EXR = b"\x76\x2f\x31\x01"


def decode_values(data: bytes, path: str, max_pixels: int = MAX_PIXELS) -> npt.NDArray[Any]:
    """Return the numbers of a file, (H, W) or (H, W, 3), in their own type.

    Args:
        data: the file; its content decides, not its name.
        path: its name in messages.
        max_pixels: larger ones are refused before they are decoded.

    Raises:
        UnreadableImage: it is of another kind, damaged, too large, or has another number of values per pixel.
    """
    if not data:
        raise UnreadableImage(path, "empty file")
    if data.startswith(_EXR):
        raise UnreadableImage(path, "an OpenEXR file, which is not supported: convert it to .npy, .pfm or TIFF")
    try:
        if data.startswith((b"\x93NUMPY", b"PK\x03\x04")):
            values = _array(data, path)
        elif data.startswith((b"PF", b"Pf")):
            values = _pfm(data, path, max_pixels)
        else:
            values = _picture(data, path, max_pixels)
    except UnreadableImage:
        raise
    except Exception as error:  # decoders raise almost anything on a damaged file
        raise UnreadableImage(path, f"damaged ({' '.join(str(error).split())[:120]})") from error
    if values.ndim == 3 and values.shape[0] in (1, 3) and values.shape[2] not in (1, 3):
        values = np.moveaxis(values, 0, 2)  # channels first
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] != 3) or not values.size:
        raise UnreadableImage(path, f"an array of {values.shape}, not (height, width) or (height, width, 3)")
    check_size(values.shape[1], values.shape[0], path, max_pixels)
    return values


def _array(data: bytes, path: str) -> npt.NDArray[Any]:
    loaded = np.load(io.BytesIO(data), allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        values = loaded
    else:
        names = [name for name in _NAMES if name in loaded.files] or loaded.files
        if len(loaded.files) > 1 and names[0] not in _NAMES:
            raise UnreadableImage(path, f"several arrays ({', '.join(loaded.files[:5])}), none called depth or normals")
        values = loaded[names[0]]
    if values.dtype.kind not in "fui":
        raise UnreadableImage(path, f"an array of {values.dtype}, not of numbers")
    return values


def _pfm(data: bytes, path: str, max_pixels: int) -> npt.NDArray[Any]:
    head = _PFM.match(data)
    if head is None:
        raise UnreadableImage(path, "a .pfm file without a complete head")
    width, height, channels = int(head[2]), int(head[3]), 3 if head[1] == b"PF" else 1
    check_size(width, height, path, max_pixels)
    if len(data) - head.end() != 4 * width * height * channels:
        raise UnreadableImage(path, "truncated, or longer than its head says")
    order = "<" if float(head[4]) < 0 else ">"
    values = np.frombuffer(data, dtype=f"{order}f4", offset=head.end()).reshape(height, width, channels)
    return values[::-1].astype(np.float32)  # rows from the bottom up


def _picture(data: bytes, path: str, max_pixels: int) -> npt.NDArray[Any]:
    with strict_and_silent(max_pixels):
        try:
            with Image.open(io.BytesIO(data)) as image:
                check_size(*image.size, path, max_pixels)
                if image.format not in ("PNG", "TIFF"):
                    raise UnreadableImage(path, f"a {image.format}, which is not supported: PNG, TIFF, .npy, .pfm")
                if image.mode == "RGB" and (";16" in str(image.tile) or (image.format == "PNG" and data[24] == 16)):
                    return _colours_of_16_bits(data, path)
                if image.mode in ("P", "PA"):
                    raise UnreadableImage(path, "a picture with a palette (colours to look at), not numbers")
                if getattr(image, "n_frames", 1) > 1:
                    raise UnreadableImage(path, f"a {image.format} of several frames")
                white = white_of(image, data)
                values = stored(image, white)
                refuse_turned(image, path)
                return values
        except UnidentifiedImageError as error:
            kinds = ", ".join(SUFFIXES)
            name = PurePosixPath(path).name
            raise UnreadableImage(path, f"{name} is none of {kinds}, or is damaged") from error


def _colours_of_16_bits(data: bytes, path: str) -> npt.NDArray[Any]:
    """Return colours of 16 bits, which Pillow cuts to 8."""
    import cv2

    colours = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_UNCHANGED)
    if colours is None or colours.dtype != np.uint16:
        raise UnreadableImage(path, "damaged")
    return np.asarray(colours[..., ::-1])
