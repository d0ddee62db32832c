"""Ranking metrics of single labels, each class against the rest, for many weightings of the samples at once.

Every sample is a positive of one class only, so all classes together have N steps, and the weight of the samples that
are scored at or above each of them, for R weightings, is one matrix product (R, N) x (N, N). It is taken class by class
and in single precision, in which whole numbers up to 2^24 are exact.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.ranking import Ranked, RankingCounts, RankingFunction

_CHUNK = 64_000_000  # entries of the (N, steps) matrix in memory at a time
_SORTING = 750  # steps per class whose matrix product costs about as much as a sorted pass over the N samples


class OneVsRest:
    """Ranking metrics of N samples with scores for C classes."""

    def __init__(self, classes: IntArray, scores: npt.NDArray[np.floating]) -> None:
        """Group the samples by class.

        Args:
            classes: (N,), the true class of each sample.
            scores: (N, C), higher means more likely; finite.
        """
        self._classes, self._scores = classes, scores
        order = np.argsort(classes, kind="stable")
        found, first = np.unique(classes[order], return_index=True)
        self.present: tuple[int, ...] = tuple(found.tolist())
        """Classes that have samples; the others have no value."""
        self._rows: list[IntArray] = np.split(order, first[1:]) if len(found) else []

    def means(self, metrics: Sequence[RankingFunction], weights: FloatArray) -> FloatArray:
        """Return the mean of each metric over the classes that have a value (R, M), for R whole weightings (R, N).

        NaN where no class has one.
        """
        total, number = np.zeros((2, len(weights), len(metrics)))
        for _, counts in self._counts(weights):
            values = np.column_stack([metric(counts) for metric in metrics])
            number += ~np.isnan(values)
            total += np.nan_to_num(values)
        return np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0)

    def per_class(self, metrics: Sequence[RankingFunction]) -> FloatArray:
        """Return the metrics of every class (C, M); NaN for one without samples or without others."""
        values = np.full((self._scores.shape[1], len(metrics)), np.nan)
        for c, counts in self._counts(np.ones((1, len(self._classes)))):
            values[c] = [float(metric(counts)[0]) for metric in metrics]
        return values

    def _counts(self, weights: FloatArray) -> Iterator[tuple[int, RankingCounts]]:
        if len(weights) == 1 or len(self._classes) > _SORTING * len(self.present):
            for c in self.present:
                yield c, Ranked(self._classes == c, self._scores[:, c]).counts(weights)
            return
        single = weights.astype(np.float32)
        total = weights.sum(axis=1)
        step = max(1, _CHUNK // max(1, len(self._classes)))
        chunk: list[_Steps] = []
        for c, rows in zip(self.present, self._rows, strict=True):
            chunk.append(_Steps(c, rows, self._scores[:, c]))
            if sum(len(steps.thresholds) for steps in chunk) >= step:
                yield from _count(chunk, single, weights, total)
                chunk = []
        yield from _count(chunk, single, weights, total)


class _Steps:
    """Distinct scores of one class's own samples, falling."""

    def __init__(self, number: int, rows: IntArray, scores: npt.NDArray[np.floating]) -> None:
        self.number, self.scores = number, np.ascontiguousarray(scores)
        self.rows = rows[np.argsort(-self.scores[rows], kind="stable")]
        own = self.scores[self.rows]
        self.first = np.flatnonzero(np.r_[True, own[1:] != own[:-1]])
        self.thresholds = own[self.first]
        self.sizes = np.diff(np.r_[self.first, len(own)])


def _count(
    chunk: Sequence[_Steps], single: npt.NDArray[np.float32], weights: FloatArray, total: FloatArray
) -> Iterator[tuple[int, RankingCounts]]:
    """Yield the counts of some classes by one matrix product, and a second one for steps tied with other classes."""
    if not chunk:
        return
    reached = np.concatenate([steps.scores >= steps.thresholds[:, None] for steps in chunk])
    seen = single @ reached.astype(np.float32).T
    # Most steps hold the class's own samples only, so that the weight before them needs no product.
    sizes = np.concatenate([steps.sizes for steps in chunk])
    above = np.concatenate([steps.scores > steps.thresholds[:, None] for steps in chunk])
    tied = np.flatnonzero(reached.sum(axis=1) - above.sum(axis=1) > sizes)
    before_tied = single @ above[tied].astype(np.float32).T
    start = 0
    for steps in chunk:
        stop = start + len(steps.thresholds)
        in_step = np.add.reduceat(weights[:, steps.rows], steps.first, axis=1)
        reached_weight = seen[:, start:stop].astype(np.float64)
        before = reached_weight - in_step
        inside = np.flatnonzero((tied >= start) & (tied < stop))
        before[:, tied[inside] - start] = before_tied[:, inside]
        yield steps.number, RankingCounts(np.cumsum(in_step, axis=1), reached_weight, before, total)
        start = stop
