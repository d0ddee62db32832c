"""The objective of a logistic regression: its value, its gradient, its curvature.

The objective is the mean loss per sample plus `penalty` / 2 times the squared length of the weights, where the penalty
is 1 / (C N) with scikit-learn's C. Biases are free.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.floating]
Precision = type[np.float32] | type[np.float64]

_LOGITS = 2**21  # per block of samples, so that they stay in the cache
_VALUES = 2**24  # features per block of samples: the bound of what is converted at a time


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted model.

    Attributes:
        weight: (R, K) on the axes.
        bias: (K,).
        converged: whether `gap` is as small as asked.
        iterations: of L-BFGS, and products of Newton's method.
        gap: upper bound of the distance of the objective to its lowest value, relative to that.
    """

    weight: FloatArray
    bias: FloatArray
    converged: bool
    iterations: int
    gap: float

    def decide(self, x: Matrix) -> FloatArray:
        """Return (N, K) decision values of coordinates (N, R)."""
        return np.asarray(x @ self.weight.astype(x.dtype) + self.bias, dtype=np.float64)


@dataclasses.dataclass(frozen=True)
class Slope:
    """Mean loss at one point and its derivatives.

    Attributes:
        losses: mean loss per sample, (1,) of a multinomial problem, (K,) of K binary ones.
        by_weight: (R, K).
        by_bias: (K,).
    """

    losses: FloatArray
    by_weight: FloatArray
    by_bias: FloatArray


@dataclasses.dataclass(frozen=True)
class ClassSums:
    """Means over all samples, of what does not depend on the weights; a label that is unknown counts for nothing.

    Attributes:
        positive: (K,) of 1 where the sample is of the class.
        known: (K,) of 1 where the label is known.
        x_positive: (R, K) of the coordinates of the samples of the class.
        x_known: (R, K) of the coordinates of those whose label is known.
    """

    positive: FloatArray
    known: FloatArray
    x_positive: FloatArray
    x_known: FloatArray


