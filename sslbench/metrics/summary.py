"""The metrics that every protocol reports, with their intervals: one function for single labels and for multi-label."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.metrics import calibration, classification, ranking, regression
from sslbench.metrics.intervals import Statistic, normal_ends, percentile_ends, resampled
from sslbench.metrics.one_vs_rest import OneVsRest

FloatArray = npt.NDArray[np.float64]
Values = dict[str, tuple[float, float, float]]
Probabilities = Literal["softmax", "scores"]
"""How scores become probabilities: their softmax (logits), or as they are (shares that sum to 1)."""

_RANKING: dict[str, ranking.Metric] = {
    "mAP": ranking.voc_all_points,
    "mAP_11pt": ranking.voc_11_point,
    "mAP_noninterpolated": ranking.non_interpolated,
    "macro_auroc": ranking.auroc,
}
_BLOCK = 20_000_000  # counts held at a time where each block costs a pass over N x N


@dataclasses.dataclass(frozen=True)
class Measure:
    """Some metrics that are computed together.

    Attributes:
        names: of the M metrics.
        statistic: from counts (R, N) of the samples to values (R, M).
        normal: those of them whose interval is `normal_ends` of the resampled values; of the others the percentiles.
        block: how many counts are held at a time.
        bounded: the values lie between 0 and 1.
    """

    names: tuple[str, ...]
    statistic: Statistic
    normal: frozenset[str] = frozenset()
    block: int = 4_000_000
    bounded: bool = True


def summarise(
    kind: str,
    classes: Sequence[str],
    values: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    *,
    seed: int,
    resamples: int = 1000,
    probabilities: Probabilities | None = None,
) -> tuple[Values, str, dict[str, float]]:
    """All metrics of one evaluation.

    Args:
        kind: 'single', 'multi' or 'value'.
        classes: the C class names, or of the C numbers.
        values: single: (N,) true classes; multi: (N, C), 1 present, 0 absent, -1 ignore; value: (N, C) numbers.
        scores: (N, C), higher means more likely; a class that has no classifier has NaN. Value: what was predicted.
        seed: of the bootstrap.
        resamples: of the bootstrap.
        probabilities: how the scores become probabilities; None where they do not, and then there is no calibration
            error, log loss or Brier score.

    Returns:
        Metric name -> (value, low, high), fractions but for `nll` (nats), `brier` (0 to 2), `mae` and `rmse` (units of
        the labels); the name of the leading metric; class name -> recall (single), interpolated average precision
        (multi) or R2 (value), NaN where not computable.
    """
    found: Values = {}
    for measure in measures(kind, values, scores, probabilities):
        found |= with_intervals(measure, len(values), seed, resamples)
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
    probabilities: Probabilities | None = None,
) -> list[Measure]:
    """The metrics of an evaluation as functions of how often each sample counts; see `summarise`."""
    if kind == "value":
        errors, ranks = regression.Errors(values, scores), regression.Ranks(values, scores)
        return [
            Measure(errors.names, errors.statistic, bounded=False),
            Measure(ranks.names, ranks.correlation, bounded=False),
        ]
    if kind == "single":
        return _single(values.astype(np.int64), scores, probabilities)
    threshold = 0.5 if probabilities == "scores" else 0.0
    of_labels = classification.LabelCounts(values, scores, threshold)
    return [
        Measure(tuple(_RANKING), _multi_ranking(values, scores)),
        Measure(("micro_f1", "macro_f1"), of_labels.f1),
    ]


def _single(
    values: npt.NDArray[np.int64], scores: npt.NDArray[np.floating], probabilities: Probabilities | None
) -> list[Measure]:
    n_classes = scores.shape[1]
    table = classification.ClassCounts(values, np.argmax(scores, axis=1), n_classes)
    # With fewer than five classes there is no top-5: NaN for every sample makes it NaN throughout.
    right = [
        classification.top_k_correct(values, scores, k) if k <= n_classes else np.full(len(values), np.nan)
        for k in (1, 5)
    ]
    ranked = OneVsRest(values, scores)
    found = [
        _means(("top1", "top5"), right),
        Measure(
            ("balanced_accuracy", "macro_f1"),
            lambda counts: np.column_stack([table.balanced_accuracy(counts), table.macro_f1(counts)]),
            normal=frozenset({"macro_f1"}),
        ),
        Measure(
            tuple(_RANKING),
            lambda counts: ranked.means(list(_RANKING.values()), counts),
            normal=frozenset(_RANKING) - {"macro_auroc"},
            block=_BLOCK,
        ),
    ]
    return found + (_calibration(values, scores, probabilities) if probabilities is not None else [])


def _calibration(values: npt.NDArray[np.int64], scores: npt.NDArray[np.floating], how: Probabilities) -> list[Measure]:
    given = calibration.softmax(scores) if how == "softmax" else scores.astype(np.float64)
    errors = [calibration.CalibrationError(values, given, adaptive=adaptive) for adaptive in (False, True)]
    losses = [calibration.log_losses(values, given), calibration.brier_scores(values, given)]
    return [
        Measure(
            ("ece", "ece_adaptive"),
            lambda counts: np.column_stack([error.value(counts) for error in errors]),
            normal=frozenset({"ece", "ece_adaptive"}),
        ),
        dataclasses.replace(_means(("nll", "brier"), losses), bounded=False),
    ]


def _means(names: tuple[str, ...], each: Sequence[npt.NDArray[np.floating] | npt.NDArray[np.bool_]]) -> Measure:
    """Metrics that are means over the samples of one value each."""
    columns = np.stack([np.asarray(values, dtype=np.float64) for values in each], axis=1)
    return Measure(names, lambda counts: counts @ columns / counts.sum(axis=1, keepdims=True))


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
    probabilities: Probabilities | None = None,
) -> Measure:
    """One metric out of `measures`, with those that come at no further cost.

    Raises:
        KeyError: there is no such metric.
    """
    for measure in measures(kind, values, scores, probabilities):
        if metric in measure.names:
            return measure
    raise KeyError(metric)


def with_intervals(measure: Measure, n_samples: int, seed: int, resamples: int) -> Values:
    """The metrics on N samples: name -> value, low and high end of its 95 % interval."""
    value = measure.statistic(np.ones((1, n_samples)))[0]
    values = resampled(measure.statistic, n_samples, n=resamples, seed=seed, block=measure.block)
    normal = np.array([name in measure.normal for name in measure.names])
    low, high = np.where(normal, normal_ends(value, values), percentile_ends(values))
    if measure.bounded:
        low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
    return {name: (float(value[i]), float(low[i]), float(high[i])) for i, name in enumerate(measure.names)}
