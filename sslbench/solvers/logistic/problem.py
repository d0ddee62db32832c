"""Objective of a logistic regression: value, gradient and curvature.

The objective is the mean loss per sample plus `penalty` / 2 times the squared length of the weights, where the penalty
is 1 / (C N) with scikit-learn's C. Biases are not regularised.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, Matrix, Rows, RowSubset

STALLED = 1e-3  # share of the tolerance: L-BFGS ends when a step gains less
REMEMBERED = 20  # steps of L-BFGS from which the next direction is computed
STORED_UP_TO = 2**28  # probabilities stored during a step (1 GB in single precision); more are recomputed


_LOGITS = 2**21  # logits per block of samples, which fit into the cache


_VALUES = 2**24  # feature values per block of samples, which bounds the memory of conversions


Precision = type[np.float32] | type[np.float64]


class Unrotated:
    """Centred features in place of their coordinates, for problems larger than memory.

    Standardisation and rotation are one matrix T, so that the logits x T W are products of the centred features with
    T W, and a gradient by W is T' times that by T W. Neither a standardised copy nor coordinates exist; a block is
    centred each time it is read, which takes little beside its products.

    Attributes:
        x: (N, D) features as stored.
        centre: (D,) mean of the features.
        turn: (D, R) T, division by the standard deviation and rotation onto the principal axes.
    """

    def __init__(self, x: Rows, centre: FloatArray, turn: FloatArray) -> None:
        """Store the features, their mean (D,), and T."""
        self.x, self.turn = x, turn
        self.centre = centre
        self._buffers: dict[Precision, Matrix] = {}

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of samples and of coordinates, (N, R)."""
        return len(self.x), self.turn.shape[1]

    @property
    def size(self) -> int:
        """Number of coordinates in all."""
        n, width = self.shape
        return n * width

    def select(self, rows: IntArray) -> "Unrotated":
        """Return some of the samples, by ascending numbers, without a copy."""
        given = RowSubset(self.x.x, self.x.rows[rows]) if isinstance(self.x, RowSubset) else RowSubset(self.x, rows)
        return Unrotated(given, self.centre, self.turn)

    def centred(self, rows: slice, precision: Precision) -> Matrix:
        """Return centred features (n, D) of a range of samples; the next call overwrites them."""
        given = self.x[rows]
        buffer = self._buffers.get(precision)
        if buffer is None or len(buffer) < len(given):
            # New memory for each block takes several times as long as the subtraction.
            buffer = self._buffers[precision] = np.empty(given.shape, precision)
        return np.subtract(given, self.centre, out=buffer[: len(given)], dtype=np.float64, casting="same_kind")


@dataclasses.dataclass(frozen=True)
class Fit:
    """Fitted model.

    Attributes:
        weight: (R, K) on the principal axes.
        bias: (K,).
        converged: True if `gap` is within the tolerance.
        iterations: iterations of L-BFGS and of the conjugate gradients in Newton's method.
        gap: upper bound of the distance of the objective to its minimum, relative to the minimum.
    """

    weight: FloatArray
    bias: FloatArray
    converged: bool
    iterations: int
    gap: float

    def decide(self, x: Matrix) -> FloatArray:
        """Return the (N, K) decision values of coordinates (N, R)."""
        return np.asarray(x @ self.weight.astype(x.dtype) + self.bias, dtype=np.float64)


@dataclasses.dataclass(frozen=True)
class LossAndGradient:
    """Mean loss over the samples at one point, and its gradient.

    Attributes:
        values: mean losses, (1,) for a multinomial problem, (K,) for K binary ones.
        by_weight: (R, K) gradient by the weights.
        by_bias: (K,) gradient by the biases.
    """

    values: FloatArray
    by_weight: FloatArray
    by_bias: FloatArray


