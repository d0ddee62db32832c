"""Memory banks and queues, and clusters of them.

A memory holds an embedding of every training image (NPID, PIRL) or the newest ones (MoCo, DenseCL).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import gather, rank, sum_, world_size
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.train.method import Step


@dataclasses.dataclass(frozen=True)
class ContrastSettings:
    """Settings of a contrast with a memory bank."""

    negatives: int = setting(32000, "random images that each image is contrasted with", within="[1, inf)")
    temperature: float = setting(0.07, "temperature of the similarities", within="(0, inf)")
    momentum: float = setting(0.5, "share of the old embedding when the memory is updated", within="[0, 1)")
    contrast: Literal["nce", "info_nce"] = setting(
        "nce", "loss: nce (noise-contrastive estimation) or info_nce (cross entropy)"
    )


_EPSILON = torch.finfo(torch.float32).eps  # added to every denominator in the published code


@in_float32
def noise_contrastive(logits: Tensor, log_z: Tensor, images: int) -> Tensor:
    """Return the noise-contrastive loss (Wu et al. 2018, eq. 5 to 7), summed over the negatives of each image.

    `logits`: (B, 1 + K), similarities divided by the temperature; the positive comes first.

    >>> logits = torch.zeros(1, 3)  # P = 1 / N for the positive and both negatives: log(3) + 2 log(3 / 2)
    >>> round(float(noise_contrastive(logits, torch.tensor(10.0).log(), 10)), 4)
    1.9095
    """
    # The probability of image i under the model is P(i) = exp(logit) / Z, under the noise 1 / N. All is computed with
    # logarithms, so small temperatures do not overflow.
    log_p = logits - log_z
    noise = (logits.shape[1] - 1) / images
    log_noise, log_rest = math.log(noise), math.log(noise + _EPSILON)
    positive = functional.softplus(log_rest - log_p[:, 0])
    negatives = log_rest - log_noise + functional.softplus(log_p[:, 1:] - log_rest)
    return (positive + negatives.sum(dim=1)).mean()


@torch.no_grad()
@in_float32
def log_normalisation(logits: Tensor, images: int) -> Tensor:
    """Return log Z, estimated as N times the mean of exp(logit) over the batches of all processes.

    `logits`: (B, 1 + K) on each process.

    >>> round(float(log_normalisation(torch.zeros(2, 3), 10).exp()), 4)
    10.0
    """
    own = logits.logsumexp(dim=(0, 1)) - math.log(logits.numel())
    every = gather(own[None])
    return every.logsumexp(dim=0) - math.log(len(every)) + math.log(images)


class MemoryBank(nn.Module):
    """Embedding of every training image, equal on all processes, with the constant of the noise-contrastive loss.

    Args:
        images: N, number of images.
        dim: d, dimension of the embeddings.

    Attributes:
        vectors: (N, d), rows of length 1, random at the start.
        log_z: scalar, logarithm of the normalisation Z; infinite until it is estimated on the first batch.
    """

    vectors: Tensor
    log_z: Tensor

    def __init__(self, images: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("vectors", functional.normalize(torch.rand(images, dim) * 2 - 1, dim=1))
        self.register_buffer("log_z", torch.tensor(math.inf))
        self._new: list[tuple[Tensor, Tensor]] = []

    def draw(self, negatives: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the numbers of random images for each of B images, uniform with replacement: int64 (B, negatives)."""
        # An image may be drawn as its own negative, as in the published code.
        images, device = len(self.vectors), self.vectors.device
        return torch.stack([torch.randint(images, (negatives,), generator=each, device=device) for each in generators])

    @in_float32
    def logits(self, embeddings: Tensor, images: Tensor, negatives: Tensor, temperature: float) -> Tensor:
        """Return similarities with the memory of the own image and of the negatives, divided by the temperature.

        `embeddings`: (B, d), rows of length 1; `images`: int64 (B,), number of each embedding's image; `negatives`:
        int64 (B, K), numbers of other images; returns (B, 1 + K), the own image first.
        """
        chosen = torch.cat([images[:, None], negatives], dim=1)
        # Similarities with all images, or a copy of the chosen ones: whichever takes less memory.
        if chosen.shape[1] * embeddings.shape[1] >= len(self.vectors):
            return (embeddings @ self.vectors.T).gather(1, chosen) / temperature
        return torch.einsum("bd,bkd->bk", embeddings, self.vectors[chosen]) / temperature

    @in_float32
    def loss(self, logits: Tensor, contrast: Literal["nce", "info_nce"]) -> Tensor:
        """Return the mean loss of a batch; the first one with 'nce' estimates the normalisation.

        `logits`: (B, 1 + K), see `logits`.
        """
        if contrast == "info_nce":
            return (logits.logsumexp(dim=1) - logits[:, 0]).mean()
        if self.log_z.isinf():
            self.log_z.copy_(log_normalisation(logits, len(self.vectors)))
        return noise_contrastive(logits, self.log_z, len(self.vectors))

    def contrast(
        self, embeddings: Tensor, images: Tensor, generators: Sequence[torch.Generator], settings: ContrastSettings
    ) -> Tensor:
        """Return the loss of embeddings (B, d) with the memory of their images and of random others; see `logits`."""
        negatives = self.draw(settings.negatives, generators)
        return self.loss(self.logits(embeddings, images, negatives, settings.temperature), settings.contrast)

    def note(self, images: Tensor, embeddings: Tensor) -> None:
        """Keep the embeddings of a forward pass until `store_`: all passes of an update see the same memory."""
        self._new.append((images, embeddings.detach()))

    def store_(self, momentum: float) -> None:
        """Move the memory by the embeddings noted since the last update, see `update_`."""
        images, embeddings = (torch.cat(column) for column in zip(*self._new, strict=True))
        self._new.clear()
        self.update_(images, embeddings, momentum)

    @torch.no_grad()
    def update_(self, images: Tensor, embeddings: Tensor, momentum: float) -> None:
        """Move the memory of this process's images, and of all other processes', towards their new embeddings.

        `images`: int64 (B,), numbers of the images; `embeddings`: (B, d), rows of length 1.
        """
        # An image that occurs several times is moved once, towards the mean of its embeddings.
        rows, place, counts = gather(images).unique(  # type: ignore[no-untyped-call]
            return_inverse=True, return_counts=True
        )
        new = sums_of(gather(embeddings).to(self.vectors.dtype), place, len(rows))
        moved = momentum * self.vectors[rows] + (1 - momentum) * new / counts[:, None]
        self.vectors[rows] = functional.normalize(moved, dim=1)


