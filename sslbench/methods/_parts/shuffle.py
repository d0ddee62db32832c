"""Shuffling of images between processes, so that BatchNorm does not tell which query a key belongs to."""

from collections.abc import Callable

import torch
from torch import Tensor

from sslbench.distributed.collectives import broadcast_, gather, rank, world_size


@torch.no_grad()
def over_shuffled(network: Callable[[Tensor], tuple[Tensor, ...]], images: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs for this process's images, computed in batches of images from all processes.

    The statistics of BatchNorm would reveal which query and key are from the same batch (He et al. 2019, arXiv
    1911.05722, section 3.3).

    Args:
        network: images (B, C, H, W) -> tensors of B rows each.
        images: (B, C, H, W), this process's; B is the same on all processes.
    """
    everyone, world = gather(images), world_size()
    order = broadcast_(torch.randperm(len(everyone)).to(images.device))
    share = everyone[order.view(world, -1)[rank()]].contiguous(memory_format=torch.channels_last)
    own = order.argsort().view(world, -1)[rank()]
    return tuple(gather(output)[own] for output in network(share))
