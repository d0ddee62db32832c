"""Variance and covariance of embeddings (VICReg and VICRegL)."""

from torch import Tensor
from torch.nn import functional


def variance_and_covariance(z: Tensor, *, epsilon: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Return VICReg's terms of one set of embeddings (Bardes et al., arXiv 2105.04906, equations 1 to 4).

    >>> import torch
    >>> [round(float(term), 3) for term in variance_and_covariance(torch.tensor([[2.0, 0.0], [-2.0, 0.0]]))]
    [0.495, 0.0]

    Args:
        z: (n, d), or (S, n, d) for the mean of both terms over S sets.
        epsilon: added to the variances.

    Returns:
        The mean hinge max(0, 1 - standard deviation), and the sum of squared covariances divided by d.
    """
    n, d = z.shape[-2:]
    hinge = functional.relu(1 - (z.var(dim=-2) + epsilon).sqrt()).mean()
    centred = z - z.mean(dim=-2, keepdim=True)
    covariance = centred.mT @ centred / (n - 1)
    # All but the last entry as rows of d + 1: the diagonal is the first column.
    off_diagonal = covariance.flatten(-2)[..., :-1].reshape(*z.shape[:-2], d - 1, d + 1)[..., 1:]
    return hinge, off_diagonal.square().sum((-2, -1)).mean() / d
