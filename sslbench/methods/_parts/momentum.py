"""Momentum copies: a network that follows another one slowly (mean teacher, momentum encoder, target network)."""

import copy as copying
import math
from typing import TypeVar

import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def copy_of(module: M) -> M:
    """A deep copy whose parameters get no gradient: neither the optimizer nor DistributedDataParallel sees them.

    Dropout and stochastic depth are switched off in it, because targets should not be noisy (DINO builds its teacher
    without them). BatchNorm keeps the mode that training gives it.
    """
    copy = copying.deepcopy(module)
    copy.requires_grad_(False)
    for part in copy.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, DropPath):
            part.drop_prob = 0.0
    return copy


@torch.no_grad()
def update(copy: nn.Module, module: nn.Module, momentum: float) -> None:
    """In place: copy <- momentum * copy + (1 - momentum) * module, for every parameter.

    Buffers are left alone: BatchNorm in the copy keeps statistics of what the copy itself has seen.
    """
    ours: list[Tensor] = list(copy.parameters())
    theirs: list[Tensor] = list(module.parameters())
    if ours:
        torch._foreach_lerp_(ours, theirs, 1 - momentum)


def cosine_momentum(start: float, end: float, where: float) -> float:
    """Half a cosine from `start` (at where = 0) to `end` (at where = 1): BYOL, arXiv 2006.07733, section 3.2."""
    return end - (end - start) * (math.cos(math.pi * where) + 1) / 2
