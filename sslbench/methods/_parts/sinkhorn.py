"""Sinkhorn-Knopp: soft assignments of all samples to prototypes that use every prototype equally (or as prescribed)."""

import torch
from torch import Tensor

from sslbench.distributed.collectives import max_, sum_


@torch.no_grad()
def sinkhorn(scores: Tensor, *, epsilon: float, iterations: int, power_law: float = 0.0) -> Tensor:
    """Assignments of this process's samples, balanced over the samples of all processes (SwAV, eq. 3 to 5).

    Starts from exp(scores / epsilon); each iteration scales the prototypes to their shares and then the samples to 1.
    Computed with logarithms: no score overflows, and none that is far below the best underflows to a division by zero,
    for any epsilon. The exponential form of the published code gives the same numbers where it gives numbers.

    Args:
        scores: (n, K), similarities of this process's samples with the prototypes; n may differ between processes.
        epsilon: smaller is sharper.
        iterations: 0 gives softmax(scores / epsilon).
        power_law: prototype i gets a share proportional to (i + 1) ** -power_law; 0 means equal shares.

    Returns:
        (n, K), rows sum to 1; in the dtype of `scores`.
    """
    rank_of_prototype = torch.arange(1, scores.shape[1] + 1, device=scores.device, dtype=scores.dtype)
    log_share = (-power_law * rank_of_prototype.log()).log_softmax(dim=0)
    log_q = scores / epsilon
    for _ in range(iterations):
        log_q = log_q - _log_sum_over_samples(log_q) + log_share
        log_q = log_q.log_softmax(dim=1)
    return log_q.softmax(dim=1)


def _log_sum_over_samples(x: Tensor) -> Tensor:
    """log(sum(exp(x))) over the rows of all processes: (n, K) -> (K,)."""
    shift = max_(x.amax(dim=0))
    return sum_((x - shift).exp().sum(dim=0)).log() + shift
