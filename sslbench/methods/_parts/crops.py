"""Several crops through one network."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def encode(network: Callable[[Tensor], Tensor], views: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a network gives for every view, with one forward pass for each run of views of one size.

    One pass over large batches is faster than one per view. BatchNorm then sees the views of one size together, as in
    the published code of SimCLR, SwAV and DINO; a method whose code normalises each view alone calls the network
    itself.

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
