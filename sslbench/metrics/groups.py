"""Metrics per class, and per group, the worst first (Sagawa et al. 2020; Koh et al. 2021, WILDS)."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics import classification, ranking
from sslbench.metrics.answers import BestScores, ClassScores, predicted_classes
from sslbench.metrics.catalog import find
from sslbench.metrics.intervals import Units, mean_of_rows, over_trainings
from sslbench.metrics.measure import Kind, Probabilities
from sslbench.metrics.ranking import OneVsRest
from sslbench.metrics.summary import one_measure, with_intervals

_FEW = 20  # samples, below which a group is reported as small
_RANKED = {
    "average_precision": ranking.voc_all_points,
    "average_precision_noninterpolated": ranking.non_interpolated,
    "auroc": ranking.auroc,
}


@dataclasses.dataclass(frozen=True)
class GroupScore:
    """A metric on the n samples of one group, with its 95 % interval; NaN where it is not computable."""

    name: str
    n: int
    value: float
    low: float
    high: float


def by_group(  # noqa: PLR0913  the parts of an evaluation, and two kinds of groups
    metric: str,
    kind: Kind,
    values: npt.NDArray[np.integer],
    draws: Sequence[ClassScores],
    groups: Sequence[str],
    *,
    seed: int,
    probabilities: Probabilities | None = None,
    resamples: int = 1000,
    together: IntArray | None = None,
) -> list[GroupScore]:
    """Return the metric on every group, the worst first (ties by name), groups without a value last.

    `draws`: scores (N, C) of each draw of train, of which the metric is the mean; usually one; `together`: (N,)
    numbers; samples with the same one are kept together by the intervals (`groups` of `summarise`).

    >>> from sslbench.targets.classes import Classes
    >>> scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> found = by_group("top1", Classes, np.array([0, 1, 1, 1]), [scores], ["a", "a", "b", "b"], seed=0)
    >>> [(group.name, group.value) for group in found]
    [('b', 0.0), ('a', 1.0)]
    """
    # The interval of a group is that of its own samples, and of other draws of train if there are several; it is not
    # corrected for the choice of the worst group.
    names, number = np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True)
    found, sign = [], 1
    for i, name in enumerate(names.tolist()):
        rows = np.flatnonzero(number == i)
        units = Units.of(len(rows), None if together is None else together[rows])
        measures = [one_measure(metric, kind, values[rows], one[rows], units, probabilities) for one in draws]
        of_metric = measures[0].metrics[measures[0].names.index(metric)]
        each = [with_intervals(measure, units, seed, resamples)[metric] for measure in measures]
        sign, interval = of_metric.sign, each[0] if len(each) == 1 else over_trainings(each, of_metric.bounds)
        found.append(GroupScore(name, len(rows), *interval))
    return sorted(found, key=lambda score: (np.isnan(score.value), sign * score.value, score.name))


def means_by_group(
    metric: str, values: FloatArray, groups: Sequence[str], *, together: IntArray | None = None
) -> list[GroupScore]:
    """Return a metric that is a mean over samples on every group, in the order of `by_group`.

    `values`: (N,), one per sample.

    >>> errors = means_by_group("corruption_error", np.array([0.0, 0.2, 1.0]), ["a", "a", "b"])
    >>> [(group.name, group.n, round(group.value, 2)) for group in errors]
    [('b', 1, 1.0), ('a', 2, 0.1)]
    """
    names, number = np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True)
    record = find(metric)
    found = []
    for i, name in enumerate(names.tolist()):
        rows = np.flatnonzero(number == i)
        found.append(GroupScore(name, len(rows), *mean_of_rows(record, values, rows, together)))
    return sorted(found, key=lambda score: (record.sign * score.value, score.name))


def warning(column: str, worst: GroupScore) -> str | None:
    """Return a warning about a worst group of few samples; None if it is large enough."""
    if worst.n >= _FEW:
        return None
    return f"The worst group of {column}, '{worst.name}', has only {worst.n} test sample{'s' if worst.n > 1 else ''}."


def per_class(
    classes: Sequence[str], values: npt.NDArray[np.integer], scores: ClassScores, *, threshold: float = 0.0
) -> dict[str, dict[str, float]]:
    """Return the metrics of every class.

    `values`: single: (N,) true classes; multi: (N, C), 1 present, 0 absent, -1 ignore; `scores`: (N, C), higher means
    more likely; a class without a classifier has NaN; returns metric -> class -> value, NaN where it is not computable:
    `n` (samples that have the class), `recall`, `precision`, `f1`, `average_precision` (interpolated, all points),
    `average_precision_noninterpolated`, `auroc`. With single labels the ranking metrics are of the class against all
    others; of the best scores alone there are none.

    >>> scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> found = per_class(("cat", "dog"), np.array([0, 1, 1]), scores)
    >>> found["recall"], found["precision"]
    ({'cat': 1.0, 'dog': 0.5}, {'cat': 0.5, 'dog': 1.0})
    """
    single = values.ndim == 1
    if single or isinstance(scores, BestScores):
        labels, predicted, n_classes = values.astype(np.int64), predicted_classes(scores), len(classes)
        present, chosen, right = (
            np.bincount(of_samples, minlength=n_classes).astype(np.float64)
            for of_samples in (labels, predicted[predicted >= 0], labels[labels == predicted])
        )
        ranks = {}
        if not isinstance(scores, BestScores):
            ranked = OneVsRest(labels, scores).per_class(list(_RANKED.values()))
            ranks = dict(zip(_RANKED, ranked.T, strict=True))
    else:
        counts = classification.LabelCounts(values, scores, threshold)
        present, chosen, right = (column[0] for column in counts.sums(np.ones((1, len(values)))))
        ranks = {name: ranking.per_class(metric, values, scores) for name, metric in _RANKED.items()}
    rates = {
        "recall": _ratio(right, present),
        "precision": _ratio(right, chosen),
        "f1": _ratio(2 * right, present + chosen),
    }
    if not (single or isinstance(scores, BestScores)):
        unscored = np.isnan(scores).any(axis=0)
        rates = {name: np.where(unscored, np.nan, column) for name, column in rates.items()}
    columns = {"n": present, **rates, **ranks}
    return {name: dict(zip(classes, map(float, column), strict=True)) for name, column in columns.items()}


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.asarray(np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0))