class Problem:
    """The loss over some samples, as a function of weights on the axes."""

    def __init__(self, x: Matrix, targets: npt.NDArray[np.int64] | npt.NDArray[np.int8], outputs: int) -> None:
        """Prepare.

        Args:
            x: (N, R) coordinates.
            targets: (N,) classes 0..K-1 for a multinomial problem; (N, K) of 1, 0 or -1 (ignored) for K binary ones.
            outputs: K.
        """
        self.x, self.outputs, self.targets = x, outputs, targets
        self.multinomial = targets.ndim == 1
        self._single: Matrix | None = None

    def blocks(self, precision: Precision) -> Iterator[tuple[slice, Matrix]]:
        """Yield the samples in parts, so that what is computed of each stays in the cache and memory stays bounded.

        The coordinates are in the precision asked for. Single precision is a copy, made once; double precision of
        coordinates in single precision is made part by part.
        """
        x = self.x
        if precision is np.float32:
            if self._single is None:
                self._single = self.x.astype(np.float32, copy=False)
            x = self._single
        rows = max(256, min(_LOGITS // self.outputs, _VALUES // max(1, x.shape[1])))
        for start in range(0, len(x), rows):
            block = slice(start, start + rows)
            yield block, x[block].astype(precision, copy=False)

    @functools.cached_property
    def class_sums(self) -> ClassSums:
        """Sums over the classes, of all samples."""
        n, outputs = len(self.x), self.outputs
        positive, known = np.zeros(outputs), np.zeros(outputs)
        x_positive, x_known = np.zeros((self.x.shape[1], outputs)), np.zeros((self.x.shape[1], outputs))
        for rows, x in self.blocks(np.float64):
            targets = self.targets[rows]
            is_positive = (targets[:, None] == np.arange(outputs)) if self.multinomial else targets > 0
            is_known = np.ones((len(x), 1)) if self.multinomial else (targets >= 0).astype(np.float64)
            positive += is_positive.sum(axis=0)
            known += is_known.sum(axis=0)
            x_positive += x.T @ is_positive.astype(np.float64)
            x_known += x.T @ is_known
        return ClassSums(positive / n, known / n, x_positive / n, x_known / n)

    def slope(self, precision: Precision, weight: FloatArray, bias: FloatArray) -> Slope:
        """Return the mean loss and its gradient; products in the given precision, sums over the samples in double."""
        narrow: Matrix = weight.astype(precision, copy=False)
        offset: Matrix = bias.astype(precision, copy=False)
        losses = np.zeros(1 if self.multinomial else self.outputs)
        by_weight, by_bias = np.zeros(weight.shape[::-1]), np.zeros(len(bias))
        for rows, x in self.blocks(precision):
            logits = x @ narrow
            logits += offset
            losses += self.loss_and_residuals(logits, rows)
            by_weight += logits.T @ x
            by_bias += logits.sum(axis=0, dtype=np.float64)
        n = len(self.x)
        return Slope(losses / n, by_weight.T / n, by_bias / n)

    def loss_and_residuals(self, logits: Matrix, rows: slice) -> FloatArray:
        """Return the summed losses of (n, K) logits, which become their gradient by the logits."""
        return (_multinomial if self.multinomial else _binary)(logits, self.targets[rows])

    def hessian_parts(self, residuals: Matrix, rows: slice) -> Matrix:
        """Return (n, K) probabilities (multinomial), or p (1 - p) of each label (binary).

        Args:
            residuals: as `loss_and_residuals` leaves them; they are overwritten.
            rows: of these samples.
        """
        if not self.multinomial:
            wrong = np.abs(residuals)
            return np.asarray(wrong * (1 - wrong))
        classes = self.targets[rows]
        residuals[np.arange(len(residuals)), classes] += 1
        return residuals

    def loss(self, logits: Matrix) -> float:
        """Return the mean loss per sample of decision values (N, K)."""
        return float(self.loss_and_residuals(logits.copy(), slice(0, len(logits))).sum()) / len(logits)

    def curvature(self, precision: Precision, weight: FloatArray, bias: FloatArray) -> float:
        """Return the mean of p (1 - p) over outputs and some of the samples; a scale of axes need not be exact."""
        step = max(1, len(self.x) * self.outputs // _LOGITS)
        some = self.x[::step].astype(precision)
        logits = some @ weight.astype(precision) + bias.astype(precision)
        targets: Any = self.targets[::step]
        if not self.multinomial:
            _binary(logits, targets)
            return float(np.mean(np.abs(logits) * (1 - np.abs(logits))))
        _multinomial(logits, targets)
        # For the class of the sample p - 1 is known to more digits than p where p is nearly 1.
        return float(np.mean(np.abs(logits) * (1 - np.abs(logits))))


def _multinomial(logits: Matrix, classes: npt.NDArray[np.integer]) -> FloatArray:
    """Return the summed loss of (n, K) logits, which become its gradient by them.

    The probability of a wrong answer is added up from the others, not taken as 1 - p, so that it keeps its digits
    where it is small, in single precision too.
    """
    rows = np.arange(len(logits))
    logits -= logits.max(axis=1, keepdims=True)
    own = logits[rows, classes]
    np.exp(logits, out=logits)
    right = logits[rows, classes]
    logits[rows, classes] = 0
    others = logits.sum(axis=1)
    total = others + right
    logits /= total[:, None]
    logits[rows, classes] = -others / total
    # log(total) - own, where either the sample's logit is the largest (own = 0) or both terms are at least 0.
    losses = np.where(own == 0, np.log1p(others), np.log(total) - own)
    return np.array([losses.sum(dtype=np.float64)])


def _binary(logits: Matrix, targets: npt.NDArray[np.integer]) -> FloatArray:
    """Return the same for K separate labels, (K,): 1, 0, or -1 where the label is unknown and counts for nothing."""
    sign, known = np.where(targets > 0, 1, -1).astype(logits.dtype), targets >= 0
    margin = sign * logits
    smaller = np.exp(-np.abs(margin))
    losses = ((np.maximum(-margin, 0) + np.log1p(smaller)) * known).sum(axis=0, dtype=np.float64)
    # The probability of the wrong answer, computed without overflow on either side.
    logits[:] = -sign * known * np.where(margin > 0, smaller, 1) / (1 + smaller)
    return np.asarray(losses)


def scales(
    problem: Problem, precision: Precision, variance: FloatArray, penalty: float, weight: FloatArray, bias: FloatArray
) -> FloatArray:
    """Return (R + 1, 1) factors of weights and biases that make the problem nearly round."""
    curvature = max(problem.curvature(precision, weight, bias), 1e-4)
    return np.append(1 / np.sqrt(variance * curvature + penalty), 1 / np.sqrt(curvature))[:, None]
