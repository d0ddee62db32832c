"""Patches of one image in random order, and the siamese networks that see all of them (Jigsaw, PIRL)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

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


def concatenated(network: Callable[[Tensor], Tensor], patches: Tensor, pieces: int = PIECES) -> Tensor:
    """Return the outputs for all patches of an image side by side.

    `network`: (n, ...) -> (n, d); `patches`: (B * P, ...), patches or their features, one image after the other;
    returns (B, P * d).
    """
    outputs = network(patches)
    return outputs.view(len(outputs) // pieces, -1)


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
