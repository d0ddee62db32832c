"""Patches of one image in random order, and the permutations and siamese networks of them (Jigsaw, PIRL)."""

import itertools
import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sslbench.arrays import UNREADABLE_HEADER
from sslbench.errors import UsageError
from sslbench.train.method import Setup

SIDE = 3
PIECES = SIDE * SIDE
"""Patches of an image: a grid of 3 x 3, as published."""


def reorder(views: Sequence[Tensor], order: Tensor) -> Tensor:
    """Return the patches of every image in its own order, one image after the other.

    `views`: P patches, each (B, C, h, w); `order`: int64 (B, P), number of the patch at each place; returns (B * P, C,
    h, w), channels-last.

    >>> a, b = torch.zeros(1, 3, 4, 4), torch.ones(1, 3, 4, 4)
    >>> reorder([a, b], torch.tensor([[1, 0]])).mean(dim=(1, 2, 3)).tolist()
    [1.0, 0.0]
    """
    patches = torch.stack(tuple(views), dim=1)
    rows = torch.arange(len(order), device=patches.device)[:, None]
    return patches[rows, order.to(patches.device)].flatten(0, 1).contiguous(memory_format=torch.channels_last)


def concatenated(network: Callable[[Tensor], Tensor], patches: Tensor) -> Tensor:
    """Return the outputs for all patches of an image side by side.

    `network`: (n, ...) -> (n, d); `patches`: (B * P, ...), patches or their features, one image after the other;
    returns (B, P * d).
    """
    outputs = network(patches)
    return outputs.view(len(outputs) // PIECES, -1)


def need_patches(setup: Setup, first: int, *, method: str) -> None:
    """Require nine patches of one size after the first views."""
    sizes = setup.sizes[first:]
    if len(sizes) != PIECES or len(set(sizes)) != 1:
        before = f"{first} view and " if first else ""
        raise UsageError(
            f"{method} takes {before}the {PIECES} patches of a {SIDE} x {SIDE} grid, the augmentation makes views of "
            f"{', '.join(map(str, setup.sizes))} pixels",
            f"Set augment={method} (published), or a view with grid={{side: {SIDE}}}, smaller than the undivided one.",
        )


_LONGEST = 10
"""Maximum number of pieces whose permutations are enumerated: 10! = 3.6 million."""


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


def read_permutations(path: Path, n: int) -> npt.NDArray[np.int64]:
    """Read the orders of the patches in a .npy file (n, 9), which counts the patches from 0 or 1, as VISSL's files.

    Returns int64 (n, 9), counted from 0.

    Raises:
        UsageError: the file cannot be read, or does not hold n different orders of nine patches.
    """
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, zipfile.BadZipFile, *UNREADABLE_HEADER) as error:
        raise UsageError(
            f"method.permutation_file: {path} cannot be read as an array of orders: {error}",
            "Give a .npy file, or leave the key out: orders are then chosen.",
        ) from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf" or values.shape[1:] != (PIECES,):
        found = f"{values.dtype} {values.shape}" if isinstance(values, np.ndarray) else "several arrays"
        raise UsageError(f"method.permutation_file: {path} holds {found}, not numbers (orders, {PIECES})")
    first = int(np.all(values != 0))  # the number of the first patch
    wrong = (np.sort(values, axis=1) != np.arange(PIECES) + first).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UsageError(
            f"method.permutation_file: row {row} of {path} is no order of the numbers 0 to {PIECES - 1} or 1 to "
            f"{PIECES}: {' '.join(f'{value:g}' for value in values[row])}",
            "All rows count from the same number.",
        )
    if len(np.unique(values, axis=0)) < len(values):
        raise UsageError(f"method.permutation_file: {path} has an order twice")
    if len(values) != n:
        raise UsageError(
            f"method.permutation_file: {path} has {len(values):,} orders, and permutations is {n:,}",
            f"Set method.permutations={len(values)}.",
        )
    return (values - first).astype(np.int64)
