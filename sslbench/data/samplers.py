"""In which order training shows its images: a function of (seed, epoch, process), so there is no state to save."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.names import did_you_mean

SamplerName = Literal["shuffled", "balanced", "stratified"]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)

Indices = npt.NDArray[np.int64]

_ORDER = 0  # tells the random numbers of the order from those of the augmentation


def check_sampler(sampler: str, source: Source) -> None:
    """Whether there is such a sampler, and the labels that it needs.

    Raises:
        UsageError: it has another name, or an image has not exactly one class.
    """
    if sampler not in SAMPLERS:
        raise UsageError(f"there is no sampler '{sampler}'. {did_you_mean(sampler, SAMPLERS)}")
    if sampler != "shuffled" and source.labels.kind != "single":
        raise UsageError(
            f"sampler={sampler} needs images with one class each, and {source.name} has "
            + ("none" if source.labels.kind == "none" else f"labels of the kind '{source.labels.kind}'"),
            "Leave sampler away: every image is shown once per epoch, in a random order.",
        )


def epoch_order(sampler: SamplerName, n: int, classes: Indices | None, *, seed: int, epoch: int, rank: int) -> Indices:
    """The images of one epoch of one process.

    - 'shuffled': every image once, in random order.
    - 'stratified': every image once, in a random order in which every stretch has nearly the classes' shares.
    - 'balanced': every class equally often (to within one image), and within a class every image equally often (to
      within one): images of rare classes come several times, some of frequent classes not in this epoch.

    Args:
        sampler: which.
        n: images of the process.
        classes: int64 (n,), the class of each; not needed to shuffle.
        seed: of the run.
        epoch: another one gives another order.
        rank: of the process, which balances its own images.

    Returns:
        int64 (n,), positions among the images of the process.
    """
    rng = np.random.default_rng((_ORDER, seed, epoch, rank))
    if sampler == "shuffled":
        return rng.permutation(n)
    if classes is None:
        raise ValueError(f"{sampler} without classes")
    _, number, counts = np.unique(classes, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(number, kind="stable"), np.cumsum(counts)[:-1])
    if sampler == "stratified":
        # The j-th of m images of a class lies somewhere in the j-th of m equal parts of the epoch.
        moments = np.empty(n)
        for rows in members:
            moments[rng.permutation(rows)] = (np.arange(len(rows)) + rng.random(len(rows))) / len(rows)
        return np.argsort(moments, kind="stable")
    quota = np.full(len(members), n // len(members))
    quota[rng.permutation(len(members))[: n % len(members)]] += 1
    drawn = [_equally_often(rows, int(q), rng) for rows, q in zip(members, quota, strict=True)]
    return rng.permutation(np.concatenate(drawn))


def _equally_often(rows: Indices, n: int, rng: np.random.Generator) -> Indices:
    return np.concatenate([np.repeat(rows, n // len(rows)), rng.permutation(rows)[: n % len(rows)]])


def occurrences(order: Indices) -> Indices:
    """For every entry how often the same image came before in the epoch, so that its views can be others each time."""
    by_image = np.argsort(order, kind="stable")
    starts = np.flatnonzero(np.diff(order[by_image], prepend=-1))
    lengths = np.diff(np.append(starts, len(order)))
    found = np.empty(len(order), dtype=np.int64)
    found[by_image] = np.arange(len(order)) - np.repeat(starts, lengths)
    return found
