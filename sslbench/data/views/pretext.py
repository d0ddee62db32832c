"""Inputs of pretext tasks: jigsaw patches and permutations, rotations (RotNet), Lab colours (colorization)."""

import itertools
import math
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional

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


def shuffle_patches(patches: Tensor, permutation: npt.NDArray[np.int64]) -> Tensor:
    """Return the patches in the order of a permutation, counted from 0."""
    return patches[torch.from_numpy(np.asarray(permutation, dtype=np.int64))]


def counted_from_zero(permutations: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return permutations (n, pieces) counted from 0; files may count from 1."""
    shifted = np.asarray(permutations, dtype=np.int64) - int(np.min(permutations))
    if shifted.ndim != 2 or np.any(np.sort(shifted, axis=1) != np.arange(shifted.shape[1])):
        raise UsageError("the rows are not permutations of equally many pieces, numbered from 0 or from 1")
    return shifted


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


def rotate(image: Tensor, label: int, count: int = 4) -> Tensor:
    """Rotate a picture counter-clockwise by 360 * label / count degrees, RotNet's label.

    `image`: uint8 (3, h, w). Quarter turns are exact; other angles keep the frame, use the nearest pixel, and fill
    black.
    """
    if (4 * label) % count == 0:
        return torch.rot90(image, 4 * label // count, (1, 2))
    turned = functional.rotate(
        Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy())), 360 * label / count
    )
    return torch.from_numpy(np.array(turned)).permute(2, 0, 1)


def to_lab(image: Tensor) -> Tensor:
    """Convert to CIE Lab by OpenCV's 8-bit conversion, centred: L in -50..50, a, b in -128..127 (VISSL's colorization).

    `image`: uint8 RGB (3, h, w); returns float32 (3, h, w).
    """
    lab = cv2.cvtColor(np.ascontiguousarray(image.permute(1, 2, 0).numpy()), cv2.COLOR_RGB2LAB).astype(np.float32)
    scaled = lab * np.array([100 / 255, 1, 1], np.float32) - np.array([50, 128, 128], np.float32)
    return torch.from_numpy(scaled).permute(2, 0, 1)
