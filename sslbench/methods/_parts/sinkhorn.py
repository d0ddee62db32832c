"""Sinkhorn-Knopp: soft assignments of samples to prototypes with prescribed, by default equal, shares."""

import torch
from torch import Tensor

from sslbench.distributed.collectives import max_, sum_


@torch.no_grad()
def sinkhorn(scores: Tensor, *, epsilon: float, iterations: int, power_law: float = 0.0) -> Tensor:
    """Return the assignments of this process's samples, balanced over all processes (SwAV, eq. 3 to 5).

    The iterations start from exp(scores / epsilon); each scales the prototypes to their shares and then the samples to
    1. They are computed with logarithms, so that no score overflows or underflows for any epsilon; where the published
    exponential form is finite, the results are equal.

    >>> codes = sinkhorn(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), epsilon=0.05, iterations=3)
    >>> [[round(code, 3) for code in row] for row in codes.tolist()]  # both prototypes get the same share
    [[0.5, 0.5], [0.5, 0.5]]

    Args:
        scores: (n, K), similarities of this process's samples and the prototypes; n may differ between processes.
        epsilon: weight of the entropy; smaller values give sharper assignments.
        iterations: number of iterations; 0 gives softmax(scores / epsilon).
        power_law: exponent of the shares: prototype i gets (i + 1) ** -power_law; 0 gives equal shares.

    Returns:
        (n, K) in the dtype of `scores`; rows sum to 1.
    """
    rank_of_prototype = torch.arange(1, scores.shape[1] + 1, device=scores.device, dtype=scores.dtype)
    log_share = (-power_law * rank_of_prototype.log()).log_softmax(dim=0)
    log_q = scores / epsilon
    for _ in range(iterations):
        log_q = log_q - _log_sum_over_samples(log_q) + log_share
        log_q = log_q.log_softmax(dim=1)
    return log_q.softmax(dim=1)


def _log_sum_over_samples(x: Tensor) -> Tensor:
    """Return log(sum(exp(x))) over the rows of all processes: (n, K) -> (K,)."""
    shift = max_(x.amax(dim=0) if len(x) else x.new_full(x.shape[1:], -torch.inf))  # n may be 0 on some processes
    return sum_((x - shift).exp().sum(dim=0)).log() + shift
