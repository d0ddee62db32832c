"""Geometric changes of pictures that leave the class as it is: rotation, scale, crop.

Every function maps a picture (H, W, 3), 8 bits, to one of the same shape; what lies outside is mirrored at the border.
"""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

ByteImage = npt.NDArray[np.uint8]

GEOMETRY_VERSION = 1
"""Version of the changes, raised when the same picture gives another one."""


def rotate(image: ByteImage, degrees: float) -> ByteImage:
    """Return the picture turned about its centre, anticlockwise.

    >>> picture = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    >>> np.array_equal(rotate(picture, 90), np.rot90(picture))
    True
    """
    height, width = image.shape[:2]
    if degrees % 90 == 0 and (height == width or degrees % 180 == 0):
        return np.ascontiguousarray(np.rot90(image, int(degrees // 90) % 4))
    return _warp(image, cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0))


def rescale(image: ByteImage, factor: float) -> ByteImage:
    """Return the picture shrunk (factor below 1) or enlarged about its centre.

    >>> rescale(np.full((4, 4, 3), 7, np.uint8), 0.5)[0, 0].tolist()
    [7, 7, 7]
    """
    height, width = image.shape[:2]
    return _warp(image, cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), 0.0, factor))


def crop(image: ByteImage, share: float, rng: np.random.Generator) -> ByteImage:
    """Return a random part of the picture, of this share of both sides, resized to the size of the picture.

    >>> crop(np.full((8, 8, 3), 7, np.uint8), 0.5, np.random.default_rng(0)).shape
    (8, 8, 3)
    """
    height, width = image.shape[:2]
    h, w = max(1, round(share * height)), max(1, round(share * width))
    top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
    part = np.ascontiguousarray(image[top : top + h, left : left + w])
    resized: ByteImage = np.asarray(cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR), dtype=np.uint8)
    return resized


def _warp(image: ByteImage, matrix: npt.NDArray[Any]) -> ByteImage:
    size = (image.shape[1], image.shape[0])
    warped = cv2.warpAffine(image, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(warped, dtype=np.uint8)
