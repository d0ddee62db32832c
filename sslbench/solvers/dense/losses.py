"""Losses of dense tasks: cross-entropy of pixels, SigLoss and gradient loss of depth, angles of surface normals."""

import functools
import math
import operator
from typing import TYPE_CHECKING

from sslbench.solvers.dense import Average

if TYPE_CHECKING:
    from torch import Tensor

_EPSILON = 1e-3  # added to depths before the logarithm, as in DINOv2 and DINOv3
_MEAN_WEIGHT = 0.15
_LEAST_CONCENTRATION = 1.01
_MOST_COSINE = 0.9999  # as in probe3d: the derivative of the arcus cosine is infinite at 1
_LEAST_SQUARES = 1e-16  # smallest product of squared lengths, for vectors of length 0


def pixel_cross_entropy(
    logits: "Tensor", target: "Tensor", *, ignore: int, average: Average, class_weights: "Tensor | None" = None
) -> "Tensor":
    """Return the mean cross-entropy of the pixels.

    Args:
        logits: (N, C, H, W).
        target: (N, H, W), int64 classes or `ignore`.
        ignore: value of pixels without a loss.
        average: 'scored': the sum is divided by the number of pixels that are not ignored. 'all': by the number of all
            pixels, the default of MMSegmentation, hence of DINOv2, and of DINOv3; crops with many ignored pixels weigh
            less.
        class_weights: (C,), factors of the losses of the classes; a pixel then counts by its weight in the divisor,
            an ignored one as 1.

    Returns:
        A scalar; 0 if every pixel is ignored.

    >>> import torch
    >>> logits, target = torch.zeros(1, 2, 1, 4), torch.tensor([[[0, 1, 255, 255]]])
    >>> [round(float(pixel_cross_entropy(logits, target, ignore=255, average=a)), 4) for a in ("scored", "all")]
    [0.6931, 0.3466]
    """
    import torch
    from torch.nn import functional

    total = functional.cross_entropy(logits, target, weight=class_weights, ignore_index=ignore, reduction="sum")
    scored = target != ignore
    weights = scored.to(logits.dtype)
    if class_weights is not None:
        weights = torch.where(scored, class_weights[target.masked_fill(~scored, 0)], weights)
    divisor = weights.sum()
    if average == "all":
        divisor = divisor + (~scored).sum()
    return total / divisor.clamp_min(torch.finfo(logits.dtype).tiny)


def sig_loss(
    prediction: "Tensor",
    target: "Tensor",
    valid: "Tensor",
    *,
    mean_only: bool = False,
    unbiased: bool = True,
    epsilon: float = _EPSILON,
) -> "Tensor":
    """Return the scale-invariant loss of depth: the root of the variance plus 0.15 squared means of the ln errors.

    Lee et al., "From big to small", 2019 (BTS); 0.15 is 1 less their lambda of 0.85.

    Args:
        prediction: depths of any shape.
        target: true depths of the same shape.
        valid: boolean, the pixels that count; those of the whole batch are taken together.
        mean_only: leave the variance out, as DINOv2 and DINOv3 do in the first 100 steps.
        unbiased: divide the variance by one less than the number of pixels (DINOv2, DINOv3), or by the number (BTS,
            probe3d).
        epsilon: added to both depths.

    Returns:
        A scalar; 0 for fewer than two valid pixels.

    >>> import torch
    >>> depths = torch.tensor([1.0, 2.0, 4.0])
    >>> round(float(sig_loss(2 * depths, depths, depths > 0, epsilon=0.0)), 4) == round(0.15**0.5 * math.log(2), 4)
    True
    """
    import torch

    if valid.sum() < 2:
        return prediction.sum() * 0
    error = torch.log(prediction[valid] + epsilon) - torch.log(target[valid] + epsilon)
    squared_mean = _MEAN_WEIGHT * error.mean() ** 2
    squared = squared_mean if mean_only else torch.var(error, unbiased=unbiased) + squared_mean
    return torch.sqrt(squared.clamp_min(torch.finfo(squared.dtype).tiny))  # the derivative of the root is infinite at 0


