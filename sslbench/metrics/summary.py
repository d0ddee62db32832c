"""All metrics of an evaluation with their intervals: one function for every kind of labels."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, rows_of_each
from sslbench.metrics import classification, ranking, regression
from sslbench.metrics.answers import BestScores, ClassScores, Confidences, places, predicted_classes
from sslbench.metrics.intervals import Statistic, Units, Values, biases, ends, mean_errors, on_halves, standard_errors
from sslbench.metrics.measure import Kind, Measure, Probabilities
from sslbench.metrics.metric import Metric
from sslbench.metrics.ranking import OneVsRest

_RANKING: dict[Metric, ranking.RankingFunction] = {
    ranking.MAP: ranking.voc_all_points,
    ranking.MAP_11PT: ranking.voc_11_point,
    ranking.MAP_NONINTERPOLATED: ranking.non_interpolated,
    ranking.MACRO_AUROC: ranking.auroc,
}
_NORMAL = 1.959963984540054  # the 97.5 % point of the normal distribution
_BLOCK = 20_000_000  # weights in memory at a time where each block ranks the samples of every class again


def summarise(
    kind: Kind,
    classes: Sequence[str],
    values: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    *,
    seed: int,
    resamples: int = 1000,
    probabilities: Probabilities | None = None,
    groups: IntArray | None = None,
) -> tuple[Values, str, dict[str, float]]:
    """Return all metrics of one evaluation with their 95 % intervals.

    Args:
        kind: kind of the targets, a class of `sslbench.targets`, but `Unlabelled`.
        classes: names of the C classes or numbers.
        values: single: (N,) true classes; multi: (N, C), 1 present, 0 absent, -1 ignore; value: (N, C) numbers.
        scores: (N, C), higher means more likely; a class without a classifier has NaN. Value: the predictions.
            Other targets: the columns of `kind.columns`.
        seed: seed of the half-samples.
        resamples: number of half-samples.
        probabilities: conversion of the scores to probabilities; None where there is none, and then there is no
            calibration error, log loss or Brier score.
        groups: (N,) the group of each sample, which intervals keep together; None: each stands for itself.

    Returns:
        Metric name -> (value, low, high), fractions but for `nll` (nats), `brier` (0 to 2), `mae` and `rmse` (units of
        the labels); the name of the leading metric; class name -> recall (single), interpolated average precision
        (multi), R2 (value), IoU (map, parts) or PCK@0.1 (poses), NaN where not computable.

    >>> scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> from sslbench.targets.classes import Classes
    >>> metrics, leading, recall = summarise(Classes, ("cat", "dog"), np.array([0, 1, 1]), scores, seed=0)
    >>> leading, [round(value, 3) for value in metrics["top1"]], recall
    ('top1', [0.667, 0.208, 0.939], {'cat': 1.0, 'dog': 0.5})
    """
    found: Values = {}
    units = Units.of(len(values), groups)
    for measure in kind.measures(values, scores, units, probabilities):
        found |= with_intervals(measure, units, seed, resamples)
    each = kind.per_class(values, scores, len(classes))
    return found, kind.metric, dict(zip(classes, each, strict=True)) if each else {}


def without_intervals(
    kind: Kind, values: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]
) -> dict[str, float]:
    """Return all metrics of one evaluation by name, see `summarise`.

    >>> from sslbench.targets.numbers import Numbers
    >>> found = without_intervals(Numbers, np.array([[1.0], [3.0]]), np.array([[1.0], [2.0]]))
    >>> found["r2"], found["mae"]
    (0.5, 0.5)
    """
    found: dict[str, float] = {}
    for measure in kind.measures(values, scores, Units.of(len(scores), None)):
        found |= dict(zip(measure.names, measure.statistic(np.ones((1, len(scores))))[0].tolist(), strict=True))
    return found


def label_measures(
    values: npt.NDArray[np.integer], scores: npt.NDArray[np.floating], units: Units, how: Probabilities | None
) -> list[Measure]:
    """Return the metrics of any number of classes per sample."""
    threshold = 0.5 if how == "scores" else 0.0
    counts = classification.LabelCounts(values, scores, threshold)
    scored = ~np.isnan(scores).any(axis=0)
    class_units = units.having_each(values[:, scored] > 0)
    return [
        Measure(tuple(_RANKING), _multi_ranking(values, scores), class_units=class_units),
        Measure((classification.MICRO_F1,), lambda weights: counts.f1(weights)[:, :1]),
        Measure((classification.MACRO_F1,), lambda weights: counts.f1(weights)[:, 1:], class_units=class_units),
    ]


def place_measures(values: npt.ArrayLike, predicted: npt.ArrayLike) -> list[Measure]:
    """Return the metrics of predicted places; both are latitude and longitude (N, 2) in degrees."""
    distances = regression.great_circle_distances(values, predicted)
    within = regression.located_within(distances)
    return [
        dataclasses.replace(_means(regression.ACCURACY, list(within.T)), binary=True),
        _means((regression.MEAN_ERROR,), [distances]),
        Measure((regression.MEDIAN_ERROR,), lambda weights: regression.weighted_medians(distances, weights)[:, None]),
    ]


def summarise_places(
    values: npt.NDArray[np.floating],
    predicted: npt.NDArray[np.floating],
    *,
    seed: int,
    resamples: int = 1000,
    groups: IntArray | None = None,
) -> Values:
    """Return the metrics of predicted places with their 95 % intervals: name -> value, low and high end.

    `values`: (N, 2), latitude and longitude in degrees.

    >>> true = np.array([[48.86, 2.35], [51.51, -0.13]])
    >>> found = summarise_places(true, np.array([[48.86, 2.35], [48.86, 2.35]]), seed=0)
    >>> found["accuracy@200km"][0], round(found["mean_error_km"][0])
    (0.5, 172)
    """
    units = Units.of(len(values), groups)
    found: Values = {}
    for measure in place_measures(values, predicted):
        found |= with_intervals(measure, units, seed, resamples)
    return {metric.name: found[metric.name] for metric in regression.PLACES}


def class_measures(
    values: npt.NDArray[np.int64], scores: ClassScores, units: Units, probabilities: Probabilities | None
) -> list[Measure]:
    """Return the metrics of one class per sample, with probabilities those of calibration too.

    Of the best scores alone, those that rank the samples by each class are left out.
    """
    n_classes = scores.shape[1]
    table = classification.ClassCounts(values, predicted_classes(scores), n_classes)
    # With fewer than five classes there is no top-5: NaN for every sample makes it NaN throughout.
    found = places(values, scores)
    right = [(found < k).astype(np.float64) if k <= n_classes else np.full(len(values), np.nan) for k in (1, 5)]
    by_class = rows_of_each(values, n_classes)
    class_units = tuple(units.having(rows) for rows in by_class if len(rows))
    measured = [
        dataclasses.replace(_means((classification.TOP1, classification.TOP5), right), binary=True),
        Measure(
            (classification.BALANCED_ACCURACY, classification.MACRO_F1),
            lambda weights: np.column_stack([table.balanced_accuracy(weights), table.macro_f1(weights)]),
            class_units=class_units,
        ),
    ]
    if not isinstance(scores, BestScores):
        ranked = OneVsRest(values, scores)
        measured.append(
            Measure(
                tuple(_RANKING),
                lambda weights: ranked.means(list(_RANKING.values()), weights),
                class_units=class_units,
                block=_BLOCK,
            )
        )
    return measured + (_calibration(values, scores, probabilities) if probabilities is not None else [])


def _calibration(values: npt.NDArray[np.int64], scores: ClassScores, how: Probabilities) -> list[Measure]:
    sure = Confidences.of(values, scores, how)
    errors = [classification.CalibrationError(sure, adaptive=adaptive) for adaptive in (False, True)]
    return [
        Measure(
            (classification.ECE, classification.ECE_ADAPTIVE),
            lambda weights: np.column_stack([error.value(weights) for error in errors]),
            bias=np.array([error.bias for error in errors]),
        ),
        _means((classification.NLL,), [sure.log_losses()]),
        _means((classification.BRIER,), [sure.brier_scores()]),
    ]


def _means(metrics: tuple[Metric, ...], each: Sequence[npt.NDArray[np.floating]]) -> Measure:
    """Return metrics that are means of one value (N,) per sample."""
    columns = np.stack([np.asarray(values, dtype=np.float64) for values in each], axis=1)
    return Measure(metrics, lambda weights: weights @ columns / weights.sum(axis=1, keepdims=True), per_sample=columns)


def _multi_ranking(labels: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> Statistic:
    kept = [np.flatnonzero(labels[:, c] >= 0) for c in range(labels.shape[1])]
    ranked = [ranking.Ranked(labels[rows, c], scores[rows, c]) for c, rows in enumerate(kept)]
    usable = [c for c, r in enumerate(ranked) if r.has_positives and not np.isnan(scores[kept[c], c]).any()]

    def statistic(counts: FloatArray) -> FloatArray:
        total, number = np.zeros((2, len(counts), len(_RANKING)))
        for c in usable:
            weighted = ranked[c].counts(counts[:, kept[c]])
            values = np.column_stack([function(weighted) for function in _RANKING.values()])
            number += ~np.isnan(values)
            total += np.nan_to_num(values)
        return np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0)

    return statistic


def one_measure(
    metric: str,
    kind: Kind,
    values: npt.NDArray[np.integer],
    scores: ClassScores,
    units: Units,
    probabilities: Probabilities | None = None,
) -> Measure:
    """Return the measure of a metric; arguments as for `measures`.

    A metric of places takes two numbers per sample for latitude and longitude.
    """
    of_places = values.shape[1:] == (2,) and metric in {m.name for m in regression.PLACES}
    if isinstance(scores, BestScores):
        measures = class_measures(values.astype(np.int64), scores, units, probabilities)
    else:
        measures = place_measures(values, scores) if of_places else kind.measures(values, scores, units, probabilities)
    for measure in measures:
        if metric in measure.names:
            return measure
    raise KeyError(metric)


def with_intervals(measure: Measure, units: Units, seed: int, resamples: int) -> Values:
    """Return the metrics on the samples of these units: name -> value, low and high end of its 95 % interval."""
    # The standard error of a share of single samples is known and not estimated: with the quantile of the normal
    # distribution that makes Wilson's interval.
    value = measure.statistic(np.ones((1, units.samples)))[0]
    shift, quantile = np.zeros(len(value)), None
    if measure.per_sample is not None:
        error = mean_errors(measure.per_sample, units)
        if measure.binary and units.place is None:
            error, quantile = np.sqrt(value * (1 - value) / units.number), _NORMAL
    else:
        halves = on_halves(measure.statistic, units, n=resamples, seed=seed, block=measure.block)
        error = standard_errors(halves, units) * measure.missing_variance
        shift = biases(value, halves, units, np.array([metric.bias_decay for metric in measure.metrics]))
        shift = shift if measure.bias is None else np.maximum(shift, measure.bias)
    size = measure.size(units)
    found: Values = {}
    for metric, own, spread, bias in zip(measure.metrics, value.tolist(), error.tolist(), shift.tolist(), strict=True):
        low, high = ends(own, spread, size=size, bounds=metric.bounds, bias=bias, quantile=quantile)
        found[metric.name] = (own, low, high)
    return found
