"""Metrics that are means over the test samples of weighted yes-or-no outcomes, such as errors under corruptions."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.intervals import Interval, Units, ends, mean_errors
from sslbench.metrics.metric import Metric


@dataclasses.dataclass(frozen=True)
class SampleMeans:
    """M metrics, each the mean over N samples of a weighted sum of K yes-or-no outcomes of the sample.

    A record keeps the outcomes, one bit each, so that all M metrics can be compared sample by sample, taken per group
    or without some samples.

    Attributes:
        metrics: names of the metrics.
        weights: (M, K) weight of each outcome.
        outcomes: (N, K).

    >>> errors = SampleMeans(("first", "both"), np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[True, False]]))
    >>> errors.values("both").tolist()
    [0.5]
    """

    metrics: tuple[str, ...]
    weights: FloatArray
    outcomes: BoolArray

    def values(self, metric: str) -> FloatArray:
        """Return the value (N,) of each sample, whose mean is the metric.

        Raises:
            KeyError: it is none of the metrics.
        """
        if metric not in self.metrics:
            raise KeyError(metric)
        return np.asarray(self.outcomes @ self.weights[self.metrics.index(metric)], dtype=np.float64)


def means(values: Mapping[Metric, FloatArray], units: Units) -> dict[str, Interval]:
    """Return metrics that are means of one value (N,) per sample, with their 95 % intervals.

    >>> from sslbench.metrics.classification import TOP1
    >>> found = means({TOP1: np.array([0.0, 0.5, 1.0])}, Units.of(3, None))
    >>> [round(value, 2) for value in found["top1"]]
    [0.5, 0.04, 0.96]
    """
    columns = np.stack([np.asarray(each, dtype=np.float64) for each in values.values()], axis=1)
    errors = mean_errors(columns, units)
    found = {}
    for metric, mean, error in zip(values, columns.mean(axis=0).tolist(), errors.tolist(), strict=True):
        found[metric.name] = (mean, *ends(mean, error, size=units.number, bounds=metric.bounds))
    return found


def mean_of_rows(
    metric: Metric, values: FloatArray, rows: Sequence[int] | IntArray, groups: IntArray | None
) -> Interval:
    """Return a metric that is a mean over samples, of some of them only, with its 95 % interval.

    Args:
        metric: its name and bounds.
        values: (N,), one per sample.
        rows: numbers of the samples that count.
        groups: (N,) group of each sample, which the interval keeps together; None: every sample stands for itself.
    """
    chosen = np.asarray(rows, dtype=np.int64)
    units = Units.of(len(chosen), None if groups is None else groups[chosen])
    return means({metric: values[chosen]}, units)[metric.name]
