"""Sizes of label maps and of their images, which must be the same."""

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from sslbench.data.decode.picture import UPRIGHT
from sslbench.data.decode.pillow import orientation, strict_and_silent, upright_size
from sslbench.data.source import Images

_EXIF = (b"eXIf", b"exif", b"Orientation")


def size_and_turn(images: Images, index: int) -> tuple[tuple[int, int] | None, bool]:
    """Read height and width of the upright image, and whether EXIF turns it, from the head of its file.

    The size is None if the file cannot be read: decoding the image says what is wrong with it.
    """
    try:
        data = images.read(index)
        if isinstance(data, np.ndarray):
            return (data.shape[0], data.shape[1]), False
        with strict_and_silent(2**40), Image.open(io.BytesIO(data)) as image:
            tagged = image.format != "PNG" or any(mark in data for mark in _EXIF)  # getexif would decode all of a PNG
            turn = orientation(image) if tagged else 1
            return upright_size(image, turn), turn in UPRIGHT
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None, False


def check_same_size(values: npt.NDArray[np.integer], size: Sequence[int] | None) -> str | None:
    """Return the difference between the size of a map and that of its image; None if they are equal."""
    height, width = values.shape
    if size is None or tuple(size) == (height, width):
        return None
    message = f"the map is {width} x {height} pixels, but its image {size[1]} x {size[0]}"
    if tuple(size) == (width, height):
        return f"{message}: it was probably drawn on the image before its EXIF rotation"
    return message
