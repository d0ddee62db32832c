"""What the solvers of the SVM protocol have in common."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Targets = npt.NDArray[np.int8]
Folds = npt.NDArray[np.int16]


@dataclasses.dataclass(frozen=True)
class Models:
    """Linear models of K classes: (K, D) weights, (K,) biases, (K,) whether each one converged."""

    weight: FloatArray
    bias: FloatArray
    converged: npt.NDArray[np.bool_]

    def decide(self, x: FloatArray) -> FloatArray:
        """(N, K) decision values of features (N, D)."""
        return np.asarray(x @ self.weight.T + self.bias)


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Cross-validation of one class at one cost.

    Attributes:
        column: of the class in the targets.
        place: of the cost in the settings.
        decision: (N,) of each sample by the model that it was held out from. -inf and inf where that model had no
            positives and no negatives to learn from; 0 for samples that are in no fold.
        unconverged: how many of the models did not converge.
    """

    column: int
    place: int
    decision: FloatArray
    unconverged: int


class Solver(Protocol):
    """Fits linear SVMs to one set of features."""

    def held_out(self, targets: Targets, folds: Folds) -> Iterator[HeldOut]:
        """Cross-validates every class at every cost of the settings, in any order.

        Args:
            targets: (N, K), 1 positive, -1 negative, 0 left out.
            folds: (N, K), the fold that holds a sample out for a class, from 0; -1 for those in none.
        """
        ...

    def fit(self, targets: Targets, costs: Sequence[float]) -> Models:
        """Fits the final models.

        Args:
            targets: (N, K), 1 positive, -1 negative (both present), 0 left out.
            costs: of the K classes.
        """
        ...


def no_model(signs: Targets) -> FloatArray:
    """(P,) the decision of problems (P, N) that lack positives (-inf) or negatives (inf); NaN where both are there."""
    positive, negative = (signs > 0).any(axis=-1), (signs < 0).any(axis=-1)
    return np.where(positive, np.where(negative, np.nan, np.inf), -np.inf)