def gradient_loss(
    prediction: "Tensor", target: "Tensor", valid: "Tensor", *, logarithmic: bool = True, epsilon: float = _EPSILON
) -> "Tensor":
    """Return the sum over four scales of the mean absolute difference of errors two pixels apart.

    Li and Snavely, "MegaDepth", CVPR 2018. DINOv2's code takes these differences over the batch and channels, not over
    rows and columns; with up to two images its loss lacks the vertical part or is 0. This is the intended loss, as in
    DINOv3 and probe3d.

    Args:
        prediction: (N, 1, H, W), depths.
        target: (N, 1, H, W), true depths.
        valid: (N, 1, H, W), boolean, the pixels that count.
        logarithmic: take the errors of the logarithms.
        epsilon: added to both depths before the logarithm.
    """
    import torch

    loss = prediction.new_zeros(())
    for stride in (1, 2, 4, 6):
        found, true, counts = (x[..., ::stride, ::stride] for x in (prediction, target, valid))
        if logarithmic:
            ones = torch.ones_like(found)
            found, true = (torch.log(torch.where(counts, x, ones) + epsilon) for x in (found, true))
        error = torch.where(counts, found - true, 0)
        vertical = (error[..., 2:, :] - error[..., :-2, :]).abs() * (counts[..., 2:, :] & counts[..., :-2, :])
        horizontal = (error[..., 2:] - error[..., :-2]).abs() * (counts[..., 2:] & counts[..., :-2])
        loss = loss + (vertical.sum() + horizontal.sum()) / counts.sum().clamp_min(1)
    return loss


def angular_loss(
    prediction: "Tensor", target: "Tensor", valid: "Tensor", concentration: "Tensor | None" = None
) -> "Tensor":
    """Return the mean angle in radians between normals, or its negative log-likelihood with a predicted concentration.

    Bae et al., "Estimating and exploiting the aleatoric uncertainty in surface normal estimation", ICCV 2021. Angles
    below 0.8 degrees count as 0.8 degrees, without a gradient.

    Args:
        prediction: (N, 3, H, W), of any length.
        target: (N, 3, H, W).
        valid: (N, 1, H, W), boolean, the pixels that count.
        concentration: (N, 1, H, W), raw outputs k; elu(k) + 1.01 is the concentration.

    Returns:
        A scalar; 0 without a valid pixel.

    >>> import torch
    >>> up, right = torch.eye(3)[2][None, :, None, None], torch.eye(3)[0][None, :, None, None]
    >>> round(float(angular_loss(up, right, torch.ones(1, 1, 1, 1, dtype=torch.bool))), 4)
    1.5708
    """
    import torch
    from torch.nn import functional

    counts = valid[:, 0]
    if not counts.any():
        return prediction.sum() * 0
    cosine = cosines(prediction, target)[counts]
    angle = torch.acos(cosine.clamp(-_MOST_COSINE, _MOST_COSINE))
    if concentration is None:
        return angle.mean()
    kappa = functional.elu(concentration[:, 0][counts]) + _LEAST_CONCENTRATION
    return (kappa * angle - torch.log(kappa**2 + 1) + torch.log1p(torch.exp(-kappa * math.pi))).mean()


def cosines(x: "Tensor", y: "Tensor") -> "Tensor":
    """Return the cosines (N, H, W) of vectors (N, K, H, W); 0 with a vector of length 0.

    Sums over the planes, contiguous: `cosine_similarity` over the channels takes 17 times as long on a CPU.

    >>> import torch
    >>> x, y = torch.tensor([3.0, 4.0]).reshape(1, 2, 1, 1), torch.tensor([2.0, 0.0]).reshape(1, 2, 1, 1)
    >>> round(cosines(x, y).item(), 4)
    0.6
    """
    squares = _products(x, x) * _products(y, y)
    return _products(x, y) * squares.clamp(min=_LEAST_SQUARES).rsqrt()


def _products(x: "Tensor", y: "Tensor") -> "Tensor":
    planes = [a * b for a, b in zip(x.unbind(1), y.unbind(1), strict=True)]
    return functools.reduce(operator.add, planes)


def balanced_cross_entropy(probabilities: "Tensor", targets: "Tensor") -> "Tensor":
    """Return the cross-entropy of two classes whose weights are the shares of the other one (Xie and Tu, 2015).

    The weights are those of each image: however few pixels are boundaries, they count as much as all others.

    >>> import torch
    >>> even = torch.full((1, 1, 1, 4), 0.5)
    >>> round(float(balanced_cross_entropy(even, torch.tensor([[[[1.0, 0.0, 0.0, 0.0]]]]))), 4)  # 2 * 3/16 * ln 2
    0.2599

    Args:
        probabilities: (B, 1, H, W).
        targets: (B, 1, H, W), 1, 0, or nan where a pixel does not count.
    """
    import torch

    known = ~targets.isnan()
    positive = known & (targets > 0)
    numbers = known.sum(dim=(1, 2, 3), keepdim=True).clamp(min=1)
    share = positive.sum(dim=(1, 2, 3), keepdim=True) / numbers
    inside = probabilities.float().clamp(1e-6, 1 - 1e-6)
    found = -torch.where(positive, (1 - share) * inside.log(), share * (1 - inside).log())
    return (torch.where(known, found, 0.0) / numbers).sum() / len(targets)
