"""The metrics that every protocol reports, with their intervals: one function for single labels and for multi-label."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.metrics import classification, ranking
from sslbench.metrics.intervals import Statistic, bootstrap

FloatArray = npt.NDArray[np.float64]
Values = dict[str, tuple[float, float, float]]


def summarise(
    kind: str,
    classes: Sequence[str],
    values: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    *,
    seed: int,
    resamples: int = 1000,
) -> tuple[Values, str, dict[str, float]]:
    """All metrics of one evaluation.

    Args:
        kind: 'single' or 'multi'.
        classes: the C class names.
        values: single: (N,) true classes; multi: (N, C), 1 present, 0 absent, -1 ignore.
        scores: (N, C), higher means more likely; a class that has no classifier has NaN.
        seed: of the bootstrap.
        resamples: of the bootstrap.

    Returns:
        Metric name -> (value, low, high), fractions; the name of the leading metric; class name -> recall (single) or
        interpolated average precision (multi), NaN where not computable.
    """
    if kind == "single":
        return _single(classes, values.astype(np.int64), scores, seed, resamples)
    return _multi(classes, values, scores, seed, resamples)


def headline(kind: str, values: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> float:
    """Only the leading metric: top-1 accuracy (single) or mean average precision (multi)."""
    if kind == "single":
        return classification.top_k_accuracy(values.astype(np.int64), scores)
    return ranking.mean_average_precision(values, scores)


def _single(
    classes: Sequence[str],
    values: npt.NDArray[np.int64],
    scores: npt.NDArray[np.floating],
    seed: int,
    resamples: int,
) -> tuple[Values, str, dict[str, float]]:
    predicted = np.argmax(scores, axis=1)
    table = classification.ClassCounts(values, predicted, len(classes))
    top1 = classification.top_k_correct(values, scores, 1).astype(np.float64)
    # With fewer than five classes there is no top-5: NaN for every sample makes it NaN throughout.
    top5 = classification.top_k_correct(values, scores, 5).astype(np.float64)
    top5[:] = top5 if len(classes) >= 5 else np.nan

    def statistic(counts: FloatArray) -> FloatArray:
        shares = counts @ np.stack([top1, top5], axis=1) / counts.sum(axis=1, keepdims=True)
        return np.column_stack([shares, table.balanced_accuracy(counts), table.macro_f1(counts)])

    metrics = _with_intervals(
        ("top1", "top5", "balanced_accuracy", "macro_f1"), statistic, len(values), seed, resamples
    )
    recall = table.recall(np.ones((1, len(values))))[0]
    return metrics, "top1", dict(zip(classes, map(float, recall), strict=True))


def _multi(
    classes: Sequence[str],
    labels: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    seed: int,
    resamples: int,
) -> tuple[Values, str, dict[str, float]]:
    kept = [np.flatnonzero(labels[:, c] >= 0) for c in range(len(classes))]
    ranked = [ranking.Ranked(labels[rows, c], scores[rows, c]) for c, rows in enumerate(kept)]
    usable = [c for c, r in enumerate(ranked) if r.has_positives and not np.isnan(scores[:, c]).any()]
    functions = (ranking.voc_all_points, ranking.non_interpolated, ranking.auroc)

    def statistic(counts: FloatArray) -> FloatArray:
        total, number = np.zeros((2, len(counts), len(functions)))
        for c in usable:
            weights = counts[:, kept[c]]
            values = np.column_stack([function(ranked[c], weights) for function in functions])
            number += ~np.isnan(values)
            total += np.nan_to_num(values)
        return np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0)

    names = ("mAP", "mAP_noninterpolated", "macro_auroc")
    metrics = _with_intervals(names, statistic, len(labels), seed, resamples)
    precisions = ranking.per_class(ranking.voc_all_points, labels, scores)
    return metrics, "mAP", dict(zip(classes, map(float, precisions), strict=True))


def _with_intervals(
    names: tuple[str, ...],
    statistic: Statistic,
    n_samples: int,
    seed: int,
    resamples: int,
) -> Values:
    value = statistic(np.ones((1, n_samples)))[0]
    low, high = bootstrap(statistic, n_samples, n=resamples, seed=seed)
    return {name: (float(value[i]), float(low[i]), float(high[i])) for i, name in enumerate(names)}
