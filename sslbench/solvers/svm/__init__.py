"""Linear SVMs with squared hinge loss: the interface of the solvers, their models and the bound on their error."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, Int8Array, Int16Array, Matrix

_ROWS, _CLASSES = 32768, 64  # samples and classes at a time, so that memory does not grow with their numbers


@dataclasses.dataclass(frozen=True)
class PreparedRows:
    """Features in double precision and perhaps of length 1, prepared where a range of rows is read.

    Attributes:
        x: (N, D) as stored.
        normalise: divide every row by its length + 1e-5.
    """

    x: Matrix
    normalise: bool

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of samples and features."""
        return len(self.x), int(self.x.shape[1])

    def __getitem__(self, rows: slice) -> FloatArray:
        prepared = np.array(self.x[rows], dtype=np.float64)
        if self.normalise:
            prepared /= np.linalg.norm(prepared, axis=1, keepdims=True) + 1e-5
        return prepared


@dataclasses.dataclass(frozen=True)
class Models:
    """Linear models of K classes.

    Attributes:
        weight: (K, D).
        bias: (K,).
        converged: (K,) True where the solver reached its tolerance.
    """

    weight: FloatArray
    bias: FloatArray
    converged: npt.NDArray[np.bool_]

    def decide(self, x: FloatArray) -> FloatArray:
        """Return the (N, K) decision values of features (N, D)."""
        return np.asarray(x @ self.weight.T + self.bias)


def relative_gaps(
    x: FloatArray | PreparedRows,
    targets: Int8Array,
    costs: Sequence[float],
    models: Models,
    *,
    positive_weight: float,
    intercept_scaling: float,
) -> FloatArray:
    """Return (K,) upper bounds of the distance of each objective to its minimum, relative to the minimum.

    The objective |v|^2 / 2 + sum_i c_i max(0, 1 - y_i v x_i)^2 is strongly convex with modulus 1, so half the squared
    length of its gradient bounds the distance (Boyd & Vandenberghe 2004, equation 9.9), whichever solver found v.

    >>> x, targets = np.array([[-1.0], [1.0]]), np.array([[-1], [1]], dtype=np.int8)
    >>> found = Models(np.array([[0.8], [0.7]]), np.zeros(2), np.ones(2, dtype=bool))
    >>> gaps = relative_gaps(x, np.repeat(targets, 2, 1), [1.0, 1.0], found, positive_weight=1, intercept_scaling=1)
    >>> gaps.round(3).tolist()  # 0.8 is the optimum
    [0.0, 0.417]

    Args:
        x: (N, D) training features.
        targets: (N, K), 1 positive, -1 negative, 0 left out.
        costs: costs of the K classes.
        models: solutions.
        positive_weight: weight of the positives' losses; negatives weigh 1.
        intercept_scaling: value of the constant feature whose weight gives the bias.
    """
    constant = models.bias / intercept_scaling
    value = (np.sum(models.weight**2, axis=1) + constant**2) / 2
    by_weight, by_constant = models.weight.copy(), constant.copy()
    for start in range(0, len(x), _ROWS):
        part = x[start : start + _ROWS]
        for first in range(0, len(value), _CLASSES):
            block = slice(first, first + _CLASSES)
            sign = targets[start : start + _ROWS, block]
            slack = np.maximum(0, 1 - sign * (part @ models.weight[block].T + models.bias[block])) * (sign != 0)
            sample_costs = np.asarray(costs[block]) * np.where(sign > 0, positive_weight, 1.0)
            value[block] += np.sum(sample_costs * slack**2, axis=0)
            alpha = 2 * sample_costs * slack * sign
            by_weight[block] -= alpha.T @ part
            by_constant[block] -= intercept_scaling * alpha.sum(axis=0)
    gap = (np.sum(by_weight**2, axis=1) + by_constant**2) / 2
    return np.asarray(np.divide(gap, value - gap, out=np.full(len(gap), np.inf), where=gap < value))


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Cross-validation of one class at one cost.

    Attributes:
        column: column of the class in the targets.
        place: position of the cost in the settings.
        decision: (N,) decision value of each sample by the model that it was held out from; -inf if this model had no
            positives, inf if it had no negatives; 0 for samples in no fold.
        unconverged: number of models that did not converge.
    """

    column: int
    place: int
    decision: FloatArray
    unconverged: int


class SvmSolver(Protocol):
    """Solver of linear SVMs on one set of features."""

    def held_out(self, targets: Int8Array, folds: Int16Array) -> Iterator[HeldOut]:
        """Cross-validate every class at every cost of the settings, in any order.

        Args:
            targets: (N, K), 1 positive, -1 negative, 0 left out.
            folds: (N, K) the fold that holds a sample out for a class, from 0; -1 for none.
        """
        ...

    def fit(self, targets: Int8Array, costs: Sequence[float]) -> Models:
        """Fit the final models.

        Args:
            targets: (N, K), 1 positive, -1 negative (both present), 0 left out.
            costs: costs of the K classes.
        """
        ...


def no_model(signs: Int8Array) -> FloatArray:
    """Return (P,) constant decision values of problems (P, N) without positives (-inf) or negatives (inf), else NaN.

    >>> no_model(np.array([[1, -1], [-1, -1], [1, 0]], dtype=np.int8)).tolist()
    [nan, -inf, inf]
    """
    positive, negative = (signs > 0).any(axis=-1), (signs < 0).any(axis=-1)
    return np.where(positive, np.where(negative, np.nan, np.inf), -np.inf)
