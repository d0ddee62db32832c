"""Loss and accuracy of methods that train a classifier."""

import torch
from torch import Tensor
from torch.nn import functional

from sslbench.methods._parts.precision import in_float32


@in_float32
def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the mean cross entropy; samples with label -1 are ignored.

    >>> round(float(cross_entropy(torch.zeros(2, 4), torch.tensor([1, 3]))), 4)  # log(4)
    1.3863

    Args:
        logits: (B, C).
        labels: int64 (B,).
        smoothing: fraction of the target spread over all C classes (Szegedy et al. 2016, section 7).
    """
    return functional.cross_entropy(logits, labels, ignore_index=-1, label_smoothing=smoothing)


@torch.no_grad()
def top1(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the top-1 accuracy of (B, C) logits in percent."""
    return (logits.argmax(dim=1) == labels).float().mean() * 100
