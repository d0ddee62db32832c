"""Any number of classes per sample."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.metrics import ranking
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.metrics.metric import ClassFrequencies
from sslbench.metrics.summary import label_measures
from sslbench.targets.target import OfClasses, Rows


@dataclasses.dataclass(frozen=True, eq=False)
class MultiLabel(OfClasses):
    """Any number of classes per sample.

    Attributes:
        values: int8 (N, C), 1 present, 0 absent, -1 ignore.
    """

    name: ClassVar[Literal["multi"]] = "multi"
    title = "several labels each"
    metric = "mAP"
    classes: tuple[str, ...]
    values: npt.NDArray[np.int8]

    def text(self, index: int) -> str:
        """Return the names of a sample's classes, joined by ';' ('?NAME' = ignore)."""
        row = self.values[index]
        return ";".join(("?" if v < 0 else "") + c for c, v in zip(self.classes, row, strict=True) if v != 0)

    def counts(self) -> IntArray:
        """Return the number of samples of each class, (C,)."""
        return np.asarray((self.values == 1).sum(axis=0), dtype=np.int64)

    def by_first_sample(self) -> IntArray:
        """Return the class numbers in the order of the first samples that have them, (C,)."""
        # Bytes sort like the columns: 0, the class is there, comes before 1. Between classes of the same samples the
        # ignored marks decide.
        keys = [(column != 1).tobytes() + column.tobytes() for column in self.values.T]
        return np.asarray(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)

    def among(self, kept: IntArray) -> "MultiLabel":
        """Return the labels with the classes at `kept`, in that order."""
        return MultiLabel(tuple(self.classes[c] for c in kept), self.values[:, kept])

    def flags(self) -> npt.NDArray[np.int8]:
        """Return 1 for classes that a sample has, 0 for those that it has not and -1 for ignored ones, (N, C)."""
        return self.values

    def frequencies(self) -> ClassFrequencies:
        """Return the number of samples of each class, for chance levels."""
        return ClassFrequencies((self.values == 1).sum(axis=0), (self.values >= 0).sum(axis=0))

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return ranking metrics and F1."""
        return label_measures(values, scores, units, how)

    @classmethod
    def headline(cls, values: Rows, scores: Rows) -> float:
        """Return the mean average precision."""
        return ranking.mean_average_precision(values, scores)

    @classmethod
    def per_class(cls, values: Rows, scores: Rows, classes: int) -> list[float]:
        """Return the interpolated average precision of every class."""
        return list(map(float, ranking.per_class(ranking.voc_all_points, values, scores)))
