"""Seeded draws of a few training samples.

Single label: k images of every class, one set for all classes; scored one against the rest, that is VISSL's low-shot
Places205. Multi-label: VISSL's low-shot VOC07, in which every class has samples of its own, k positives and (C - 1) k
negatives. Or a share of train. For one seed a smaller k is a part of a larger one, and does not depend on which other
k are asked for.

Where samples belong to groups (the frames of a video), k samples are of as many groups as possible: of every group one,
and only if there are fewer groups a second one of each, and so on. A share of train is one of whole groups.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sslbench.data.source import Labels
from sslbench.protocols._common import class_sizes, folds_of

IntArray = npt.NDArray[np.int64]


class Shuffler(Protocol):
    """numpy's generators, the present and the legacy one, whose numbers never change between versions."""

    def permutation(self, x: IntArray, /) -> IntArray:
        """The same rows in another order."""
        ...


@dataclasses.dataclass(frozen=True)
class Draw:
    """One draw.

    Attributes:
        seed: that it was made with.
        rows: of train, ascending.
        labels: of these rows. Multi-label: -1 for a class that the row was not drawn for.
        groups: of these rows; None if no two of them share one.
    """

    seed: int
    rows: IntArray
    labels: Labels
    groups: IntArray | None = None

    def digest(self, ids: Sequence[str]) -> str:
        """16 hex digits of the ids of the samples and what they were drawn for; `ids` are those of all of train."""
        digest = hashlib.sha256("\n".join(ids[row] for row in self.rows).encode())
        digest.update(np.ascontiguousarray(self.labels.values).tobytes())
        return digest.hexdigest()[:16]


def seeds(seed: int, draws: int) -> list[int]:
    """The seeds of the draws; two runs with different seeds share none."""
    return [(seed * draws + i) % 2**32 for i in range(draws)]


def present(labels: Labels) -> IntArray:
    """The classes that have samples (multi-label: positives)."""
    if labels.kind == "single":
        return np.flatnonzero(np.bincount(labels.values, minlength=len(labels.classes)))
    return np.flatnonzero((labels.values > 0).any(axis=0))


def largest_k(labels: Labels) -> tuple[int, str]:
    """The largest k there are samples for, and what ends it: "12 of class 'dog'". Classes without any do not count."""
    classes = present(labels)
    if labels.kind == "single":
        counts = np.bincount(labels.values, minlength=len(labels.classes))[classes]
        least = int(np.argmin(counts))
        return int(counts[least]), f"{counts[least]} of class '{labels.classes[classes[least]]}'"
    others = max(1, len(classes) - 1)
    positive = (labels.values > 0).sum(axis=0)[classes]
    negative = (labels.values == 0).sum(axis=0)[classes]
    possible = np.minimum(positive, negative // others)
    least = int(np.argmin(possible))
    name = labels.classes[classes[least]]
    text = f"{positive[least]} with and {negative[least]} without '{name}'; k need k with and {others} k without"
    return int(possible[least]), text


def k_per_class(
    labels: Labels, k: int, seed: int, shuffler: Shuffler | None = None, *, groups: IntArray | None = None
) -> Draw:
    """As many images of every class that train has (single label).

    Args:
        labels: of train; every class it has at all has at least k samples.
        k: images per class.
        seed: of numpy's legacy generator, as in VISSL's balanced data limit.
        shuffler: another generator made from that seed.
        groups: (N,) the group of each sample of train, or None.
    """
    shuffled = orders(labels, shuffler or np.random.RandomState(seed))
    rows = np.concatenate([_spread(order, groups)[:k] for order in shuffled])
    return _draw(labels, rows, seed, groups)


def orders(labels: Labels, shuffler: Shuffler) -> list[IntArray]:
    """The rows of each class that train has, shuffled, class by class (single label)."""
    order = np.argsort(labels.values, kind="stable")
    counts = np.bincount(labels.values, minlength=len(labels.classes))
    members = np.split(order, np.cumsum(counts)[:-1])
    return [shuffler.permutation(rows) for rows in members if len(rows)]


def _spread(order: IntArray, groups: IntArray | None) -> IntArray:
    """Rows in the same order, but the first ones of all groups before the second ones, and so on."""
    if groups is None:
        return order
    own = groups[order]
    by_group = np.argsort(own, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(own[by_group]) != 0])
    turn = np.empty(len(own), np.int64)
    turn[by_group] = np.arange(len(own)) - np.repeat(first, np.diff(np.r_[first, len(own)]))
    return order[np.argsort(turn, kind="stable")]


