"""Contrastive losses: similarities of the views of images (SimCLR and its successors), InfoNCE with a queue (MoCo)."""

import torch
from torch import Tensor
from torch.nn import functional

from sslbench.distributed.collectives import gather_with_gradient, rank
from sslbench.methods._parts.precision import in_float32


def similarities(views: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the similarities of views of one image, and for each view the sum over those of all other images.

    Similarities are cosines divided by the temperature. Log-sum-exp is shifted, so small temperatures do not overflow.

    >>> positives, negatives = similarities(torch.eye(2).expand(2, 2, 2), 1.0)
    >>> positives[0, 1].tolist(), [round(value, 4) for value in negatives[0, 0].tolist()]
    ([1.0, 1.0], [0.6931, 0.6931])

    Args:
        views: (V, B, d), this process's embeddings of V views, not necessarily normalised.
        temperature: temperature, above 0.

    Returns:
        (V, V, B): view v of image i with view w of the same image; and (V, 1, B): the logarithm of the sum of the
        exponentials over all views of all other images on all processes.
    """
    z = functional.normalize(views, dim=2)
    n_views, n_images, _ = z.shape
    rows = n_views * n_images
    anchors = z.flatten(0, 1)
    logits = anchors @ gather_with_gradient(anchors).T / temperature  # (rows, world * rows)
    local = slice(rank() * rows, (rank() + 1) * rows)

    image = torch.arange(n_images, device=z.device).repeat(n_views)
    same_image = torch.zeros_like(logits, dtype=torch.bool)
    same_image[:, local] = image[:, None] == image
    negatives = logits.masked_fill(same_image, -torch.inf).logsumexp(dim=1).view(n_views, 1, n_images)
    positives = logits[:, local].view(n_views, n_images, n_views, n_images).diagonal(dim1=1, dim2=3)
    return positives, negatives


def mean_over_pairs(terms: Tensor) -> Tensor:
    """Return the mean of (V, V, B) terms of pairs of different views of an image."""
    n_views, _, n_images = terms.shape
    itself = torch.eye(n_views, dtype=torch.bool, device=terms.device)[:, :, None]
    return terms.masked_fill(itself, 0).sum() / (n_views * n_images * (n_views - 1))


@in_float32
def info_nce(query: Tensor, key: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """Return InfoNCE, eq. 1 of MoCo: cross entropy of the positive key among itself and the queue.

    >>> q = torch.tensor([[1.0, 0.0]])
    >>> round(float(info_nce(q, q, torch.tensor([[0.0, 1.0]]), 1.0)), 4)  # log(1 + exp(-1))
    0.3133

    Args:
        query: (B, d), rows of length 1.
        key: (B, d), rows of length 1, the positive of each query.
        queue: (K, d), rows of length 1, the negatives.
        temperature: temperature, above 0.
    """
    query = query / temperature
    positives = (query * key).sum(dim=1)
    negatives = (query @ queue.T).logsumexp(dim=1)
    # -log(e^p / (e^p + e^n)), without a (B, K + 1) copy of the logits.
    return functional.softplus(negatives - positives).mean()
