"""Search of corresponding positions in two grids of features.

Positions on a grid are (column, row) in cells: (0, 0) is the centre of the first cell, (1.5, 0) lies between the second
and the third. A pair of 60 x 60 cells and 20 keypoints takes milliseconds;
memory is one similarity per keypoint and cell.
"""

import dataclasses
import math

import numpy as np
import torch
from torch.nn import functional

from sslbench.arrays import FloatArray, IntArray
from sslbench.solvers.neighbours import nearest


def sample(features: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return features at positions on their grid, (K, D), by bilinear interpolation of those of length 1.

    Beyond the outermost centres a position counts as on them.

    Args:
        features: (D, h, w).
        positions: (K, 2) columns and rows in cells.

    >>> sample(torch.tensor([[[3.0, 1.0]], [[4.0, 0.0]]]), torch.tensor([[0.5, 0.0]])).tolist()
    [[0.800000011920929, 0.4000000059604645]]
    """
    x = functional.normalize(features, dim=0)
    height, width = x.shape[1:]
    column, row = positions[:, 0].clamp(0, width - 1), positions[:, 1].clamp(0, height - 1)
    left, upper = column.floor().long(), row.floor().long()
    right, lower = (left + 1).clamp(max=width - 1), (upper + 1).clamp(max=height - 1)
    along, down = column - left, row - upper
    top = x[:, upper, left] * (1 - along) + x[:, upper, right] * along
    bottom = x[:, lower, left] * (1 - along) + x[:, lower, right] * along
    return (top * (1 - down) + bottom * down).T


def similarity_maps(queries: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Return the cosine of each query (K, D) with every cell of features (D, h, w), (K, h, w).

    A query or cell of zeros has a cosine of 0 with all.
    """
    return torch.einsum("kd,dhw->khw", functional.normalize(queries, dim=1), functional.normalize(features, dim=0))


def nearest_cells(similarity: torch.Tensor) -> torch.Tensor:
    """Return the most similar cell of each query, (K, 2) columns and rows; the first of equal ones on the CPU.

    >>> nearest_cells(torch.tensor([[[0.1, 0.2, 0.9], [0.3, 0.4, 0.5]]])).tolist()
    [[2.0, 0.0]]
    """
    width = similarity.shape[2]
    best = similarity.flatten(1).argmax(dim=1)
    return torch.stack([best % width, best // width], dim=1).to(similarity.dtype)


def soft_argmax(similarity: torch.Tensor, *, temperature: float, radius: int | None = None) -> torch.Tensor:
    """Return the mean position of each query, (K, 2), weighted by softmax(similarity / temperature).

    With a radius, the mean is over the square window of 2 x radius + 1 cells around the most similar cell, as far as it
    lies on the grid (Zhang et al., CVPR 2024: radius 7 of 60 x 60 cells). A mean over all cells is drawn to the middle
    of the image.

    Args:
        similarity: (K, h, w) cosines.
        temperature: of the softmax.
        radius: of the window in cells; None for all cells.

    >>> soft_argmax(torch.tensor([[[0.0, 1.0, 1.0, 0.0]]]), temperature=0.02, radius=1).tolist()
    [[1.5, 0.0]]
    """
    height, width = similarity.shape[1:]
    columns = torch.arange(width, device=similarity.device, dtype=similarity.dtype)
    rows = torch.arange(height, device=similarity.device, dtype=similarity.dtype)
    logits = similarity / temperature
    if radius is not None:
        centre = nearest_cells(similarity)
        near_x = (columns - centre[:, :1]).abs() <= radius
        near_y = (rows - centre[:, 1:]).abs() <= radius
        logits = logits.masked_fill(~(near_y[:, :, None] & near_x[:, None]), -math.inf)
    weights = logits.flatten(1).softmax(dim=1).reshape(similarity.shape)
    return torch.stack([weights.sum(dim=1) @ columns, weights.sum(dim=2) @ rows], dim=1)


@dataclasses.dataclass(frozen=True)
class Matches:
    """Matches of the cells of two grids, by ascending distance.

    Attributes:
        source: (M,) cells of the source, counted row by row.
        target: (M,) cells of the target.
        distance: (M,) Euclidean distances of the features of length 1.
    """

    source: IntArray
    target: IntArray
    distance: FloatArray


def ratio_matches(
    source: FloatArray,
    target: FloatArray,
    *,
    ratio: float | None = 0.9,
    most: int | None = 1000,
    mutual: bool = False,
    max_memory: float = 0.5,
) -> Matches:
    """Return the nearest target cell of each source cell, if it is clearly nearer than the second (Lowe 2004).

    Of equal distances the lower source cell comes first.

    Args:
        source: (N, D) features, one row per cell.
        target: (M, D), likewise.
        ratio: a match is kept if its distance is below this share of the distance to the second nearest; 1 keeps all
            that are nearer, None all.
        most: number of matches kept, those of smallest distance; None for all.
        mutual: keep a match only if the source cell is also the nearest one of the target cell.
        max_memory: working memory in GB.

    >>> corners = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> ratio_matches(corners[:2], corners).target.tolist()
    [0, 1]
    """
    unit = [
        x / np.maximum(np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True), 1e-12) for x in (source, target)
    ]
    k = min(2, len(unit[1]))
    similarity, cells = nearest(unit[1], unit[0], k, metric="l2", max_memory=max_memory)
    distances = np.sqrt(np.maximum(-similarity, 0))
    second = distances[:, 1] if k > 1 else np.full(len(distances), np.inf)
    kept = np.arange(len(distances)) if ratio is None else np.flatnonzero(distances[:, 0] < ratio * second)
    if mutual and len(kept):
        wanted, place = np.unique(cells[kept, 0], return_inverse=True)
        _, back = nearest(unit[0], unit[1][wanted], 1, metric="l2", max_memory=max_memory)
        kept = kept[back[place, 0] == kept]
    kept = kept[np.argsort(distances[kept, 0], kind="stable")][:most]
    return Matches(kept, cells[kept, 0], distances[kept, 0])
