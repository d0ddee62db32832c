"""Colours of patches: their first three principal components as red, green and blue.

Oquab et al. 2023 (DINOv2), section 7 and figure 1. One PCA over the patches of all images, so that a colour means the
same in each of them.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sslbench.arrays import BoolArray, ByteArray, FloatArray, Matrix

_ENDS = (1.0, 99.0)
"""Percentiles of a component that become no and full intensity, so that a few patches cannot make all others grey."""


@dataclasses.dataclass(frozen=True)
class PatchColours:
    """Principal components of patches, and their ranges.

    Attributes:
        mean: float64 (C,).
        components: float64 (3, C), orthonormal, the first with the largest variance; zero where there are fewer. The
            number of largest magnitude in each is positive, so that colours are the same on every machine.
        low: float64 (3,), values that become 0.
        high: float64 (3,), values that become 255.
        explained: float64 (3,), share of the variance along each component.
    """

    mean: FloatArray
    components: FloatArray
    low: FloatArray
    high: FloatArray
    explained: FloatArray

    def project(self, patches: Matrix) -> FloatArray:
        """Return the components of patches (..., C) as (..., 3)."""
        return (np.asarray(patches, dtype=np.float64) - self.mean) @ self.components.T

    def rgb(self, patches: Matrix) -> ByteArray:
        """Return the colours of patches (..., C) as uint8 (..., 3)."""
        width = np.maximum(self.high - self.low, 1e-12)
        return np.round(255 * np.clip((self.project(patches) - self.low) / width, 0, 1)).astype(np.uint8)


def fit_colours(patches: Matrix) -> PatchColours:
    """Return the colours of patches.

    Args:
        patches: (N, C).

    Examples:
        >>> colours = fit_colours(np.array([[0.0, 0.0], [2.0, 0.0], [4.0, 0.1]]))
        >>> colours.rgb(np.array([[0.0, 0.0], [4.0, 0.1]]))[:, 0].tolist()
        [0, 255]

    Raises:
        ValueError: there are no patches.
    """
    from scipy.linalg import eigh

    x = np.asarray(patches, dtype=np.float64)
    if not len(x):
        raise ValueError("no patches")
    n_channels, mean = x.shape[1], x.mean(axis=0)
    centred = x - mean
    covariance = centred.T @ centred / max(1, len(x) - 1)
    kept = min(3, n_channels)
    values, vectors = eigh(covariance, subset_by_index=[n_channels - kept, n_channels - 1])
    components, explained = np.zeros((3, n_channels)), np.zeros(3)
    components[:kept] = vectors.T[::-1]
    explained[:kept] = np.maximum(values[::-1], 0) / max(float(np.trace(covariance)), 1e-300)
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    components *= np.where(largest < 0, -1.0, 1.0)
    low, high = np.percentile(centred @ components.T, _ENDS, axis=0)
    return PatchColours(mean, components, low, high, explained)


def foreground(grids: Sequence[Matrix]) -> list[BoolArray]:
    """Return the patches of the foreground of images, (h, w) each: one side of the first principal component.

    DINOv2 takes the patches with a first component above a threshold, here 0. The sign of a component is arbitrary; the
    foreground is the side with the smaller share of the patches along the borders of the images.

    Args:
        grids: (h, w, C) each, of all images.
    """
    colours = fit_colours(np.concatenate([grid.reshape(-1, grid.shape[2]) for grid in grids]))
    positive = [colours.project(grid)[..., 0] > 0 for grid in grids]
    border = np.concatenate([_along_border(side) for side in positive])
    everywhere = np.concatenate([side.ravel() for side in positive])
    inside = border.mean() <= everywhere.mean()
    return [side if inside else ~side for side in positive]


def _along_border(grid: BoolArray) -> BoolArray:
    """Return the values of (h, w) along its four sides."""
    edge = np.ones(grid.shape, dtype=np.bool_)
    edge[1:-1, 1:-1] = False
    return grid[edge]
