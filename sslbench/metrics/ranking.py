"""Ranking metrics: average precision in three definitions and AUROC, for one class and as means over classes.

Ties: samples with equal scores enter the ranking together, as one step. The value then does not depend on the order of
the samples. For interpolated average precision this is the lowest value that any order of the tied samples gives; for
the non-interpolated one and for AUROC it is scikit-learn's rule.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a ranking metric of one class needs of R weightings of the samples, at the G steps that hold positives.

    Attributes:
        hits: (R, G), weight of the positives up to and with the step.
        seen: (R, G), weight of all samples up to and with it.
        before: (R, G), weight of all samples before it.
        total: (R,), weight of all samples.
    """

    hits: FloatArray
    seen: FloatArray
    before: FloatArray
    total: FloatArray


Metric = Callable[[Counts], FloatArray]


class Ranked:
    """One class's samples in order of falling score, cut where a step of equal scores holds a positive.

    Precision can only be highest, and recall only change, at the end of such a step, so sums up to those places
    are all that the metrics need. They are taken for many weightings of the samples at once (a bootstrap).
    """

    def __init__(self, targets: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> None:
        """Sort once.

        Args:
            targets: (N,), positive where > 0.
            scores: (N,), higher means more likely.
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

    def counts(self, weights: FloatArray) -> Counts:
        """Weighted counts for R weightings of the samples, (R, N)."""
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
        return Counts(np.cumsum(hits, axis=1), seen, before, sums[:, -1])

    @property
    def has_positives(self) -> bool:
        """Whether there is anything to find."""
        return len(self._positives) > 0


def voc_all_points(counts: Counts) -> FloatArray:
    """(R,) areas under the precision-recall curve made monotone from the right (PASCAL VOC from 2010 on; VISSL)."""
    recall, precision = _curve(counts)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(np.sum(np.diff(recall, axis=1, prepend=0) * envelope, axis=1))


def voc_11_point(counts: Counts) -> FloatArray:
    """(R,) means of the highest precision at recalls of at least 0, 0.1, ..., 1 (PASCAL VOC up to 2009)."""
    recall, precision = _curve(counts)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    rows, total = np.arange(len(recall)), np.zeros(len(recall))
    for level in np.arange(11) / 10:
        # A recall of 3/10 computed in floating point may lie a hair below 0.3 and still reaches that level.
        reached = np.count_nonzero(recall < level - 1e-12, axis=1)
        total += envelope[rows, np.minimum(reached, recall.shape[1] - 1)]
    return np.asarray(np.where(np.isnan(recall[:, -1]), np.nan, total / 11))


def non_interpolated(counts: Counts) -> FloatArray:
    """(R,) sums of precision times the step in recall (scikit-learn's `average_precision_score`)."""
    recall, precision = _curve(counts)
    return np.asarray(np.sum(np.diff(recall, axis=1, prepend=0) * precision, axis=1))


def auroc(counts: Counts) -> FloatArray:
    """(R,) chances that a positive is scored above a negative, ties counting one half; NaN without either of them."""
    hits = counts.hits
    in_step = np.diff(hits, axis=1, prepend=0)
    misses = counts.total - hits[:, -1]
    ahead = counts.before - (hits - in_step)
    tied = (counts.seen - counts.before) - in_step
    lost = np.sum(in_step * (ahead + tied / 2), axis=1)
    pairs = hits[:, -1] * misses
    return np.asarray(1 - np.divide(lost, pairs, out=np.full_like(lost, np.nan), where=pairs > 0))


def _curve(counts: Counts) -> tuple[FloatArray, FloatArray]:
    hits, seen = counts.hits, counts.seen
    everything = hits[:, -1:]
    recall = np.divide(hits, everything, out=np.full_like(hits, np.nan), where=everything > 0)
    precision = np.divide(hits, seen, out=np.zeros_like(hits), where=seen > 0)
    return recall, precision


def single_class(
    metric: Metric,
    targets: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    weights: npt.NDArray[np.floating] | None = None,
) -> float:
    """One of the metrics above for one class; NaN without positives or where a score is NaN.

    Args:
        metric: `voc_all_points`, `voc_11_point`, `non_interpolated` or `auroc`.
        targets: (N,), positive where > 0, negative otherwise.
        scores: (N,), higher means more likely.
        weights: (N,), how much each sample counts; 0 leaves it out.
    """
    ranked = Ranked(targets, scores)
    if not ranked.has_positives or np.isnan(scores).any():
        return float("nan")
    weighting = np.ones(len(targets)) if weights is None else weights.astype(np.float64)
    return float(metric(ranked.counts(weighting[None]))[0])


def per_class(metric: Metric, labels: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> FloatArray:
    """(C,) values of a metric, one per class; a sample marked -1 is left out for that class.

    Args:
        metric: one of the metrics above.
        labels: (N, C), 1 present, 0 absent, -1 ignore.
        scores: (N, C), higher means more likely.
    """
    kept = [labels[:, c] >= 0 for c in range(labels.shape[1])]
    return np.array([single_class(metric, labels[k, c], scores[k, c]) for c, k in enumerate(kept)], dtype=np.float64)


def mean_over_classes(values: FloatArray) -> float:
    """The mean of the classes that have a value; NaN when none has."""
    return float(np.nanmean(values)) if np.any(~np.isnan(values)) else float("nan")


def mean_average_precision(labels: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> float:
    """Mean over the classes with positives of the interpolated average precision at all points; -1 is left out."""
    return mean_over_classes(per_class(voc_all_points, labels, scores))
