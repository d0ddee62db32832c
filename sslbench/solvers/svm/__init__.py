"""What the solvers of the SVM protocol have in common."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Targets = npt.NDArray[np.int8]
Folds = npt.NDArray[np.int16]

_CLASSES = 64  # at a time, so that memory does not grow with their number


@dataclasses.dataclass(frozen=True)
class Models:
    """Linear models of K classes: (K, D) weights, (K,) biases, (K,) whether each one converged."""

    weight: FloatArray
    bias: FloatArray
    converged: npt.NDArray[np.bool_]

    def decide(self, x: FloatArray) -> FloatArray:
        """(N, K) decision values of features (N, D)."""
        return np.asarray(x @ self.weight.T + self.bias)


def relative_gaps(
    x: FloatArray,
    targets: Targets,
    costs: Sequence[float],
    models: Models,
    *,
    positive_weight: float,
    intercept_scaling: float,
) -> FloatArray:
    """Return (K,) upper bounds of the distance of each objective to its lowest value, relative to that.

    The objective is strongly convex, so half the squared length of the gradient bounds the distance, whichever solver
    found the model.

    Args:
        x: (N, D) training features.
        targets: (N, K), 1 positive, -1 negative, 0 left out.
        costs: of the K classes.
        models: the solutions.
        positive_weight: of the positives' losses; negatives weigh 1.
        intercept_scaling: value of the constant feature whose weight gives the bias.
    """
    gaps = np.empty(targets.shape[1])
    for first in range(0, len(gaps), _CLASSES):
        some = slice(first, first + _CLASSES)
        sign, weight, constant = targets[:, some], models.weight[some], models.bias[some] / intercept_scaling
        slack = np.maximum(0, 1 - sign * (x @ weight.T + models.bias[some])) * (sign != 0)
        price = np.asarray(costs[some]) * np.where(sign > 0, positive_weight, 1.0)
        value = (np.sum(weight**2, axis=1) + constant**2) / 2 + np.sum(price * slack**2, axis=0)
        residual = 2 * price * slack * sign
        gradient = np.sum((weight - residual.T @ x) ** 2, axis=1)
        gap = (gradient + (constant - intercept_scaling * residual.sum(axis=0)) ** 2) / 2
        gaps[some] = np.divide(gap, value - gap, out=np.full(len(gap), np.inf), where=gap < value)
    return gaps


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
