"""Soft labels of joints on a grid of cells, and the places of joints from such labels."""

import numpy as np
import numpy.typing as npt
import torch

from sslbench.arrays import FloatArray

SIGMA = 0.5
"""Width of the Gaussian around a joint in cells (Jabri et al. 2020)."""


def joint_labels(places: FloatArray, grid: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return the soft labels (J, h, w) of joints: a Gaussian around the nearest cell, 1 there and 0 beyond one cell.

    Its neighbours have 0.135, at the corners 0.018. The published code has one more row and column, of 0.0003.

    Args:
        places: (J, 2) columns and rows of the joints on the grid, (0, 0) the centre of the first cell; NaN for a joint
            without a label.
        grid: h and w.

    >>> joint_labels(np.array([[0.4, 0.0], [np.nan, np.nan]]), (1, 3)).round(3).tolist()
    [[[1.0, 0.13500000536441803, 0.0]], [[0.0, 0.0, 0.0]]]
    """
    found = np.zeros((len(places), *grid), np.float32)
    rows, columns = np.mgrid[: grid[0], : grid[1]]
    for label, place in zip(found, places, strict=True):
        if np.isnan(place).any():
            continue
        column, row = np.clip(np.rint(place), 0, np.array(grid[::-1]) - 1)
        near = (abs(rows - row) <= 1) & (abs(columns - column) <= 1)
        label[near] = np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * SIGMA**2))[near]
    return found


def joint_places(labels: torch.Tensor, cells: int) -> FloatArray:
    """Return the columns and rows (J, 2) of joints: the mean of the cells of largest label, weighted by these.

    NaN for a joint without any label.

    Args:
        labels: (J, h, w), at least 0.
        cells: number of cells in the mean.

    >>> joint_places(torch.tensor([[[0.25, 0.75, 0.125]], [[0.0, 0.0, 0.0]]]), 2).tolist()
    [[0.75, 0.0], [nan, nan]]
    """
    flat = labels.flatten(1).double().cpu()
    largest, at = flat.topk(min(cells, flat.shape[1]), dim=1)
    weights = largest / largest.sum(dim=1, keepdim=True)  # NaN for labels that are all 0
    columns, rows = at % labels.shape[2], at // labels.shape[2]
    return np.stack([(weights * columns).sum(dim=1).numpy(), (weights * rows).sum(dim=1).numpy()], axis=1)
