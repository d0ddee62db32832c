"""Numbers to predict for every sample (regression)."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from sslbench.metrics import regression
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.target import Rows, Target


@dataclasses.dataclass(frozen=True, eq=False)
class Numbers(Target):
    """Numbers to predict.

    Attributes:
        classes: names of the C numbers.
        values: float64 (N, C), finite.
    """

    name: ClassVar[Literal["value"]] = "value"
    title = "numbers as labels"
    metric = "r2"
    of_numbers = True
    classes: tuple[str, ...]
    values: npt.NDArray[np.float64]

    def text(self, index: int) -> str:
        """Return the numbers, joined by ';'."""
        return ";".join(repr(float(value)) for value in self.values[index])

    def size_text(self) -> str:
        """Return the names of the numbers."""
        return f"numbers: {', '.join(self.classes)}"

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return errors and correlations of predicted numbers."""
        return regression.number_measures(values, scores)

    @classmethod
    def headline(cls, values: Rows, scores: Rows) -> float:
        """Return the coefficient of determination, or what else leads a kind that extends this one."""
        return regression.r2(values, scores) if cls.metric == Numbers.metric else super().headline(values, scores)

    @classmethod
    def per_class(cls, values: Rows, scores: Rows, classes: int) -> list[float]:
        """Return the coefficient of determination of every number."""
        return list(map(float, regression.r2_each(values, scores)))
