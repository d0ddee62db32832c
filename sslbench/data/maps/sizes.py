"""Sizes of images and of their annotations, which must be the same, and images that EXIF turns."""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import numpy as np
from PIL import Image

from sslbench.data.decode.picture import UPRIGHT
from sslbench.data.decode.pillow import orientation, stored_size, strict_and_silent, upright_size
from sslbench.data.images import Files
from sslbench.data.wording import counted, some
from sslbench.targets.images import Images

_EXIF = (b"eXIf", b"exif", b"Orientation")
_THREADS = 8  # that read the heads of files
DRAWN_BEFORE = "it was probably drawn on the image before its EXIF rotation"
_UNTURNED = "if they were made on the stored pixels, remove the tag from the images: exiftool -Orientation= FILES"
SAME_SIZE = f"Give the images at the size of their annotations, never the other way round; {_UNTURNED}."
"""Remedy for a `size_difference`."""


def size_and_turn(images: Images, index: int) -> tuple[tuple[int, int] | None, bool]:
    """Read height and width of the upright image, and whether EXIF turns it, from the head of its file.

    The size is None if the file cannot be read: decoding the image says what is wrong with it.
    """
    size, turn, _ = _head(images, index)
    return size, turn in UPRIGHT


def _head(images: Images, index: int) -> tuple[tuple[int, int] | None, int, bool]:
    """Return the size of the upright image, its EXIF orientation, and whether the stored pixels have the same size."""
    try:
        if isinstance(images, Files):
            opened: IO[bytes] = images.open(index)
        elif isinstance(data := images.read(index), np.ndarray):
            return (data.shape[0], data.shape[1]), 1, True
        else:
            opened = io.BytesIO(data)
        with opened, strict_and_silent(2**40), Image.open(opened) as image:
            tagged = image.format != "PNG" or _marked(opened)  # getexif would decode all of a PNG
            turn = orientation(image) if tagged else 1
            size = upright_size(image, turn)
            return size, turn, size == stored_size(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None, 1, True


def _marked(png: IO[bytes]) -> bool:
    place = png.tell()
    png.seek(0)
    content = png.read()
    png.seek(place)  # the open image reads on from there
    return any(mark in content for mark in _EXIF)


def unknown_orientation(name: str, images: Images, *, sized: bool) -> str | None:
    """Return a note on images that EXIF turns while their annotations may be for the stored pixels; None without any.

    Args:
        name: of the source.
        images: of it; the heads of their files are read.
        sized: the annotations say the size of their image, which tells a turn by 90 degrees of an image that is not
            square.
    """
    while hasattr(images, "images"):  # crops, or channels, of others
        images = images.images
    with ThreadPoolExecutor(_THREADS) as pool:
        heads = list(pool.map(lambda index: _head(images, index), range(len(images))))
    turned = [index for index, (_, turn, same) in enumerate(heads) if turn in UPRIGHT and (same or not sized)]
    if not turned:
        return None
    verb = "is" if len(turned) == 1 else "are"
    return (
        f"{name}: {len(turned):,} of {counted(len(images), 'image')} {verb} turned by EXIF, and annotations are taken "
        f"for those of the turned pixels, which nothing in them tells: "
        f"{some([images.path(index) for index in turned], 3)}; {_UNTURNED}"
    )


def size_difference(found: Sequence[int], size: Sequence[int] | None, what: str = "the map") -> str | None:
    """Return the difference between the size of an annotation and that of its image; None if they are equal.

    >>> size_difference((4, 6), (6, 4), "the depth")
    'the depth is 6 x 4 pixels, but its image 4 x 6: it was probably drawn on the image before its EXIF rotation'

    Args:
        found: height and width of the annotation.
        size: those of the upright image; None if they are not known.
        what: the annotation.
    """
    height, width = found
    if size is None or tuple(size) == (height, width):
        return None
    message = f"{what} is {width} x {height} pixels, but its image {size[1]} x {size[0]}"
    return f"{message}: {DRAWN_BEFORE}" if tuple(size) == (width, height) else message
