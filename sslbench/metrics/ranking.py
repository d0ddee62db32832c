"""Ranking metrics: average precision in three definitions and AUROC, means over classes; choices of two candidates.

Ties: samples with equal scores enter the ranking together, as one step. The value then does not depend on the order of
the samples. For interpolated average precision this is the lowest value that any order of the tied samples gives; for
the non-interpolated one and for AUROC it is scikit-learn's rule.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, ClassFrequencies, Metric

MACRO_AUROC = Metric(
    "macro_auroc", "Area under the ROC curve, mean over classes",
    "%", 1, RATE, needs="scores", labels=("single", "multi"), chance=0.5,
)  # fmt: skip
_RANKED = 16_000_000  # ranked samples of several classes in memory at a time
_SUMS = 32_000_000  # sums of weights in memory at a time
_SMALL = 2**24  # weights times classes up to which sorted passes take less than scipy's import
CHOICE_COLUMNS = ("similarity to the right candidate minus similarity to the left one",)
"""Score of a triplet."""
CHOICE_ACCURACY = Metric(
    "choice_accuracy", "Share of triplets with the choice of persons",
    "%", 1, RATE, needs="choices", labels=("triplets",), chance=0.5,
)  # fmt: skip


def _positive_rate(frequencies: ClassFrequencies) -> Fraction | float:
    """Return the mean share of positives over the classes that have any: about the AP of a random order."""
    # With one class per sample the shares sum to 1.
    some = frequencies.positives > 0
    if not some.any():
        return float("nan")
    if (frequencies.known == frequencies.positives.sum()).all():
        return Fraction(1, int(some.sum()))
    return float((frequencies.positives[some] / frequencies.known[some]).mean())


# The monotone precision-recall curve is too high as monotone estimates are, by n^(-2/3) (Grenander 1956).
MAP = Metric(
    "mAP", "Mean average precision, interpolated at all points",
    "%", 1, RATE, needs="scores", labels=("single", "multi"), chance=_positive_rate, floor=True, bias_decay=2 / 3,
)  # fmt: skip
MAP_11PT = Metric(
    "mAP_11pt", "Mean average precision at 11 recalls",
    "%", 1, RATE, needs="scores", labels=("single", "multi"), chance=_positive_rate, bias_decay=2 / 3,
)  # fmt: skip
MAP_NONINTERPOLATED = Metric(
    "mAP_noninterpolated", "Mean average precision, not interpolated",
    "%", 1, RATE, needs="scores", labels=("single", "multi"), chance=_positive_rate,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RankingCounts:
    """Weighted counts of one class for R weightings of the samples, at the G steps that hold positives.

    Attributes:
        hits: (R, G), weight of the positives up to and including the step.
        seen: (R, G), weight of all samples up to and including it.
        before: (R, G), weight of all samples before it.
        total: (R,), weight of all samples.
    """

    hits: FloatArray
    seen: FloatArray
    before: FloatArray
    total: FloatArray


RankingFunction = Callable[[RankingCounts], FloatArray]


class Ranked:
    """One class's samples in order of falling score, cut where a step of equal scores holds a positive.

    Precision can only be highest, and recall only change, at the end of such a step, so sums up to those places
    are all that the metrics need. They are taken for many weightings of the samples at once (a bootstrap).
    """

    def __init__(self, targets: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> None:
        """Sort the samples.

        `targets`: (N,), positive where > 0; `scores`: (N,), higher means more likely.
        """
        self._order = np.argsort(-scores.astype(np.float64), kind="stable")
        positive = targets[self._order] > 0
        ranked = scores[self._order]
        first = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if len(ranked) else np.zeros(0, np.int64)
        last = np.r_[first[1:], len(ranked)].astype(np.int64) if len(first) else first
        holds = np.add.reduceat(positive.astype(np.int64), first) > 0 if len(first) else np.zeros(0, bool)
        self._first, self._last = first[holds], last[holds]
        self._positives = np.flatnonzero(positive)
        self._step_of_positive = np.searchsorted(self._positives, self._first)

    def counts(self, weights: FloatArray) -> RankingCounts:
        """Return the weighted counts for R weightings of the samples (R, N)."""
        ranked = weights[:, self._order]
        bounds = np.unique(np.r_[0, self._first, self._last])
        inner = bounds[bounds < ranked.shape[1]]
        sums = np.cumsum(np.add.reduceat(ranked, inner, axis=1), axis=1)
        sums = np.concatenate([np.zeros((len(ranked), 1)), sums], axis=1)
        # sums[:, j] is the weight before place bounds[j] (with the end of the ranking as last bound).
        places = np.r_[inner, ranked.shape[1]]
        seen = sums[:, np.searchsorted(places, self._last)]
        before = sums[:, np.searchsorted(places, self._first)]
        hits = np.add.reduceat(ranked[:, self._positives], self._step_of_positive, axis=1)
        return RankingCounts(np.cumsum(hits, axis=1), seen, before, sums[:, -1])

    @property
    def has_positives(self) -> bool:
        """Presence of at least one positive."""
        return len(self._positives) > 0


def voc_all_points(counts: RankingCounts) -> FloatArray:
    """Return the areas (R,) under the precision-recall curve made monotone from the right.

    PASCAL VOC from 2010 on (Everingham et al. 2015, section 3.4); VISSL.
    """
    recall, precision = _curve(counts)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(np.sum(np.diff(recall, axis=1, prepend=0) * envelope, axis=1))


def voc_11_point(counts: RankingCounts) -> FloatArray:
    """Return the means (R,) of the highest precision at recalls of at least 0, 0.1, ..., 1.

    PASCAL VOC up to 2009 (Everingham et al. 2010, section 4.2).
    """
    recall, precision = _curve(counts)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    rows, total = np.arange(len(recall)), np.zeros(len(recall))
    for level in np.arange(11) / 10:
        # A recall of 3/10 computed in floating point may lie a hair below 0.3 and still reaches that level.
        reached = np.count_nonzero(recall < level - 1e-12, axis=1)
        total += envelope[rows, np.minimum(reached, recall.shape[1] - 1)]
    return np.asarray(np.where(np.isnan(recall[:, -1]), np.nan, total / 11))


def non_interpolated(counts: RankingCounts) -> FloatArray:
    """Return the sums (R,) of precision times the step in recall (scikit-learn's `average_precision_score`)."""
    recall, precision = _curve(counts)
    return np.asarray(np.sum(np.diff(recall, axis=1, prepend=0) * precision, axis=1))


def auroc(counts: RankingCounts) -> FloatArray:
    """Return the chance (R,) that a positive scores above a negative, ties counting one half; NaN without either.

    Hanley and McNeil 1982.
    """
    hits = counts.hits
    in_step = np.diff(hits, axis=1, prepend=0)
    misses = counts.total - hits[:, -1]
    ahead = counts.before - (hits - in_step)
    tied = (counts.seen - counts.before) - in_step
    lost = np.sum(in_step * (ahead + tied / 2), axis=1)
    pairs = hits[:, -1] * misses
    return np.asarray(1 - np.divide(lost, pairs, out=np.full_like(lost, np.nan), where=pairs > 0))


def _curve(counts: RankingCounts) -> tuple[FloatArray, FloatArray]:
    hits, seen = counts.hits, counts.seen
    everything = hits[:, -1:]
    recall = np.divide(hits, everything, out=np.full_like(hits, np.nan), where=everything > 0)
    precision = np.divide(hits, seen, out=np.zeros_like(hits), where=seen > 0)
    return recall, precision


def single_class(
    metric: RankingFunction,
    targets: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    weights: npt.NDArray[np.floating] | None = None,
) -> float:
    """Return a ranking metric of one class, 0 to 1; NaN without positives or where a score is NaN.

    `targets`: (N,), positive where > 0, negative otherwise; `scores`: (N,), higher means more likely; `weights`: (N,),
    weight of each sample; 0 leaves it out.

    >>> targets, scores = np.array([1, 0, 1]), np.array([0.9, 0.8, 0.1])
    >>> round(single_class(non_interpolated, targets, scores), 3), single_class(auroc, targets, scores)
    (0.833, 0.5)
    """
    ranked = Ranked(targets, scores)
    if not ranked.has_positives or np.isnan(scores).any():
        return float("nan")
    weighting = np.ones(len(targets)) if weights is None else weights.astype(np.float64)
    return float(metric(ranked.counts(weighting[None]))[0])


def per_class(metric: RankingFunction, labels: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> FloatArray:
    """Return a ranking metric of each class (C,); a sample marked -1 is left out for that class.

    `labels`: (N, C), 1 present, 0 absent, -1 ignore; `scores`: (N, C), higher means more likely.

    >>> per_class(auroc, np.array([[1, 0], [0, 1], [0, -1]]), np.array([[0.9, 0.2], [0.3, 0.1], [0.2, 0.0]])).tolist()
    [1.0, 0.0]
    """
    kept = [labels[:, c] >= 0 for c in range(labels.shape[1])]
    return np.array([single_class(metric, labels[k, c], scores[k, c]) for c, k in enumerate(kept)], dtype=np.float64)


def mean_over_classes(values: FloatArray) -> float:
    """Return the mean of the classes that have a value; NaN when none has."""
    return float(np.nanmean(values)) if np.any(~np.isnan(values)) else float("nan")


def mean_average_precision(labels: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> float:
    """Return the mean over the classes with positives of the interpolated average precision at all points, 0 to 1.

    `labels`: (N, C), 1 present, 0 absent, -1 ignore; `scores`: (N, C), higher means more likely.

    >>> mean_average_precision(np.array([[1], [0]]), np.array([[0.2], [0.9]]))
    0.5
    """
    return mean_over_classes(per_class(voc_all_points, labels, scores))


class OneVsRest:
    """Ranking metrics of N samples with scores for C classes."""

    def __init__(self, classes: IntArray, scores: npt.NDArray[np.floating]) -> None:
        """Group the samples by class.

        `classes`: (N,), the true class of each sample; `scores`: (N, C), higher means more likely; finite.
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


# Every sample is a positive of one class only, so all classes together have N steps. A class ranks only the samples
# that score at least as high as its lowest positive: they are sorted into the places between and at its steps, and the
# weights of all places, for R weightings, are one sparse product. That takes as many additions per weighting as samples
# are ranked, far fewer than N for a good classifier. Samples tied with the lowest positive, nearly all where scores are
# the votes of a few neighbours, are counted by those below it if these are fewer. Single precision is exact for whole
# numbers up to 2^24.
class _Steps:
    """One class's samples down to its lowest positive, by their place among the steps.

    Attributes:
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


def agreement(preferences: FloatArray, choices: npt.NDArray[np.integer]) -> FloatArray:
    """Return 1 for triplets with the right choice, 0 for the others and one half where both candidates are equal, (N,).

    `preferences`: (N,), above 0 for the right candidate, below 0 for the left one; `choices`: (N,), 0: left; 1: right.

    >>> agreement(np.array([0.2, -0.1, 0.0]), np.array([1, 1, 0])).tolist()
    [1.0, 0.0, 0.5]
    """
    return np.asarray(0.5 + 0.5 * np.sign(preferences) * np.where(choices == 1, 1, -1))


def choice_measure(scores: npt.NDArray[np.floating], choices: npt.NDArray[np.integer]) -> Measure:
    """Return the accuracy of N triplets as a function of their weights.

    `scores`: (N, 1), see `CHOICE_COLUMNS`; `choices`: (N,), 0: left; 1: right.
    """
    each = agreement(scores[:, 0].astype(np.float64), choices)[:, None]
    return Measure(
        (CHOICE_ACCURACY,),
        lambda weights: weights @ each / weights.sum(axis=1, keepdims=True),
        per_sample=each,
        binary=bool((each != 0.5).all()),
    )
