"""Signals computed from an image: strength of its edges and corners, and their orientation; tasks on these.

All come from the structure tensor: the products of the derivatives of the luminance (Sobel), averaged by a Gaussian.
Its eigenvalues are the squared changes along and across the direction in which the image changes most.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.config import other_default, setting
from sslbench.data.source import Source
from sslbench.data.views import MapColours
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import DenseProtocol, HeadSettings

Signal = Literal["edges", "corners"]
"""Edges: root of the larger eigenvalue, the strength of the gradient; corners: the smaller one (Shi and Tomasi, 1994),
which is small on straight edges."""

_LUMA = (0.299, 0.587, 0.114)
_TRUNCATED = 3.0
"""Standard deviations at which the Gaussian ends."""
_FLAT = 1e-12
"""Squared change of the luminance up to which a place has no orientation: rounding errors have one."""


def signal_of(
    image: npt.NDArray[np.uint8] | npt.NDArray[np.float32], signal: Signal, sigma: float
) -> npt.NDArray[np.float32]:
    """Return the strength of edges or corners of an image (H, W, C), as ln(1 + gain * strength), (H, W).

    The gain of corners is 10,000, that of edges its root, 100: the logarithm keeps the strongest of the pixels from
    ruling losses and correlations, and the gain makes typical values about 1.

    >>> step = np.zeros((9, 9, 3), np.uint8)
    >>> step[:, 5:] = 255
    >>> edges, corners = signal_of(step, "edges", 1.0), signal_of(step, "corners", 1.0)
    >>> bool(edges[4, 4] > 3), bool(edges[4, 0] < 0.1), bool(corners.max() < 0.01)
    (True, True, True)

    Args:
        image: RGB, of which the luminance is taken, or other channels, of which the mean is; from 0 to 255.
        signal: see `Signal`.
        sigma: standard deviation of the Gaussian, in pixels.
    """
    xx, xy, yy = structure_tensor(luminance(image), sigma)
    centre, radius = (xx + yy) / 2, np.hypot((xx - yy) / 2, xy)
    strength = 100 * np.sqrt(centre + radius) if signal == "edges" else 10_000 * np.maximum(centre - radius, 0)
    return np.asarray(np.log1p(strength), dtype=np.float32)


def orientation_of(image: npt.NDArray[np.uint8] | npt.NDArray[np.float32], sigma: float) -> npt.NDArray[np.float32]:
    """Return the direction in which an image (H, W, C) changes most at each pixel, as a vector of doubled angle.

    With t the angle of that direction to the x axis, the vector is c * (cos 2t, sin 2t): t and t + 180 degrees are one
    orientation. Its length is the coherence c, from 0 (no direction: flat, or alike in all) to 1 (one direction).

    >>> step = np.zeros((9, 9, 3), np.uint8)
    >>> step[:, 5:] = 255
    >>> orientation_of(step, 1.0)[:, 4, 4].round(3).tolist()  # changes along x
    [1.0, 0.0]

    Args:
        image: see `signal_of`.
        sigma: standard deviation of the Gaussian, in pixels.

    Returns:
        (2, H, W).
    """
    xx, xy, yy = structure_tensor(luminance(image), sigma)
    trace = xx + yy
    some = trace > _FLAT
    vectors = np.stack([xx - yy, 2 * xy]) / np.where(some, trace, 1.0)
    return np.asarray(np.where(some, vectors, 0.0), dtype=np.float32)


def luminance(image: npt.NDArray[np.uint8] | npt.NDArray[np.float32]) -> FloatArray:
    """Return the luminance of an image (H, W, 3), or the mean of any other channels, from 0 to 1; (H, W)."""
    values = image.astype(np.float64)
    return np.asarray((values @ np.array(_LUMA) if values.shape[2] == 3 else values.mean(axis=2)) / 255)


def structure_tensor(grey: FloatArray, sigma: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the averaged products of the derivatives of an image (H, W): xx, xy and yy.

    Outside of the image its border continues, since zeros would be an edge around it.

    >>> ramp = np.tile(np.arange(8.0), (8, 1))
    >>> [round(float(part[4, 4]), 2) for part in structure_tensor(ramp, 1.0)]
    [1.0, 0.0, 0.0]

    Args:
        grey: luminance.
        sigma: standard deviation of the Gaussian, in pixels.
    """
    from scipy import ndimage

    x, y = (ndimage.sobel(grey, axis=axis, mode="nearest") / 8 for axis in (1, 0))
    xx, xy, yy = (
        np.asarray(ndimage.gaussian_filter(product, sigma, mode="nearest", truncate=_TRUNCATED), dtype=np.float64)
        for product in (x * x, x * y, y * y)
    )
    return xx, xy, yy


@dataclasses.dataclass(frozen=True)
class SignalSettings(HeadSettings):
    """Settings of the regression of signals by trained heads; images are not changed but mirrored."""

    sigma: float = setting(
        2.0, "standard deviation of the Gaussian of the structure tensor", unit="pixels", within="(0, 100]"
    )
    size: int | None = other_default(HeadSettings, "size", 224)
    crop: tuple[int, int] = other_default(HeadSettings, "crop", (224, 224))
    window: tuple[int, int] | None = other_default(HeadSettings, "window", (224, 224))
    stride: tuple[int, int] = other_default(HeadSettings, "stride", (149, 149))
    resize_range: tuple[float, float] = other_default(HeadSettings, "resize_range", (1.0, 1.0))
    colours: MapColours = setting(
        "none", "none; photometric or gamma would change images and not their signals: see segmentation"
    )


S = TypeVar("S", bound=SignalSettings)


@dataclasses.dataclass(frozen=True)
class SignalTask(DenseProtocol[S]):
    """Task whose targets are computed from the images.

    Attributes:
        preprocessing: that of the backbone, as for which images are decoded.
    """

    preprocessing: Preprocessing

    @classmethod
    def of(cls, settings: S, train: Source, preprocessing: Preprocessing, seed: int) -> Self:
        """Return the task for a backbone with that preprocessing."""
        return cls(settings, preprocessing)

    @classmethod
    def restored(cls, settings: S, facts: Mapping[str, Any], preprocessing: Preprocessing) -> Self:
        """Return the task of a head in a file."""
        return cls(settings, preprocessing)

    def image(self, source: Source, index: int) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
        """Return an image (H, W, C) at its own size, from 0 to 255."""
        from sslbench.data.decode.handlers import Reading
        from sslbench.data.loading import loader
        from sslbench.data.loading.batch import training_decoder

        own = self.preprocessing
        decoder = training_decoder(source.images, Reading(own.decoder, own.max_pixels), own.channels)
        pixels: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
        pixels = loader.read(source.images, index, decoder).image.permute(1, 2, 0).numpy()
        return pixels
