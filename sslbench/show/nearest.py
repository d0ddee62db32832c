"""Nearest patches by cosine similarity, across images."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix

MOST_ANSWERS = 100_000
"""Largest number of nearest patches that are computed in advance for a page: points times images."""


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

    Args:
        queries: (Q, C), of length 1.
        images: `unit_patches` of each image.

    Examples:
        >>> image = unit_patches(np.eye(4).reshape(2, 2, 4))
        >>> nearest_patches(image, [image]).patch[:, 0].tolist()
        [0, 1, 2, 3]
    """
    found = [queries @ image.T for image in images]
    patch = np.stack([each.argmax(axis=1) for each in found], axis=1)
    similarity = np.stack([each.max(axis=1) for each in found], axis=1)
    return NearestPatches(patch.astype(np.int64), similarity.astype(np.float32))


def similarities(query: Matrix, image: Matrix, size: tuple[int, int]) -> FloatArray:
    """Return the cosine of a patch (C,) with all patches of an image, as (h, w).

    Args:
        query: of length 1.
        image: `unit_patches` of the image.
        size: h and w.
    """
    return (image @ query).reshape(size).astype(np.float64)


def grid_points(size: tuple[int, int], n_images: int, most: int = MOST_ANSWERS) -> tuple[IntArray, tuple[int, int]]:
    """Return evenly spaced patches of an image, and the rows and columns of their grid.

    Together with the points of n - 1 other images they have at most `most` answers, one per point and image; with too
    many images for one point each, there is one point each.

    Args:
        size: rows and columns of the patches.
        n_images: number of images.
        most: largest number of answers.

    Examples:
        >>> points, grid = grid_points((4, 4), 2, most=16)
        >>> points.tolist(), grid
        ([0, 3, 12, 15], (2, 2))
    """
    side = max(1, int(np.sqrt(most / n_images**2)))
    rows, columns = (np.linspace(0, n - 1, min(n, side)).round().astype(np.int64) for n in size)
    return (rows[:, None] * size[1] + columns).ravel(), (len(rows), len(columns))
