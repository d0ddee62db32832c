"""Heads, losses and sliding windows of dense tasks, as functions and modules on tensors (N, C, H, W)."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

# Pixels over which a loss is averaged.
Average = Literal["scored", "all"]
# Function from outputs to weights of bins.
Normalisation = Literal["linear", "softmax", "sigmoid"]
# Distances of the centres of bins.
Spacing = Literal["uniform", "logarithmic"]

_LEAST_WEIGHT = 0.1  # of a bin, so that no distribution sums to 0


def resized(x: "Tensor", size: tuple[int, int]) -> "Tensor":
    """Return maps (N, C, H, W) at another height and width, bilinear, with pixels as areas (`align_corners=False`)."""
    from torch.nn import functional

    return x if x.shape[-2:] == size else functional.interpolate(x, size=size, mode="bilinear", align_corners=False)


def depth_bins(number: int, low: float, high: float, *, spacing: Spacing = "uniform") -> "Tensor":
    """Return the depths (number,) of bins from `low` to `high`, inclusive.

    Logarithmic bins have a constant ratio. (The option "SID" of DINOv2 and probe3d takes the limits as powers of 10,
    and so makes bins of 10^0.001 to 10^10 m of the limits 0.001 and 10 m.)

    >>> [round(depth, 3) for depth in depth_bins(3, 0.1, 10.0, spacing="logarithmic").tolist()]
    [0.1, 1.0, 10.0]
    """
    import torch

    if spacing == "uniform":
        return torch.linspace(low, high, number)
    ends = torch.log(torch.tensor([low, high], dtype=torch.float64))
    return torch.exp(torch.linspace(float(ends[0]), float(ends[1]), number, dtype=torch.float64)).float()


def depth_from_bins(logits: "Tensor", bins: "Tensor", *, normalisation: Normalisation = "linear") -> "Tensor":
    """Return the expected depth (N, 1, h, w) of distributions over bins.

    Args:
        logits: (N, B, h, w).
        bins: (B,), depths.
        normalisation: 'linear': relu + 0.1, divided by the sum (AdaBins, DINOv2, DINOv3); 'sigmoid': divided by the
            sum; 'softmax'.

    >>> import torch
    >>> depth_from_bins(torch.tensor([[[[0.9]], [[-1.0]]]]), torch.tensor([1.0, 12.0])).round(decimals=4).tolist()
    [[[[2.0]]]]
    """
    import torch

    if normalisation == "softmax":
        shares = torch.softmax(logits, dim=1)
    else:
        weights = torch.relu(logits) + _LEAST_WEIGHT if normalisation == "linear" else torch.sigmoid(logits)
        shares = weights / weights.sum(dim=1, keepdim=True)
    return torch.einsum("nbhw,b->nhw", shares, bins.to(shares)).unsqueeze(1)
