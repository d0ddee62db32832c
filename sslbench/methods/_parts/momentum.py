"""Momentum copies: exponential moving averages of a network (mean teacher, momentum encoder, target network)."""

import copy as copying
import math
from typing import Any, TypeVar

import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn

from sslbench.train.method import Method

M = TypeVar("M", bound=nn.Module)


def copy_of(module: M) -> M:
    """Return a deep copy without gradients, which the optimizer and DistributedDataParallel ignore."""
    # Dropout and stochastic depth are disabled, since targets should not be noisy (DINO builds its teacher without
    # them). BatchNorm follows the training mode.
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
    """Update every parameter in place: copy <- momentum * copy + (1 - momentum) * module."""
    # Buffers are not updated: BatchNorm in the copy keeps statistics of its own inputs.
    averaged: list[Tensor] = list(copy.parameters())
    current: list[Tensor] = list(module.parameters())
    if averaged:
        torch._foreach_lerp_(averaged, current, 1 - momentum)


def update_copies(method: Method[Any], momentum: float) -> None:
    """Update all momentum copies of a method, see `Method.copies`."""
    for name, copy in method.named_children():
        if name.startswith(method.copies):
            update(copy, method.get_submodule(name.removeprefix(method.copies)), momentum)


def cosine_momentum(start: float, end: float, progress: float) -> float:
    """Return the momentum on half a cosine from `start` (where = 0) to `end` (where = 1): BYOL, section 3.2.

    >>> round(cosine_momentum(0.99, 1.0, 0.5), 6)
    0.995
    """
    return end - (end - start) * (math.cos(math.pi * progress) + 1) / 2
