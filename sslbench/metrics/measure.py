"""Metrics as functions of the weights of samples, or means of their outcomes, for intervals and paired differences."""

import dataclasses
import math
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray
from sslbench.metrics.intervals import Statistic, Units
from sslbench.metrics.metric import Metric

Probabilities = Literal["softmax", "scores"]
"""Conversion of scores to probabilities: by softmax (logits), or none (shares that sum to 1)."""


@dataclasses.dataclass(frozen=True)
class Measure:
    """Metrics that are computed together.

    Attributes:
        statistic: function from weights (R, N) of the samples to values (R, M).
        per_sample: (N, M) values per sample whose means the metrics are; None where they are no such means.
        class_units: for metrics that are means over classes, the number of units that have each class; None where all
            units count alike.
        block: number of weights in memory at a time.
        binary: True if the values of `per_sample` are 0 and 1.
        bias: (M,), least bias of the values, positive where they are too high; None where half-samples show it.
    """

    metrics: tuple[Metric, ...]
    statistic: Statistic
    per_sample: FloatArray | None = None
    class_units: tuple[int, ...] | None = None
    block: int = 4_000_000
    binary: bool = False
    bias: FloatArray | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(metric.name for metric in self.metrics)

    def size(self, units: Units) -> float:
        """Return the effective number of units: for means over C classes, C times the harmonic mean of their units."""
        if not self.class_units:
            return units.number
        return len(self.class_units) ** 2 / sum(1 / number for number in self.class_units)

    @property
    def missing_variance(self) -> float:
        """Factor of the standard errors for classes with one unit, which show no variance; NaN if all have one."""
        # The variance of a class is assumed to fall with the number of its units.
        if not self.class_units:
            return 1.0
        seen = sum(1 / number for number in self.class_units if number > 1)
        return math.sqrt(sum(1 / number for number in self.class_units) / seen) if seen else math.nan


@dataclasses.dataclass(frozen=True)
class SampleMeans:
    """M metrics, each the mean over N samples of a weighted sum of K yes-or-no outcomes of the sample.

    A record keeps the outcomes, one bit each, so that all M metrics can be compared sample by sample, taken per group
    or without some samples.

    Attributes:
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
        """Return the value (N,) of each sample, whose mean is the metric."""
        if metric not in self.metrics:
            raise KeyError(metric)
        return np.asarray(self.outcomes @ self.weights[self.metrics.index(metric)], dtype=np.float64)


class Kind(Protocol):
    """Kind of targets, as metrics know it: a class of `sslbench.targets`."""

    @property
    def name(self) -> str:
        """Name in records."""
        ...

    @property
    def metric(self) -> str:
        """Name of the leading metric."""
        ...

    @property
    def of_one_class(self) -> bool:
        """True if every sample has exactly one class."""
        ...

    def measures(
        self, values: npt.NDArray[Any], scores: npt.NDArray[Any], units: Units, how: Probabilities | None = None, /
    ) -> list[Measure]:
        """Return the metrics as functions of the weights of the samples."""
        ...

    def headline(self, values: npt.NDArray[Any], scores: npt.NDArray[Any], /) -> float:
        """Return the leading metric alone."""
        ...

    def per_class(self, values: npt.NDArray[Any], scores: npt.NDArray[Any], classes: int, /) -> list[float]:
        """Return the metric of every class; [] where there is none."""
        ...
