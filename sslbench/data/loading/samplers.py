"""Order of the images in training: a function of (seed, epoch), without state to save."""

import logging
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.sharded import WINDOW
from sslbench.data.source import ORIGIN, Source
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.targets.classes import Classes

SamplerName = Literal["shuffled", "balanced", "stratified", "weighted", "shards"]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
AskedSampler = Literal["auto", "shuffled", "balanced", "stratified", "weighted", "shards"]
"""'auto': 'weighted' if the data have weights, otherwise 'shuffled'."""

REPEATING: tuple[SamplerName, ...] = ("balanced", "weighted")
"""Samplers that may repeat an image within an epoch."""


_ORDER, _SHARDS = 0, 3  # random streams, apart from those of the augmentation
_log = logging.getLogger("sslbench")


def choose_sampler(asked: str, source: Source) -> SamplerName:
    """Return the requested sampler; warn if it ignores the data's weights."""
    if asked == "auto":
        asked = "weighted" if source.weights else "shuffled"
    sampler = check_sampler(asked, source)
    if sampler == "weighted":
        present = set(source.attributes[ORIGIN])
        for name in sorted(set(source.weights) - present):
            raise UsageError(
                f"sampler=weighted: there is no image of {name} in {source.name}",
                "Use a larger --limit, or drop this source.",
            )
    elif source.weights:
        _log.warning("%s: sampler=%s ignores its weights", source.name, sampler)
    return sampler


def check_sampler(sampler: str, source: Source) -> SamplerName:
    """Return the sampler of that name, after a check that the source has the labels that it needs."""
    known = next((name for name in SAMPLERS if name == sampler), None)
    if known is None:
        raise UsageError(f"there is no sampler '{sampler}'. {did_you_mean(sampler, SAMPLERS)}")
    if sampler == "weighted" and ORIGIN not in source.attributes:
        raise UsageError(
            f"sampler=weighted mixes several sources, but {source.name} is a single one",
            "List them with their weights in a YAML file; or sampler=balanced shows every class equally often.",
        )
    if sampler in ("balanced", "stratified") and not isinstance(source.target, Classes):
        raise UsageError(
            f"sampler={sampler} needs images with one class each, and those of {source.name} have "
            f"{source.target.title}",
            "Leave out sampler= to draw every image once per epoch, in random order.",
        )
    return known


def origins_of(source: Source) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Return the origin number of each image of joined sources, int64 (N,), and the origins' weights.

    Origins are numbered in the order of their names; the default weight is 1.
    """
    column = source.attributes[ORIGIN]
    names = sorted({*column, *source.weights})
    number = {name: i for i, name in enumerate(names)}
    codes = np.fromiter((number[name] for name in column), dtype=np.int64, count=len(column))
    return codes, np.array([source.weights.get(name, 1.0) for name in names])


def epoch_order(
    sampler: SamplerName,
    n: int,
    classes: IntArray | None,
    *,
    seed: int,
    epoch: int,
    shards: IntArray | None = None,
    window: int = WINDOW,
    weights: npt.NDArray[np.float64] | None = None,
) -> IntArray:
    """Return the order of the images in one epoch, int64 (n,).

    - 'shuffled': every image once, in random order.
    - 'stratified': every image once, in a random order in which every stretch nearly has the classes' shares.
    - 'balanced': every class equally often (to within one image), and within a class every image equally often (to
      within one): images of rare classes come several times, some of frequent classes not in this epoch.
    - 'weighted': every origin in proportion to its weight (to within one image, and exactly over many epochs), and
      within an origin every image equally often (to within one).
    - 'shards': every image once. The shards come in random order, and the images of each are spread over the time of
      `window` shards: at any moment they come from at most so many. For shards that do not all fit on this machine:
      neighbours are less mixed than by 'shuffled', as in webdataset's shuffle buffer.

    `classes`: int64 (n,), class of each image, for 'weighted' its origin; used by 'balanced', 'stratified', 'weighted';
    `shards`: int64 (n,), shard of each image; used by 'shards'; `weights`: float64, weight of each origin; None: equal
    weights.

    >>> classes = np.array([0] * 90 + [1] * 10)
    >>> order = epoch_order("balanced", 100, classes, seed=0, epoch=0)
    >>> np.bincount(classes[order]).tolist()
    [50, 50]
    """
    rng = np.random.default_rng((_ORDER, seed, epoch, 0))
    if sampler == "shuffled":
        return rng.permutation(n)
    if sampler == "shards":
        if shards is None:
            raise ValueError("no shards")
        kinds, number = np.unique(shards, return_inverse=True)
        # The k-th shard gets the k-th random number, whatever other shards a process has.
        moments = np.random.default_rng((_SHARDS, seed, epoch)).random(int(kinds.max(initial=-1)) + 1)[kinds]
        turns = np.empty(len(kinds), dtype=np.int64)
        turns[np.argsort(moments)] = np.arange(len(kinds))
        return np.argsort(turns[number] + window * rng.random(n), kind="stable")
    if classes is None:
        raise ValueError(f"{sampler} without classes")
    present, first, number, counts = np.unique(classes, return_index=True, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(number, kind="stable"), np.cumsum(counts)[:-1])
    if sampler != "weighted":
        members = [members[c] for c in np.argsort(first)]  # no number of a class decides
    if sampler == "stratified":
        # The j-th of m images of a class lies somewhere in the j-th of m equal parts of the epoch.
        moments = np.empty(n)
        for rows in members:
            moments[rng.permutation(rows)] = (np.arange(len(rows)) + rng.random(len(rows))) / len(rows)
        return np.argsort(moments, kind="stable")
    if sampler == "weighted":
        # Systematic sampling: the shares lie end to end, and each counts the unit marks, from a random start, that it
        # contains; so its mean over epochs is exact.
        shares = np.ones(len(members)) if weights is None else weights[present]
        ends = np.cumsum(shares) / shares.sum() * n
        # The sum may be rounded below n, and the last mark be lost.
        ends[-1] = n
        marks: IntArray = np.floor(ends + rng.random()).astype(np.int64)
        quota = np.diff(marks, prepend=0)
    else:
        quota = np.full(len(members), n // len(members))
        quota[rng.permutation(len(members))[: n % len(members)]] += 1
    drawn: list[IntArray] = []
    for rows, q in zip(members, quota.tolist(), strict=True):
        drawn += [np.repeat(rows, q // len(rows)), rng.permutation(rows)[: q % len(rows)]]
    return rng.permutation(np.concatenate(drawn))


def occurrences(order: IntArray) -> IntArray:
    """Return the number of earlier occurrences of each entry in the epoch, so that repeated images get other views.

    Examples:
        >>> occurrences(np.array([3, 1, 3, 3])).tolist()
        [0, 0, 1, 2]
    """
    # Stable, so that repetitions stay in the order in which they come.
    by_image = np.argsort(order, kind="stable")
    starts = np.flatnonzero(np.diff(order[by_image], prepend=-1))
    lengths = np.diff(np.append(starts, len(order)))
    found = np.empty(len(order), dtype=np.int64)
    found[by_image] = np.arange(len(order)) - np.repeat(starts, lengths)
    return found
