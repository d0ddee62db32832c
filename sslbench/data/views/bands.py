"""Augmentation of pictures with any number of channels, uint8 or float32 from 0 to 255, each channel separately.

On 8-bit RGB the results equal those of `ops` within one level, except for contrast: `ops` scales the distances from the
mean grey of the picture, these functions those from the mean of each channel, since bands of a satellite or stains of a
microscope have no common grey.
"""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Bands = npt.NDArray[Any]
"""(h, w, C), contiguous: uint8, or float32 from 0 to 255."""


def flip(pixels: Bands) -> Bands:
    """Mirror a picture (h, w, C) horizontally."""
    return np.ascontiguousarray(pixels[:, ::-1])


def brightness(pixels: Bands, factor: float) -> Bands:
    """Multiply every value by `factor`."""
    return _within(pixels * np.float32(factor), pixels)


def contrast(pixels: Bands, factor: float) -> Bands:
    """Multiply the distances from each channel's mean by `factor`."""
    # Of float32 numpy would take the sum in float32, too.
    mean = pixels.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
    return _within(mean + np.float32(factor) * (pixels - mean), pixels)


def blur(pixels: Bands, sigma: float, side: int) -> Bands:
    """Convolve with a Gaussian of `sigma` pixels, a kernel of `side` pixels and mirrored borders."""
    blurred = cv2.GaussianBlur(pixels, (side, side), sigma, borderType=cv2.BORDER_REFLECT_101)
    return np.asarray(blurred, dtype=pixels.dtype).reshape(pixels.shape)  # OpenCV drops the axis of a single channel


def invert_from(pixels: Bands, threshold: int) -> Bands:
    """Invert the values of at least `threshold`."""
    inverted: Bands = np.where(pixels >= threshold, 255 - pixels, pixels).astype(pixels.dtype)
    return inverted


def _within(values: npt.NDArray[np.float32], pixels: Bands) -> Bands:
    """Clip values to [0, 255], and convert them to the dtype of `pixels`."""
    return values.clip(0, 255).astype(pixels.dtype)
