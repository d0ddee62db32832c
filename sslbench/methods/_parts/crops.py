"""Forward passes over views of several sizes."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def encode(network: Callable[[Tensor], Tensor], views: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the features of every view, with one forward pass per run of views of the same size.

    Large batches are faster than one pass per view. BatchNorm then normalises over all views of one size, as in the
    published code of SimCLR, SwAV and DINO; a method that normalises each view separately calls the network itself.

    Args:
        network: images (n, C, h, w) -> (n, D).
        views: each (B, C, h_v, w_v).

    Returns:
        (B, D) for each view, in order.
    """
    outputs: list[Tensor] = []
    for _, group in itertools.groupby(views, key=lambda view: view.shape[-2:]):
        same = list(group)
        output = network(torch.cat(same) if len(same) > 1 else same[0])
        outputs += output.chunk(len(same))
    return tuple(outputs)
