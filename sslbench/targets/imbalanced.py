"""One class per sample, where some classes have far more samples than others."""

import dataclasses
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.targets.classes import Classes


@dataclasses.dataclass(frozen=True, eq=False)
class Imbalanced(Classes):
    """One class per sample, scored by the mean over classes: predicting the largest one is worth 1/C.

    No reader returns them: `evaluation` makes them of `Classes` by the sizes in train, see `OfClasses.is_imbalanced`.

    >>> Imbalanced.headline(np.array([0] * 9 + [1]), np.array([[1.0, 0.0]] * 10))
    0.5
    """

    name = "imbalanced"
    title = "one class each, of unequal sizes"
    metric = "balanced_accuracy"
    beside = ("macro_auroc", "top1")

    @classmethod
    def like(cls, labels: Classes) -> Self:
        """Return the same labels as this kind."""
        return cls(labels.classes, labels.values, labels.queries)

    @classmethod
    def leads_by_right(cls) -> bool:
        """Return True for the kinds with this leading metric."""
        return cls.metric == Imbalanced.metric

    @classmethod
    def of_right(cls, right: npt.NDArray[Any], samples: IntArray) -> npt.NDArray[np.floating]:
        """Return the mean over classes with samples of the share that is predicted right."""
        there = samples > 0
        return np.asarray((right[..., there] / samples[there]).mean(axis=-1))
