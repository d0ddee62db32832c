"""Inputs of the jigsaw task: patches and permutations."""

import itertools
import math
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sslbench.errors import UsageError

_LONGEST = 10
"""Maximum number of pieces whose permutations are enumerated: 10! = 3.6 million."""


def cut_patches(image: Tensor, count: int, jitter: int, offsets: npt.NDArray[np.int64]) -> Tensor:
    """Cut one square patch from each cell of a grid, at an offset within the cell (Noroozi and Favaro 2016; VISSL).

    `image`: (3, H, W) with W >= H; the grid is square, so the rest of a wider image is unused; `offsets`: int (2, side,
    side), each 0 to jitter: x [0, i, j] and y [1, i, j] of the cell in column i, row j; returns (count, 3, p, p) with p
    = H // side - jitter, column by column.
    """
    side = math.isqrt(count)
    cell = image.shape[1] // side if side else 0
    inside = offsets.shape == (2, side, side) and offsets.min() >= 0 and offsets.max() <= jitter
    if side * side != count or image.shape[2] < image.shape[1] or not inside or not 0 <= jitter < cell:
        shape = tuple(image.shape)
        raise ValueError(f"{count} patches, jitter {jitter}, of an image {shape} at offsets {offsets.shape}")
    length, patches = cell - jitter, []
    for column, row in itertools.product(range(side), repeat=2):
        x, y = (cell * at + int(offsets[axis, column, row]) for axis, at in enumerate((column, row)))
        patches.append(image[:, y : y + length, x : x + length])
    return torch.stack(patches)


def distant_permutations(
    n: int, pieces: int, *, first: int, choose: Literal["mean", "min"] = "mean"
) -> npt.NDArray[np.int64]:
    """Choose permutations far from each other, greedily (Noroozi and Favaro 2016, algorithm 1; VISSL's script).

    Returns int64 (n, pieces), counted from 0.

    >>> distant_permutations(2, 3, first=0).tolist()
    [[0, 1, 2], [1, 2, 0]]
    """
    if pieces > _LONGEST:
        raise UsageError(f"permutations of {pieces} pieces are too many; at most {_LONGEST} pieces")
    total = math.factorial(pieces)
    if not (1 <= n <= total and 0 <= first < total):
        raise UsageError(f"{pieces} pieces have {total:,} orders; asked for {n:,}, from number {first:,} on")
    every = np.array(list(itertools.permutations(range(pieces))), dtype=np.int8).T.copy()  # a row per place: faster
    free = np.ones(total, dtype=bool)
    score = np.zeros(total, np.int32) if choose == "mean" else np.full(total, pieces + 1, np.int32)
    chosen = [first]
    while len(chosen) < n:
        free[chosen[-1]] = False
        distance = np.zeros(total, dtype=np.int8)
        for place in every:
            distance += place != place[chosen[-1]]
        score = score + distance if choose == "mean" else np.minimum(score, distance)
        chosen.append(int(np.argmax(np.where(free, score, -1))))
    return every[:, chosen].T.astype(np.int64)
