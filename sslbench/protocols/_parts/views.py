"""Probabilities of videos from those of their views: clips and crops."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def over_views(decision: "Tensor", views: int, *, single: bool) -> "Tensor":
    """Return logits (N, ...) of the probabilities of N videos, the means over their views.

    Args:
        decision: (N * views, ..., K) logits of the views, one video after the other.
        views: of a video.
        single: the softmax is the probability of K classes that exclude each other; False: the sigmoid is.

    >>> import torch
    >>> logits = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    >>> over_views(logits, 2, single=True).exp().round(decimals=6).tolist()
    [[0.699999988079071, 0.30000001192092896]]
    """
    from torch.nn.functional import logsigmoid

    if views == 1:
        return decision
    parts = decision.reshape(-1, views, *decision.shape[1:])
    if single:
        return parts.log_softmax(-1).logsumexp(1) - math.log(views)
    return logsigmoid(parts).logsumexp(1) - logsigmoid(-parts).logsumexp(1)
