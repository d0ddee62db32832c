"""Metrics of each class: recall, precision, F1, average precision and AUROC, as fractions."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.metrics import classification, ranking
from sslbench.metrics.measure import Kind
from sslbench.metrics.one_vs_rest import OneVsRest

_RANKED = {
    "average_precision": ranking.voc_all_points,
    "average_precision_noninterpolated": ranking.non_interpolated,
    "auroc": ranking.auroc,
}


def per_class(
    kind: Kind,
    classes: Sequence[str],
    values: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    *,
    threshold: float = 0.0,
) -> dict[str, dict[str, float]]:
    """Return the metrics of every class.

    Args:
        kind: `Classes` or `MultiLabel`.
        classes: the C class names.
        values: single: (N,) true classes; multi: (N, C), 1 present, 0 absent, -1 ignore.
        scores: (N, C), higher means more likely; a class without a classifier has NaN.
        threshold: multi: a class is predicted where its score is above it.

    Returns:
        Metric -> class -> value, NaN where it is not computable: `n` (samples that have the class), `recall`,
        `precision`, `f1`, `average_precision` (interpolated, all points), `average_precision_noninterpolated`, `auroc`.
        With single labels the ranking metrics are of the class against all others.

    >>> from sslbench.targets.classes import Classes
    >>> scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> found = per_class(Classes, ("cat", "dog"), np.array([0, 1, 1]), scores)
    >>> found["recall"], found["precision"]
    ({'cat': 1.0, 'dog': 0.5}, {'cat': 0.5, 'dog': 1.0})
    """
    found = (
        _single(values.astype(np.int64), scores)
        if kind.metric == classification.TOP1.name
        else _multi(values, scores, threshold)
    )
    return {name: dict(zip(classes, map(float, column), strict=True)) for name, column in found.items()}


def _single(values: npt.NDArray[np.int64], scores: npt.NDArray[np.floating]) -> dict[str, FloatArray]:
    n_classes = scores.shape[1]
    predicted = classification.predicted_classes(scores)
    present = np.bincount(values, minlength=n_classes).astype(np.float64)
    chosen = np.bincount(predicted[predicted >= 0], minlength=n_classes).astype(np.float64)
    right = np.bincount(values[values == predicted], minlength=n_classes).astype(np.float64)
    ranked = OneVsRest(values, scores).per_class(list(_RANKED.values()))
    return _rates(present, chosen, right) | {name: ranked[:, i] for i, name in enumerate(_RANKED)}


def _multi(
    labels: npt.NDArray[np.integer], scores: npt.NDArray[np.floating], threshold: float
) -> dict[str, FloatArray]:
    counts = classification.LabelCounts(labels, scores, threshold)
    present, chosen, right = (column[0] for column in counts.sums(np.ones((1, len(labels)))))
    rates: Mapping[str, FloatArray] = _rates(present, chosen, right)
    unscored = np.isnan(scores).any(axis=0)
    rates = {name: np.where(unscored & (name != "n"), np.nan, column) for name, column in rates.items()}
    return {**rates, **{name: ranking.per_class(metric, labels, scores) for name, metric in _RANKED.items()}}


def _rates(present: FloatArray, chosen: FloatArray, right: FloatArray) -> dict[str, FloatArray]:
    return {
        "n": present,
        "recall": _ratio(right, present),
        "precision": _ratio(right, chosen),
        "f1": _ratio(2 * right, present + chosen),
    }


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.asarray(np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0))