def sums_of(rows: Tensor, place: Tensor, n: int) -> Tensor:
    """Return the sum of the rows of each place, (n, d), with the same rounding in every run.

    `rows`: (N, d); `place`: int64 (N,), from 0 to n - 1.
    """
    # On a GPU, `index_add_` adds in any order and `index_put_` in that of the rows; on a processor it is the other way
    # round.
    sums = rows.new_zeros((n, rows.shape[1]))
    return sums.index_put_((place,), rows, accumulate=True) if rows.is_cuda else sums.index_add_(0, place, rows)


def counts_of(place: Tensor, n: int) -> Tensor:
    """Return the number of rows of each place, int64 (n,), without waiting for a GPU as `bincount` does.

    `place`: int64 (N,), from 0 to n - 1.

    >>> counts_of(torch.tensor([2, 0, 2]), 4).tolist()
    [1, 0, 2, 0]
    """
    return place.new_zeros(n).scatter_add_(0, place, torch.ones_like(place))


def enqueue_(queue: Tensor, new: Tensor, pointer: int) -> int:
    """Overwrite the oldest rows of a ring buffer in place, and return the next pointer.

    `queue`: (K, d); `new`: (n, d), where K is a multiple of n.

    >>> queue = torch.arange(4.0).view(4, 1)
    >>> enqueue_(queue, torch.tensor([[8.0], [9.0]]), 2)
    0
    >>> queue.flatten().tolist()
    [0.0, 1.0, 8.0, 9.0]
    """
    queue[pointer : pointer + len(new)] = new
    return (pointer + len(new)) % len(queue)


