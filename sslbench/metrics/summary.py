"""The metrics that every protocol reports, with their intervals: one function for single labels and for multi-label."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.metrics import calibration, classification, ranking, regression
from sslbench.metrics.intervals import (
    RATE,
    Bounds,
    FloatArray,
    IntArray,
    Statistic,
    Units,
    biases,
    ends,
    mean_errors,
    on_halves,
    standard_errors,
)
from sslbench.metrics.one_vs_rest import OneVsRest

Values = dict[str, tuple[float, float, float]]
Probabilities = Literal["softmax", "scores"]
"""How scores become probabilities: their softmax (logits), or as they are (shares that sum to 1)."""

_RANKING: dict[str, ranking.Metric] = {
    "mAP": ranking.voc_all_points,
    "mAP_11pt": ranking.voc_11_point,
    "mAP_noninterpolated": ranking.non_interpolated,
    "macro_auroc": ranking.auroc,
}
_NORMAL = 1.959963984540054  # the 97.5 % point of the normal distribution
_BLOCK = 20_000_000  # weights held at a time where each block costs a pass over N x N
_LOSS: Bounds = (0.0, math.inf)
# Powers of the number of samples with which a bias falls, where it is not 1. The monotone precision-recall curve is too
# high as monotone estimates are, by n^(-2/3) (Grenander 1956); the calibration error is a mean of absolute values.
_DECAY = {"mAP": 2 / 3, "mAP_11pt": 2 / 3, "ece": 1 / 2, "ece_adaptive": 1 / 2}


@dataclasses.dataclass(frozen=True)
class Measure:
    """Some metrics that are computed together.

    Attributes:
        names: of the M metrics.
        statistic: from weights (R, N) of the samples to values (R, M).
        bounds: of what they can be.
        each: (N, M) values of each sample that they are the means of; None where they are no such means.
        parts: of metrics that are means over classes, for each class how many units show it (those that have it); None
            where all units count alike.
        block: how many weights are held at a time.
        whole: the values of `each` are 0 and 1.
    """

    names: tuple[str, ...]
    statistic: Statistic
    bounds: Bounds = RATE
    each: FloatArray | None = None
    parts: tuple[int, ...] | None = None
    block: int = 4_000_000
    whole: bool = False

    def size(self, units: Units) -> float:
        """How many units a mean over these metrics' classes is known from: of C classes C times their harmonic mean."""
        if not self.parts:
            return units.number
        return len(self.parts) ** 2 / sum(1 / part for part in self.parts)

    @property
    def missing_variance(self) -> float:
        """What standard errors must be multiplied by because classes with one unit show no variance; NaN if all do.

        The variance of a class is taken to fall with the number of its units.
        """
        if not self.parts:
            return 1.0
        seen = sum(1 / part for part in self.parts if part > 1)
        return math.sqrt(sum(1 / part for part in self.parts) / seen) if seen else math.nan


def summarise(
    kind: str,
    classes: Sequence[str],
    values: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    *,
    seed: int,
    resamples: int = 1000,
    probabilities: Probabilities | None = None,
    groups: IntArray | None = None,
) -> tuple[Values, str, dict[str, float]]:
    """All metrics of one evaluation.

    Args:
        kind: 'single', 'multi' or 'value'.
        classes: the C class names, or of the C numbers.
        values: single: (N,) true classes; multi: (N, C), 1 present, 0 absent, -1 ignore; value: (N, C) numbers.
        scores: (N, C), higher means more likely; a class that has no classifier has NaN. Value: what was predicted.
        seed: of the half-samples.
        resamples: how many half-samples.
        probabilities: how the scores become probabilities; None where they do not, and then there is no calibration
            error, log loss or Brier score.
        groups: (N,) the group of each sample, which intervals keep together; None: each stands for itself.

    Returns:
        Metric name -> (value, low, high), fractions but for `nll` (nats), `brier` (0 to 2), `mae` and `rmse` (units of
        the labels); the name of the leading metric; class name -> recall (single), interpolated average precision
        (multi) or R2 (value), NaN where not computable.
    """
    found: Values = {}
    units = Units.of(len(values), groups)
    for measure in measures(kind, values, scores, units, probabilities):
        found |= with_intervals(measure, units, seed, resamples)
    if kind == "value":
        each = map(float, regression.r2_each(values, scores))
        return found, "r2", dict(zip(classes, each, strict=True))
    if kind == "single":
        own = classification.per_class_recall(values.astype(np.int64), np.argmax(scores, axis=1), len(classes))
        return found, "top1", dict(zip(classes, map(float, own), strict=True))
    own = ranking.per_class(ranking.voc_all_points, values, scores)
    return found, "mAP", dict(zip(classes, map(float, own), strict=True))