def k_with_and_without(
    labels: Labels, k: int, seed: int, shuffler: Shuffler | None = None, *, groups: IntArray | None = None
) -> Draw:
    """For every class k samples that have it and (C - 1) k that do not (multi-label); never one marked -1.

    Args:
        labels: of train, with enough samples; C counts the classes that have positives.
        k: positives per class.
        seed: of numpy's legacy generator.
        shuffler: another generator made from that seed.
        groups: (N,) the group of each sample of train, or None.
    """
    generator = shuffler or np.random.RandomState(seed)
    classes = present(labels)
    values = np.full(labels.values.shape, -1, np.int8)
    for c in classes:
        order = generator.permutation(np.flatnonzero(labels.values[:, c] > 0))
        values[_spread(order, groups)[:k], c] = 1
    for c in classes:
        order = generator.permutation(np.flatnonzero(labels.values[:, c] == 0))
        values[_spread(order, groups)[: max(1, len(classes) - 1) * k], c] = 0
    rows = np.flatnonzero((values >= 0).any(axis=1))
    return Draw(seed, rows, dataclasses.replace(labels, values=values[rows]), _shared(groups, rows))


def share(labels: Labels, fraction: float, seed: int, *, stratified: bool, groups: IntArray | None = None) -> Draw:
    """A share of train with all its labels.

    Args:
        labels: of train.
        fraction: in (0, 1].
        seed: of the draw.
        stratified: every class keeps its share, and has a sample where there are enough; else all samples are drawn
            alike, as in VISSL's unbalanced data limit.
        groups: (N,) the group of each sample of train, or None; whole groups are drawn, about as many samples.
    """
    from sslbench.data.stratify import choose

    n = max(1, round(fraction * len(labels)))
    if groups is not None and n < len(labels):
        return _draw(labels, _whole_groups(labels, groups, n, seed, stratified=stratified), seed, groups)
    if stratified:
        return _draw(labels, np.flatnonzero(choose(labels, n, np.random.default_rng(seed), both_sides=False)), seed)
    return _draw(labels, np.random.RandomState(seed).permutation(len(labels))[:n], seed)


def _whole_groups(labels: Labels, groups: IntArray, n: int, seed: int, *, stratified: bool) -> IntArray:
    """The rows of about n samples; at least of one group."""
    from sslbench.data._group_split import choose_groups

    if stratified and (chosen := choose_groups(labels, groups, n, np.random.default_rng(seed))).any():
        return np.flatnonzero(chosen)
    names, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.RandomState(seed).permutation(len(names))
    taken = order[: max(1, int(np.searchsorted(np.cumsum(sizes[order]), n, side="right")))]
    return np.flatnonzero(np.isin(place, taken))


def _draw(labels: Labels, rows: IntArray, seed: int, groups: IntArray | None = None) -> Draw:
    rows = np.sort(rows).astype(np.int64)
    return Draw(seed, rows, labels.select(rows), _shared(groups, rows))


def _shared(groups: IntArray | None, rows: IntArray) -> IntArray | None:
    if groups is None or len(np.unique(groups[rows])) == len(rows):
        return None
    return groups[rows]


def stratified_folds(
    values: npt.NDArray[np.integer], wanted: int, groups: IntArray | None
) -> npt.NDArray[np.int16] | None:
    """(N,) the fold of each sample, as many as asked for or as half of the classes have samples; None below two.

    Args:
        values: (N,) class numbers.
        wanted: folds.
        groups: (N,) the group of each sample: those of one group are in one fold, and groups are counted; or None.
    """
    number = min(wanted, int(np.median(class_sizes(values, groups))))
    return None if number < 2 else folds_of(values, number, groups)
