"""Metrics per group of the test samples, the worst group first (Sagawa et al. 2020; Koh et al. 2021, WILDS)."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.catalog import find
from sslbench.metrics.intervals import Units, mean_of_rows, over_trainings
from sslbench.metrics.measure import Kind, Probabilities
from sslbench.metrics.summary import one_measure, with_intervals

_FEW = 20  # samples, below which a group is reported as small


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
    draws: Sequence[npt.NDArray[np.floating]],
    groups: Sequence[str],
    *,
    seed: int,
    probabilities: Probabilities | None = None,
    resamples: int = 1000,
    together: IntArray | None = None,
) -> list[GroupScore]:
    """Return the metric on every group, the worst first (ties by name), groups without a value last.

    The interval of a group is that of its own samples, and of other draws of train if there are several; it is not
    corrected for the choice of the worst group.

    Args:
        metric: name of a metric that `summarise` computes; its direction decides what is worst.
        kind: `Classes`, `MultiLabel` or `Numbers`.
        values: labels of the N samples, as for `summarise`.
        draws: scores (N, C) of each draw of train, of which the metric is the mean; usually one.
        groups: the group of each of the N samples.
        seed: seed of the half-samples.
        probabilities: as for `summarise`.
        resamples: number of half-samples.
        together: (N,) numbers; samples with the same one are kept together by the intervals (`groups` of
            `summarise`).

    Raises:
        KeyError: there is no such metric.

    >>> from sslbench.targets.classes import Classes
    >>> scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> found = by_group("top1", Classes, np.array([0, 1, 1, 1]), [scores], ["a", "a", "b", "b"], seed=0)
    >>> [(group.name, group.value) for group in found]
    [('b', 0.0), ('a', 1.0)]
    """
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

    Args:
        metric: its name.
        values: (N,), one per sample.
        groups: the group of each of the N samples.
        together: as for `by_group`.

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
