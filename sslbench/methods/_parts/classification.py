"""What methods with a classifier on top share."""

import torch
from torch import Tensor
from torch.nn import functional

from sslbench.methods._parts.precision import in_float32


@in_float32
def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross entropy of (B, C) logits; label -1 does not count.

    Args:
        logits: (B, C).
        labels: int64 (B,).
        smoothing: share of the target that is spread over all C classes (Szegedy et al. 2016, section 7).
    """
    return functional.cross_entropy(logits, labels, ignore_index=-1, label_smoothing=smoothing)


@torch.no_grad()
def top1(logits: Tensor, labels: Tensor) -> Tensor:
    """Percentage of the (B, C) logits whose largest is at the label."""
    return (logits.argmax(dim=1) == labels).float().mean() * 100
