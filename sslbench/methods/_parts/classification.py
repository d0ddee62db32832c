"""Loss and accuracy of methods that train a classifier."""

import torch
from torch import Tensor
from torch.nn import functional

from sslbench.distributed.collectives import sum_, world_size
from sslbench.methods._parts.precision import in_float32


@in_float32
def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the mean cross entropy; samples with label -1 are ignored.

    >>> round(float(cross_entropy(torch.zeros(2, 4), torch.tensor([1, 3]))), 4)  # log(4)
    1.3863

    Args:
        logits: (B, C).
        labels: int64 (B,), or the shares of the classes (B, C) of mixed images.
        smoothing: fraction of the target spread over all C classes (Szegedy et al. 2016, section 7).
    """
    return functional.cross_entropy(logits, labels, ignore_index=-1, label_smoothing=smoothing)


@in_float32
def multi_label_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross entropy, mean over the known labels of each class, summed over classes (VISSL).

    The means are over the images of all processes, so that the mean over processes is the loss of the whole batch.

    >>> targets = torch.tensor([[1, 0], [-1, 1]], dtype=torch.int8)
    >>> round(float(multi_label_loss(torch.zeros(2, 2), targets)), 4)  # 2 classes of log(2)
    1.3863

    Args:
        logits: (B, C).
        targets: int8 (B, C), 1 present, 0 absent, -1 ignored.
    """
    known = targets >= 0
    each = functional.binary_cross_entropy_with_logits(logits, targets.clamp(min=0).to(logits.dtype), reduction="none")
    counts = sum_(known.sum(dim=0).to(logits.dtype)).clamp(min=1) / world_size()
    return ((each * known).sum(dim=0) / counts).sum()


@torch.no_grad()
def top1(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the top-1 accuracy of (B, C) logits in percent."""
    return (logits.argmax(dim=1) == labels).float().mean() * 100