@dataclasses.dataclass(frozen=True)
class ClassSums:
    """Means over all samples that do not depend on the weights; unknown labels count as 0.

    Attributes:
        positive: (K,) share of samples of the class.
        known: (K,) share of samples whose label is known.
        x_positive: (R, K) coordinates of samples of the class, summed, divided by N.
        x_known: (R, K) coordinates of samples whose label is known, summed, divided by N.
    """

    positive: FloatArray
    known: FloatArray
    x_positive: FloatArray
    x_known: FloatArray


class HessianOperator(Protocol):
    """Hessian of the mean loss at one point, as a linear operator on arrays of numpy, or on tensors of a device."""

    def send(self, values: FloatArray) -> Any:
        """Return an array as the operator takes it."""

    def receive(self, values: Any) -> FloatArray:
        """Return values of the operator as an array."""

    def product(self, direction: Any) -> Any:
        """Return the (R + 1, K) product with a direction (R + 1, K), whose last row belongs to the biases."""

    def diagonal(self) -> FloatArray:
        """Return the (R + 1, K) diagonal."""


class Problem:
    """Mean loss over samples as a function of weights on the principal axes."""

    def __init__(
        self, x: Matrix | Unrotated, targets: npt.NDArray[np.int64] | npt.NDArray[np.int8], outputs: int
    ) -> None:
        """Store the samples.

        `x`: (N, R) coordinates, or the features that they are computed from; `targets`: (N,) classes 0..K-1 for a
        multinomial problem; (N, K) of 1, 0 or -1 (ignored) for K binary ones.
        """
        self.x, self.outputs, self.targets = x, outputs, targets
        self.multinomial = targets.ndim == 1
        self._single: Matrix | None = None

    @property
    def width(self) -> int:
        """Number of columns of the blocks: coordinates, or features that are not rotated."""
        return len(self.x.turn) if isinstance(self.x, Unrotated) else int(self.x.shape[1])

    @property
    def stored_precision(self) -> Precision:
        """Precision in which the samples are stored, enough for decisions."""
        return np.float32 if isinstance(self.x, Unrotated) or self.x.dtype == np.float32 else np.float64

    def blocks(self, precision: Precision) -> Iterator[tuple[slice, Matrix]]:
        """Yield the samples in blocks with their columns (n, width) in the given precision.

        Blocks keep intermediate results in the cache and bound the memory. Of coordinates a copy in single precision
        is made once; a conversion to double precision is made per block. A block is valid until the next one.
        """
        rows = max(256, min(_LOGITS // self.outputs, _VALUES // max(1, self.width)))
        for start in range(0, len(self.x), rows):
            block = slice(start, start + rows)
            yield block, self._columns(block, precision)

    def _columns(self, block: slice, precision: Precision) -> Matrix:
        if isinstance(self.x, Unrotated):
            return self.x.centred(block, precision)
        x = self.x
        if precision is np.float32:
            if self._single is None:
                self._single = x.astype(np.float32, copy=False)
            x = self._single
        return x[block].astype(precision, copy=False)

    def on_columns(self, weight: FloatArray, precision: Precision) -> Matrix:
        """Return weights (R, K) of the coordinates as those (width, K) of the columns of the blocks."""
        weight = self.x.turn @ weight if isinstance(self.x, Unrotated) else weight
        return weight.astype(precision, copy=False)

    def on_axes(self, by_columns: FloatArray) -> FloatArray:
        """Return the derivatives (R, K) by weights of the coordinates from those (width, K) by weights of columns."""
        return self.x.turn.T @ by_columns if isinstance(self.x, Unrotated) else by_columns

    def coordinates(self, columns: Matrix) -> Matrix:
        """Return the coordinates (n, R) of a block of columns (n, width)."""
        return columns @ self.x.turn.astype(columns.dtype) if isinstance(self.x, Unrotated) else columns

    @functools.cached_property
    def class_sums(self) -> ClassSums:
        """Means over all samples per class."""
        n, outputs = len(self.x), self.outputs
        positive, known = np.zeros(outputs), np.zeros(outputs)
        x_positive, x_known = np.zeros((self.width, outputs)), np.zeros((self.width, outputs))
        for rows, x in self.blocks(np.float64):
            targets = self.targets[rows]
            is_positive = (targets[:, None] == np.arange(outputs)) if self.multinomial else targets > 0
            is_known = np.ones((len(x), 1)) if self.multinomial else (targets >= 0).astype(np.float64)
            positive += is_positive.sum(axis=0)
            known += is_known.sum(axis=0)
            x_positive += x.T @ is_positive.astype(np.float64)
            x_known += x.T @ is_known
        return ClassSums(positive / n, known / n, self.on_axes(x_positive) / n, self.on_axes(x_known) / n)

    def loss_and_gradient(self, precision: Precision, weight: FloatArray, bias: FloatArray) -> LossAndGradient:
        """Return the mean loss and its gradient; products in the given precision, sums over the samples in double."""
        narrow = self.on_columns(weight, precision)
        offset: Matrix = bias.astype(precision, copy=False)
        losses = np.zeros(1 if self.multinomial else self.outputs)
        by_weight, by_bias = np.zeros((self.outputs, self.width)), np.zeros(len(bias))
        for rows, x in self.blocks(precision):
            logits = x @ narrow
            logits += offset
            losses += self.loss_and_residuals(logits, rows)
            by_weight += logits.T @ x
            by_bias += logits.sum(axis=0, dtype=np.float64)
        n = len(self.x)
        return LossAndGradient(losses / n, self.on_axes(by_weight.T) / n, by_bias / n)

    def loss_and_residuals(self, logits: Matrix, rows: slice) -> FloatArray:
        """Return the summed losses of (n, K) logits, and overwrite the logits by the gradient of the losses by them."""
        return (_multinomial if self.multinomial else _binary)(logits, self.targets[rows])

    def hessian_parts(self, residuals: Matrix, rows: slice) -> Matrix:
        """Return (n, K) probabilities (multinomial), or p (1 - p) of each label (binary).

        Args:
            residuals: (n, K) gradient by the logits, from `loss_and_residuals`; overwritten.
            rows: the n samples.
        """
        if not self.multinomial:
            wrong = np.abs(residuals)
            return np.asarray(wrong * (1 - wrong))
        classes = self.targets[rows]
        residuals[np.arange(len(residuals)), classes] += 1
        return residuals

    def hessian(self, precision: Precision, weight: FloatArray, bias: FloatArray) -> HessianOperator:
        """Return the Hessian of the mean loss at a point (R, K), (K,), with products in the given precision."""
        return Hessian(self, precision, weight, bias)

    def bias_hessian(self, weight: FloatArray, bias: FloatArray) -> FloatArray:
        """Return the (K, K) Hessian of the summed loss by the biases; of a multinomial loss without its diagonal."""
        hessian = np.zeros((self.outputs, self.outputs))
        narrow, offset = self.on_columns(weight, np.float32), bias.astype(np.float32)
        diagonal = np.diag_indices_from(hessian)
        for rows, x in self.blocks(np.float32):
            logits = x @ narrow
            logits += offset
            self.loss_and_residuals(logits, rows)
            parts = self.hessian_parts(logits, rows)
            if self.multinomial:
                hessian -= parts.T @ parts
            else:
                hessian[diagonal] += parts.sum(axis=0, dtype=np.float64)
        return hessian

    def solve(self, matrix: FloatArray, right: FloatArray) -> FloatArray:
        """Return the solution of K equations."""
        return np.asarray(np.linalg.solve(matrix, right))

    def decide(self, model: Fit) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the decision values (n, K) of a model, block by block."""
        weight = self.on_columns(model.weight, self.stored_precision)
        for rows, x in self.blocks(self.stored_precision):
            yield rows, np.asarray(x @ weight + model.bias, dtype=np.float64)

    def loss(self, model: Fit) -> float:
        """Return the mean loss per sample of a model; K binary losses are summed."""
        losses = [self.loss_and_residuals(decided, rows).sum() for rows, decided in self.decide(model)]
        return float(np.sum(losses)) / len(self.x)

    def descend(
        self, precision: Precision, variance: FloatArray, penalty: float, start: Fit, *, max_iter: int, tolerance: float
    ) -> Fit:
        """Run preconditioned L-BFGS until the estimated relative distance to the optimum is within the tolerance."""
        from scipy.optimize import minimize

        first = np.vstack([start.weight, start.bias])
        scale = preconditioner(self, precision, variance, penalty, start.weight, start.bias)
        latest = np.inf

        def objective(flat: FloatArray) -> tuple[float, FloatArray]:
            nonlocal latest
            values = flat.reshape(-1, self.outputs) * scale
            weight, bias = values[:-1], values[-1]
            loss = self.loss_and_gradient(precision, weight, bias)
            gradient = np.vstack([loss.by_weight + penalty * weight, loss.by_bias])
            value = float(loss.values.sum()) + penalty / 2 * float(np.sum(weight * weight))
            latest = float(np.sum(gradient[:-1] ** 2) / penalty + np.sum((gradient[-1] * scale[-1]) ** 2)) / 2 / value
            gradient *= scale
            return value / reference, gradient.ravel() / reference

        def callback(flat: FloatArray) -> None:
            if latest <= tolerance:
                raise StopIteration

        reference = 1.0
        reference = objective((first / scale).ravel())[0]
        options: dict[str, Any] = {"maxiter": max(1, max_iter), "maxfun": 2 * max(1, max_iter) + 20}
        options |= {"gtol": 0.0, "ftol": STALLED * tolerance, "maxcor": REMEMBERED}
        solution = minimize(
            objective, (first / scale).ravel(), jac=True, method="L-BFGS-B", callback=callback, options=options
        )
        values = solution.x.reshape(-1, self.outputs) * scale
        return Fit(values[:-1], values[-1], latest <= tolerance, int(solution.nit), latest)

    def every(self) -> slice:
        """Return the subset of the samples that is enough for a preconditioner."""
        step = max(1, len(self.x) * self.outputs // _LOGITS)
        if isinstance(self.x, Unrotated):
            step = max(step, len(self.x) * self.width // _VALUES)
        return slice(None, None, step)

    def curvature(self, precision: Precision, weight: FloatArray, bias: FloatArray) -> float:
        """Return the mean of p (1 - p) over outputs and a subset of samples, enough for a preconditioner."""
        subset = self._columns(self.every(), precision)
        logits = subset @ self.on_columns(weight, precision) + bias.astype(precision)
        targets: Any = self.targets[self.every()]
        if not self.multinomial:
            _binary(logits, targets)
            return float(np.mean(np.abs(logits) * (1 - np.abs(logits))))
        _multinomial(logits, targets)
        # For the sample's class the residual p - 1 has more digits than p if p is nearly 1.
        return float(np.mean(np.abs(logits) * (1 - np.abs(logits))))


class Hessian:
    """Hessian of the mean loss at one point, as a linear operator."""

    def __init__(self, problem: Problem, precision: Precision, weight: FloatArray, bias: FloatArray) -> None:
        """Compute the probabilities (N, K) at the point, or leave them to be recomputed if they are too many.

        `weight`: (R, K); `bias`: (K,).
        """
        self._problem, self._precision = problem, precision
        self._weight = problem.on_columns(weight, precision)
        self._bias: Matrix = bias.astype(precision)
        self._parts: list[Matrix] = []
        if len(problem.x) * problem.outputs <= STORED_UP_TO:
            self._parts = [self._of_block(x, rows) for rows, x in problem.blocks(precision)]

    def send(self, values: FloatArray) -> FloatArray:
        """Return the array."""
        return values

    receive = send

    def product(self, direction: FloatArray) -> FloatArray:
        """Return the (R + 1, K) product with a direction (R + 1, K), whose last row belongs to the biases."""
        narrow, offset = (
            self._problem.on_columns(direction[:-1], self._precision),
            direction[-1].astype(self._precision),
        )
        out, by_bias = np.zeros((self._problem.outputs, self._problem.width)), np.zeros(self._problem.outputs)
        for i, (rows, x) in enumerate(self._problem.blocks(self._precision)):
            parts = self._parts[i] if self._parts else self._of_block(x, rows)
            change = x @ narrow
            change += offset
            if self._problem.multinomial:
                # Relative to the sample's own class, to avoid cancellation if its probability is nearly 1.
                change -= change[np.arange(len(change)), self._problem.targets[rows]][:, None]
                change -= np.einsum("nk,nk->n", parts, change)[:, None]
            change *= parts
            out += change.T @ x
            by_bias += change.sum(axis=0, dtype=np.float64)
        return np.vstack([self._problem.on_axes(out.T), by_bias]) / len(self._problem.x)

    def diagonal(self) -> FloatArray:
        """Return the (R + 1, K) diagonal."""
        out, total = np.zeros((self._problem.outputs, self._problem.x.shape[1] + 1)), len(self._problem.x)
        for i, (rows, x) in enumerate(self._problem.blocks(self._precision)):
            parts = self._parts[i] if self._parts else self._of_block(x, rows)
            of_sample = parts
            if self._problem.multinomial:
                own = np.arange(len(parts)), self._problem.targets[rows]
                of_sample = parts.copy()
                of_sample[own] = 0
                others = of_sample.sum(axis=1)
                of_sample *= 1 - parts
                of_sample[own] = parts[own] * others
            on_axes = self._problem.coordinates(x)
            out[:, :-1] += of_sample.T @ (on_axes * on_axes)
            out[:, -1] += of_sample.sum(axis=0, dtype=np.float64)
        return out.T / total

    def _of_block(self, x: Matrix, rows: slice) -> Matrix:
        logits = x @ self._weight
        logits += self._bias
        self._problem.loss_and_residuals(logits, rows)
        return self._problem.hessian_parts(logits, rows)


def _multinomial(logits: Matrix, classes: npt.NDArray[np.integer]) -> FloatArray:
    """Return the summed softmax loss of (n, K) logits, and overwrite the logits by its gradient.

    The probability of all other classes is summed, not computed as 1 - p, which would cancel if p is nearly 1.
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
    # log(total) - own without cancellation: either own = 0 is the largest logit, or both terms are non-negative.
    losses = np.where(own == 0, np.log1p(others), np.log(total) - own)
    return np.array([losses.sum(dtype=np.float64)])


def _binary(logits: Matrix, targets: npt.NDArray[np.integer]) -> FloatArray:
    """Return the (K,) summed logistic losses of (n, K) logits, and overwrite the logits by their gradient."""
    sign, known = np.where(targets > 0, 1, -1).astype(logits.dtype), targets >= 0
    margin = sign * logits
    smaller = np.exp(-np.abs(margin))
    losses = ((np.maximum(-margin, 0) + np.log1p(smaller)) * known).sum(axis=0, dtype=np.float64)
    # The probability of the wrong label, 1 / (1 + exp(margin)), without overflow.
    logits[:] = -sign * known * np.where(margin > 0, smaller, 1) / (1 + smaller)
    return np.asarray(losses)


def preconditioner(
    problem: Problem, precision: Precision, variance: FloatArray, penalty: float, weight: FloatArray, bias: FloatArray
) -> FloatArray:
    """Return the (R + 1, 1) diagonal preconditioner of weights and biases: inverse roots of the expected curvatures."""
    curvature = max(problem.curvature(precision, weight, bias), 1e-4)
    return np.append(1 / np.sqrt(variance * curvature + penalty), 1 / np.sqrt(curvature))[:, None]
