"""Ranking metrics of single labels, each class against the rest, for many weightings of the samples at once.

Every sample is a positive of one class only, so all classes together have N steps. A class ranks only the samples that
score at least as high as its lowest positive: they are sorted into the places between and at its steps, and the weights
of all places, for R weightings, are one sparse product. That takes as many additions per weighting as samples are
ranked: N for each class at worst, far fewer for a good classifier. Samples tied with the lowest positive, nearly all
where scores are the votes of a few neighbours, are counted by those below it if these are fewer. Single precision is
exact for whole numbers up to 2^24.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.ranking import Ranked, RankingCounts, RankingFunction

_RANKED = 16_000_000  # ranked samples of several classes in memory at a time
_SUMS = 32_000_000  # sums of weights in memory at a time
_SMALL = 2**24  # weights times classes up to which sorted passes take less than scipy's import


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
        if len(weights) == 1 or weights.size * len(self.present) <= _SMALL:
            for c in self.present:
                yield c, Ranked(self._classes == c, self._scores[:, c]).counts(weights)
            return
        by_sample = np.ascontiguousarray(weights.T, dtype=np.float32)
        total = weights.sum(axis=1)
        chunk: list[_Steps] = []
        for c, rows in zip(self.present, self._rows, strict=True):
            chunk.append(_Steps(c, rows, self._scores[:, c]))
            places = sum(steps.places for steps in chunk)
            if sum(len(steps.ranked) for steps in chunk) >= _RANKED or places * len(weights) >= _SUMS:
                yield from _count(chunk, by_sample, total)
                chunk = []
        yield from _count(chunk, by_sample, total)


class _Steps:
    """One class's samples down to its lowest positive, by their place among the steps.

    Attributes:
        number: of the class.
        places: twice the number of steps G, the distinct scores of its positives, falling.
        ranked: samples, in order of their places.
        below: the last place has the samples below the last step instead of those at it.
        starts: (2 G,) first of `ranked` at each place: 2 i between the steps i - 1 and i, 2 i + 1 at step i.
        own: (N_c,) the positives in order of their steps.
        own_starts: (G,) first of `own` at each step.
    """

    def __init__(self, number: int, rows: IntArray, scores: npt.NDArray[np.floating]) -> None:
        self.number = number
        falling = -scores
        self.own = rows[np.argsort(falling[rows], kind="stable")]
        steps, self.own_starts = np.unique(falling[self.own], return_index=True)
        self.places = 2 * len(steps)
        above, at = falling < steps[-1], falling == steps[-1]
        self.below = bool(2 * at.sum() + above.sum() > len(falling))
        inside = np.flatnonzero(~at if self.below else above | at)
        place = np.searchsorted(steps, falling[inside], side="left")
        place += np.searchsorted(steps, falling[inside], side="right")
        place = np.minimum(place, self.places - 1)
        self.ranked = inside[np.argsort(place, kind="stable")].astype(np.int32)
        self.starts = np.r_[0, np.cumsum(np.bincount(place, minlength=self.places))[:-1]]


def _count(
    chunk: Sequence[_Steps], by_sample: npt.NDArray[np.float32], total: FloatArray
) -> Iterator[tuple[int, RankingCounts]]:
    """Yield the counts of some classes, given the weights (N, R) and their sums (R,)."""
    from scipy.sparse import csr_array

    if not chunk:
        return
    ranked = np.concatenate([steps.ranked for steps in chunk])
    offsets = np.cumsum([0, *(len(steps.ranked) for steps in chunk)])
    starts = np.concatenate([steps.starts + offset for steps, offset in zip(chunk, offsets[:-1], strict=True)])
    members = np.ones(len(ranked), np.float32), ranked, np.r_[starts, len(ranked)]
    sums = csr_array(members, shape=(len(starts), len(by_sample))) @ by_sample
    start = 0
    for steps in chunk:
        reached = np.cumsum(sums[start : start + steps.places], axis=0, dtype=np.float64)
        if steps.below:
            reached[-1] = total - sums[start + steps.places - 1]
        hits = np.cumsum(np.add.reduceat(by_sample[steps.own], steps.own_starts, axis=0), axis=0, dtype=np.float64)
        # Rows of weightings in one piece: the order of later sums, and so their rounding, is that of sorted passes.
        hits, seen, before = (np.ascontiguousarray(part.T) for part in (hits, reached[1::2], reached[::2]))
        yield steps.number, RankingCounts(hits, seen, before, total)
        start += steps.places
