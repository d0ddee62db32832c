"""Losses of several methods in full precision, whatever the precision of the networks, and Sinkhorn iterations."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from sslbench.distributed.collectives import gather_with_gradient, max_, rank, sum_, world_size

P = ParamSpec("P")
R = TypeVar("R")


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function outside autocast, with half-precision arguments converted to float32; float64 is kept."""
    # Autocast would compute the matrix products of a loss in half precision even on float32 tensors. Arguments may be
    # tensors, or lists, tuples and dictionaries of tensors.

    @functools.wraps(function)
    def widened(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next(_tensors((args, kwargs))).device.type
        wide, named = _widen(list(args)), _widen(kwargs)
        with torch.autocast(device, enabled=False):
            return function(*wide, **named)

    return widened


@in_float32
def unit_length(x: Tensor) -> Tensor:
    """Return the rows of a (n, d) tensor scaled to length 1."""
    return functional.normalize(x, dim=1)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _tensors(item)


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    if isinstance(value, dict):
        return {key: _widen(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_widen(item) for item in value]
    if type(value) is tuple:
        return tuple(_widen(item) for item in value)
    return value


@in_float32
def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the mean cross entropy; samples with label -1 are ignored.

    `logits`: (B, C); `labels`: int64 (B,), or the shares of the classes (B, C) of mixed images.

    >>> round(float(cross_entropy(torch.zeros(2, 4), torch.tensor([1, 3]))), 4)  # log(4)
    1.3863
    """
    return functional.cross_entropy(logits, labels, ignore_index=-1, label_smoothing=smoothing)


@in_float32
def multi_label_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross entropy, mean over the known labels of each class, summed over classes (VISSL).

    `logits`: (B, C); `targets`: int8 (B, C), 1 present, 0 absent, -1 ignored.

    >>> targets = torch.tensor([[1, 0], [-1, 1]], dtype=torch.int8)
    >>> round(float(multi_label_loss(torch.zeros(2, 2), targets)), 4)  # 2 classes of log(2)
    1.3863
    """
    # The means are over the images of all processes, so that the mean over processes is the loss of the whole batch.
    known = targets >= 0
    each = functional.binary_cross_entropy_with_logits(logits, targets.clamp(min=0).to(logits.dtype), reduction="none")
    counts = sum_(known.sum(dim=0).to(logits.dtype)).clamp(min=1) / world_size()
    return ((each * known).sum(dim=0) / counts).sum()


@torch.no_grad()
def top1(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the top-1 accuracy of (B, C) logits in percent."""
    return (logits.argmax(dim=1) == labels).float().mean() * 100


def similarities(views: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the similarities of views of one image, and for each view the sum over those of all other images.

    `views`: (V, B, d), this process's embeddings of V views, not necessarily normalised; returns (V, V, B): view v of
    image i with view w of the same image; and (V, 1, B): the logarithm of the sum of the exponentials over all views of
    all other images on all processes.

    >>> positives, negatives = similarities(torch.eye(2).expand(2, 2, 2), 1.0)
    >>> positives[0, 1].tolist(), [round(value, 4) for value in negatives[0, 0].tolist()]
    ([1.0, 1.0], [0.6931, 0.6931])
    """
    # Similarities are cosines divided by the temperature. Log-sum-exp is shifted, so small temperatures do not
    # overflow.
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

    `query`: (B, d), rows of length 1; `key`: (B, d), rows of length 1, the positive of each query; `queue`: (K, d),
    rows of length 1, the negatives.

    >>> q = torch.tensor([[1.0, 0.0]])
    >>> round(float(info_nce(q, q, torch.tensor([[0.0, 1.0]]), 1.0)), 4)  # log(1 + exp(-1))
    0.3133
    """
    query = query / temperature
    positives = (query * key).sum(dim=1)
    negatives = (query @ queue.T).logsumexp(dim=1)
    # -log(e^p / (e^p + e^n)), without a (B, K + 1) copy of the logits.
    return functional.softplus(negatives - positives).mean()


@in_float32
def cross_view_contrast(anchors: Tensor, positives: Tensor, temperature: float) -> Tensor:
    """Return the cross entropy of each anchor's own positive among those of all images of all processes.

    It is InfoNCE with the other images of the other view as negatives (NNCLR, eq. 3; DirectCLR).

    `anchors`: (B, d), rows of length 1; `positives`: (B, d), rows of length 1, of the other view of each image.

    >>> round(float(cross_view_contrast(torch.eye(2), torch.eye(2), 1.0)), 4)  # log(1 + exp(-1))
    0.3133
    """
    logits = anchors @ gather_with_gradient(positives).T / temperature
    labels = torch.arange(len(logits), device=logits.device) + rank() * len(logits)
    return functional.cross_entropy(logits, labels)


def variance_and_covariance(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return VICReg's terms of one set of embeddings (Bardes et al., arXiv 2105.04906, equations 1 to 4).

    `z`: (n, d), or (S, n, d) for the mean of both terms over S sets; returns the mean hinge max(0, 1 - standard
    deviation), and the sum of squared covariances divided by d.

    >>> import torch
    >>> [round(float(term), 3) for term in variance_and_covariance(torch.tensor([[2.0, 0.0], [-2.0, 0.0]]))]
    [0.495, 0.0]
    """
    n, d = z.shape[-2:]
    hinge = functional.relu(1 - (z.var(dim=-2) + 1e-4).sqrt()).mean()
    centred = z - z.mean(dim=-2, keepdim=True)
    covariance = centred.mT @ centred / (n - 1)
    # All but the last entry as rows of d + 1: the diagonal is the first column.
    off_diagonal = covariance.flatten(-2)[..., :-1].reshape(*z.shape[:-2], d - 1, d + 1)[..., 1:]
    return hinge, off_diagonal.square().sum((-2, -1)).mean() / d


@torch.no_grad()
def sinkhorn(scores: Tensor, *, epsilon: float, iterations: int, power_law: float = 0.0) -> Tensor:
    """Return the assignments of this process's samples, balanced over all processes (SwAV, eq. 3 to 5).

    `scores`: (n, K), similarities of this process's samples and the prototypes; n may differ between processes; or (n,
    P, K), of P sets of samples, each balanced by itself; returns them in the dtype of `scores`; rows sum to 1.

    >>> codes = sinkhorn(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), epsilon=0.05, iterations=3)
    >>> [[round(code, 3) for code in row] for row in codes.tolist()]  # both prototypes get the same share
    [[0.5, 0.5], [0.5, 0.5]]
    """
    # The iterations start from exp(scores / epsilon); each scales the prototypes to their shares and then the samples
    # to 1. They are computed with logarithms, so that no score overflows or underflows for any epsilon; where the
    # published exponential form is finite, the results are equal.
    rank_of_prototype = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    log_share = (-power_law * rank_of_prototype.log()).log_softmax(dim=0)
    log_q = scores / epsilon
    for _ in range(iterations):
        # n may be 0 on some processes; the shift keeps the exponentials finite.
        shift = max_(log_q.amax(dim=0) if len(log_q) else log_q.new_full(log_q.shape[1:], -torch.inf))
        log_q = log_q - (sum_((log_q - shift).exp().sum(dim=0)).log() + shift) + log_share
        log_q = log_q.log_softmax(dim=-1)
    return log_q.softmax(dim=-1)
