"""Patches: their first three principal components as red, green and blue; nearest ones by cosine, across images.

Oquab et al. 2023 (DINOv2), section 7 and figure 1. One PCA over the patches of all images, so that a colour means the
same in each of them.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sslbench.arrays import BoolArray, ByteArray, FloatArray, IntArray, Matrix

_ENDS = (1.0, 99.0)
"""Percentiles of a component that become no and full intensity, so that a few patches cannot make all others grey."""
MOST_ANSWERS = 100_000
"""Largest number of nearest patches that are computed in advance for a page: points times images."""


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

    `patches`: (N, C).

    >>> colours = fit_colours(np.array([[0.0, 0.0], [2.0, 0.0], [4.0, 0.1]]))
    >>> colours.rgb(np.array([[0.0, 0.0], [4.0, 0.1]]))[:, 0].tolist()
    [0, 255]
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

    `grids`: (h, w, C) each, of all images.
    """
    # DINOv2 takes the patches with a first component above a threshold, here 0. The sign of a component is arbitrary;
    # the foreground is the side with the smaller share of the patches along the borders of the images.
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


@dataclasses.dataclass(frozen=True)
class NearestPatches:
    """Nearest patch in each of N images, for Q points.

    Attributes:
        patch: int64 (Q, N), number of the patch, row by row, in each image.
        similarity: float32 (Q, N), its cosine.
    """

    patch: IntArray
    similarity: Matrix


def unit_patches(grid: Matrix) -> Matrix:
    """Return the patches of an image (h, w, C) as rows (h * w, C) of length 1, float32; zeros stay zeros."""
    rows = np.asarray(grid, dtype=np.float32).reshape(-1, grid.shape[2])
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def nearest_patches(queries: Matrix, images: Sequence[Matrix]) -> NearestPatches:
    """Return the nearest patch of each image to each query.

    `queries`: (Q, C), of length 1.

    >>> image = unit_patches(np.eye(4).reshape(2, 2, 4))
    >>> nearest_patches(image, [image]).patch[:, 0].tolist()
    [0, 1, 2, 3]
    """
    found = [queries @ image.T for image in images]
    patch = np.stack([each.argmax(axis=1) for each in found], axis=1)
    similarity = np.stack([each.max(axis=1) for each in found], axis=1)
    return NearestPatches(patch.astype(np.int64), similarity.astype(np.float32))


def similarities(query: Matrix, image: Matrix, size: tuple[int, int]) -> FloatArray:
    """Return the cosine of a patch (C,) with all patches of an image, as (h, w)."""
    return (image @ query).reshape(size).astype(np.float64)


def grid_points(size: tuple[int, int], n_images: int, most: int = MOST_ANSWERS) -> tuple[IntArray, tuple[int, int]]:
    """Return evenly spaced patches of an image, and the rows and columns of their grid.

    >>> points, grid = grid_points((4, 4), 2, most=16)
    >>> points.tolist(), grid
    ([0, 3, 12, 15], (2, 2))
    """
    # Together with the points of n - 1 other images they have at most `most` answers, one per point and image; with too
    # many images for one point each, there is one point each.
    side = max(1, int(np.sqrt(most / n_images**2)))
    rows, columns = (np.linspace(0, n - 1, min(n, side)).round().astype(np.int64) for n in size)
    return (rows[:, None] * size[1] + columns).ravel(), (len(rows), len(columns))