def random_rows(n: int, dim: int) -> Tensor:
    """Return random rows of length 1, (n, dim), with which a queue starts."""
    return functional.normalize(torch.randn(n, dim), dim=1)


@torch.no_grad()
def nearest(embeddings: Tensor, queue: Tensor) -> Tensor:
    """Return for each embedding the row of the queue with the largest product (NNCLR, eq. 2), (B, d).

    `embeddings`: (B, d), rows of length 1; `queue`: (K, d), rows of length 1.

    >>> nearest(torch.tensor([[0.6, 0.8]]), torch.eye(2)).tolist()
    [[0.0, 1.0]]
    """
    return queue[(embeddings @ queue.T).argmax(dim=1)]


@torch.no_grad()
def replace_oldest_(queue: Tensor, new: list[Tensor], step: Step) -> None:
    """Replace the oldest rows of a queue by those of an update, of all its passes and processes; empty the list.

    `queue`: (K, d); `new`: (B, d) of each pass, where K is a multiple of the rows of an update.
    """
    rows = gather(torch.cat(new))
    new.clear()
    # The pointer follows from the step, so it is neither read back from the GPU nor part of a checkpoint.
    enqueue_(queue, rows, step.index * len(rows) % len(queue))


def shift_in(queue: Tensor, new: Tensor) -> Tensor:
    """Return a queue (..., K, d) with the new rows (..., n, d) in front and without its oldest n rows.

    >>> shift_in(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[9.0]])).flatten().tolist()
    [9.0, 1.0, 2.0]
    """
    return torch.cat([new, queue], dim=-2)[..., : queue.shape[-2], :]


def need_whole_updates(queue: int, images: int, *, method: str) -> None:
    """Require a queue that is a multiple of the images per update."""
    if queue > 0 and queue % images == 0:
        return
    below, above = queue // images * images, (max(queue, 1) + images - 1) // images * images
    queues = " or ".join(str(n) for n in (below, above) if n > 0)
    divisors = [n for n in range(1, queue + 1) if queue % n == 0]
    near = {max((n for n in divisors if n < images), default=0), min((n for n in divisors if n > images), default=0)}
    batches = " or ".join(str(n) for n in sorted(near - {0}))
    raise UsageError(
        f"{method}: queue={queue} is no multiple of images_per_update={images}",
        f"Set method.queue to {queues}" + (f", or batch_size to {batches}." if batches else "."),
    )


_CHUNK = 16384
"""Rows whose similarities with all centroids are in memory at once."""


@torch.no_grad()
@in_float32
def spherical_kmeans(rows: Tensor, centroids: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return the centroids after some iterations of spherical k-means, and the nearest of them for each row.

    `rows`: (N, d), rows of length 1, equal on all processes; `centroids`: (K, d), rows of length 1, the initial
    centroids, equal on all processes; returns (K, d) and int64 (N,), equal on all processes.

    >>> rows = functional.normalize(torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.0]]), dim=1)
    >>> centroids, assignments = spherical_kmeans(rows, rows[[0, 2]], 2)
    >>> centroids.round(decimals=3).tolist(), assignments.tolist()
    ([[1.0, 0.0], [-1.0, 0.0]], [0, 0, 1])
    """
    # Each iteration replaces a centroid by the normalised mean of its rows; one without rows stays.
    own = rows[rank() :: world_size()]
    for _ in range(iterations):
        nearest = _nearest(own, centroids)
        sums = sums_of(own, nearest, len(centroids))
        counts = counts_of(nearest, len(centroids))
        means = functional.normalize(sum_(sums) / sum_(counts).clamp(min=1)[:, None], dim=1)
        centroids = torch.where(counts[:, None] > 0, means, centroids)
    return centroids, _nearest(rows, centroids)


def _nearest(rows: Tensor, centroids: Tensor) -> Tensor:
    """Return the centroid of the largest inner product for each row, int64 (n,)."""
    return torch.cat([(chunk @ centroids.T).argmax(dim=1) for chunk in torch.split(rows, _CHUNK)])