def headline(kind: str, values: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> float:
    """Only the leading metric: top-1 accuracy (single), mean average precision (multi) or R2 (value)."""
    if kind == "value":
        return regression.r2(values, scores)
    if kind == "single":
        return classification.top_k_accuracy(values.astype(np.int64), scores)
    return ranking.mean_average_precision(values, scores)


def measures(
    kind: str,
    values: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    units: Units,
    probabilities: Probabilities | None = None,
) -> list[Measure]:
    """The metrics of an evaluation as functions of how much each sample counts; see `summarise`."""
    if kind == "value":
        errors, ranks = regression.Errors(values, scores), regression.Ranks(values, scores)
        return [
            Measure(("r2",), lambda weights: errors.statistic(weights)[:, :1], bounds=(-math.inf, 1.0)),
            Measure(("mae", "rmse"), lambda weights: errors.statistic(weights)[:, 1:], bounds=_LOSS),
            Measure(ranks.names, ranks.correlation, bounds=(-1.0, 1.0)),
        ]
    if kind == "single":
        return _single(values.astype(np.int64), scores, units, probabilities)
    threshold = 0.5 if probabilities == "scores" else 0.0
    of_labels = classification.LabelCounts(values, scores, threshold)
    scored = ~np.isnan(scores).any(axis=0)
    having = [units.having(np.flatnonzero(column > 0)) for column in values[:, scored].T]
    parts = tuple(number for number in having if number)
    return [
        Measure(tuple(_RANKING), _multi_ranking(values, scores), parts=parts),
        Measure(("micro_f1",), lambda weights: of_labels.f1(weights)[:, :1]),
        Measure(("macro_f1",), lambda weights: of_labels.f1(weights)[:, 1:], parts=parts),
    ]


def _single(
    values: npt.NDArray[np.int64],
    scores: npt.NDArray[np.floating],
    units: Units,
    probabilities: Probabilities | None,
) -> list[Measure]:
    n_classes = scores.shape[1]
    table = classification.ClassCounts(values, np.argmax(scores, axis=1), n_classes)
    # With fewer than five classes there is no top-5: NaN for every sample makes it NaN throughout.
    found = classification.places(values, scores)
    right = [(found < k).astype(np.float64) if k <= n_classes else np.full(len(values), np.nan) for k in (1, 5)]
    ranked = OneVsRest(values, scores)
    by_class = np.split(np.argsort(values, kind="stable"), np.cumsum(np.bincount(values, minlength=n_classes))[:-1])
    parts = tuple(units.having(rows) for rows in by_class if len(rows))
    measured = [
        dataclasses.replace(_means(("top1", "top5"), right), whole=True),
        Measure(
            ("balanced_accuracy", "macro_f1"),
            lambda weights: np.column_stack([table.balanced_accuracy(weights), table.macro_f1(weights)]),
            parts=parts,
        ),
        Measure(
            tuple(_RANKING),
            lambda weights: ranked.means(list(_RANKING.values()), weights),
            parts=parts,
            block=_BLOCK,
        ),
    ]
    return measured + (_calibration(values, scores, probabilities) if probabilities is not None else [])


def _calibration(values: npt.NDArray[np.int64], scores: npt.NDArray[np.floating], how: Probabilities) -> list[Measure]:
    given = calibration.softmax(scores) if how == "softmax" else scores.astype(np.float64)
    errors = [calibration.CalibrationError(values, given, adaptive=adaptive) for adaptive in (False, True)]
    return [
        Measure(("ece", "ece_adaptive"), lambda weights: np.column_stack([error.value(weights) for error in errors])),
        dataclasses.replace(_means(("nll",), [calibration.log_losses(values, given)]), bounds=_LOSS),
        dataclasses.replace(_means(("brier",), [calibration.brier_scores(values, given)]), bounds=(0.0, 2.0)),
    ]


def _means(names: tuple[str, ...], each: Sequence[npt.NDArray[np.floating]]) -> Measure:
    """Metrics that are means over the samples of one value each."""
    columns = np.stack([np.asarray(values, dtype=np.float64) for values in each], axis=1)
    return Measure(names, lambda weights: weights @ columns / weights.sum(axis=1, keepdims=True), each=columns)


def _multi_ranking(labels: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> Statistic:
    kept = [np.flatnonzero(labels[:, c] >= 0) for c in range(labels.shape[1])]
    ranked = [ranking.Ranked(labels[rows, c], scores[rows, c]) for c, rows in enumerate(kept)]
    usable = [c for c, r in enumerate(ranked) if r.has_positives and not np.isnan(scores[kept[c], c]).any()]

    def statistic(counts: FloatArray) -> FloatArray:
        total, number = np.zeros((2, len(counts), len(_RANKING)))
        for c in usable:
            weighted = ranked[c].counts(counts[:, kept[c]])
            values = np.column_stack([metric(weighted) for metric in _RANKING.values()])
            number += ~np.isnan(values)
            total += np.nan_to_num(values)
        return np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0)

    return statistic


def one_measure(
    metric: str,
    kind: str,
    values: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    units: Units,
    probabilities: Probabilities | None = None,
) -> Measure:
    """The measure that a metric belongs to.

    Raises:
        KeyError: there is no such metric for these labels and scores.
    """
    for measure in measures(kind, values, scores, units, probabilities):
        if metric in measure.names:
            return measure
    raise KeyError(metric)


def with_intervals(measure: Measure, units: Units, seed: int, resamples: int) -> Values:
    """The metrics on the samples of these units: name -> value, low and high end of its 95 % interval.

    Of the share of single samples that are right the standard error is known and not estimated: the quantile is that of
    the normal distribution, which makes Wilson's interval.
    """
    value = measure.statistic(np.ones((1, units.samples)))[0]
    shift, quantile = np.zeros(len(value)), None
    if measure.each is not None:
        error = mean_errors(measure.each, units)
        if measure.whole and units.place is None:
            error, quantile = np.sqrt(value * (1 - value) / units.number), _NORMAL
    else:
        halves = on_halves(measure.statistic, units, n=resamples, seed=seed, block=measure.block)
        error = standard_errors(halves, units) * measure.missing_variance
        shift = biases(value, halves, units, np.array([_DECAY.get(name, 1.0) for name in measure.names]))
    size = measure.size(units)
    found: Values = {}
    for name, own, spread, bias in zip(measure.names, value.tolist(), error.tolist(), shift.tolist(), strict=True):
        low, high = ends(own, spread, size=size, bounds=measure.bounds, bias=bias, quantile=quantile)
        found[name] = (own, low, high)
    return found
