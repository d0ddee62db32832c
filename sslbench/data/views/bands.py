"""Changes of pictures with any number of channels, of 8 bits or float32 from 0 to 255: each channel by itself.

What they do to three channels of 8 bits is what `_augment_ops` does, within one level; only contrast is another one:
there distances from the mean grey of the whole picture are changed, here those from the mean of each channel, since
bands of a satellite or stains of a microscope have no common grey.
"""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Bands = npt.NDArray[Any]
"""(h, w, C), contiguous: uint8, or float32 from 0 to 255."""


def flip(pixels: Bands) -> Bands:
    """(h, w, C) with left and right exchanged."""
    return np.ascontiguousarray(pixels[:, ::-1])


def brightness(pixels: Bands, factor: float) -> Bands:
    """Every value times `factor`."""
    return _within(pixels * np.float32(factor), pixels)


def contrast(pixels: Bands, factor: float) -> Bands:
    """Distances from the mean of each channel times `factor`."""
    mean = pixels.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
    return _within(mean + np.float32(factor) * (pixels - mean), pixels)


def blur(pixels: Bands, sigma: float, side: int) -> Bands:
    """Convolution with a Gaussian of `sigma` pixels by a kernel of `side` pixels, mirrored at the borders."""
    blurred = cv2.GaussianBlur(pixels, (side, side), sigma, borderType=cv2.BORDER_REFLECT_101)
    return np.asarray(blurred, dtype=pixels.dtype).reshape(pixels.shape)  # OpenCV drops the axis of a single channel


def invert_from(pixels: Bands, threshold: int) -> Bands:
    """Values of at least `threshold` are inverted."""
    inverted: Bands = np.where(pixels >= threshold, 255 - pixels, pixels).astype(pixels.dtype)
    return inverted


def _within(values: npt.NDArray[np.float32], pixels: Bands) -> Bands:
    """Cut off at 0 and 255, of the type that `pixels` have."""
    return values.clip(0, 255).astype(pixels.dtype)
