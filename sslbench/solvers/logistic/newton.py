"""Truncated Newton method for a logistic regression: gradients in double precision, steps also in single precision.

Inexact Newton steps converge as long as the gradient is exact (Dembo, Eisenstat & Steihaug 1982), so single precision
suffices for the Newton systems. They are solved by conjugate gradients with a diagonal preconditioner, which need a few
products where L-BFGS in double precision needs tens of twice the cost.
"""

import numpy as np

from sslbench.arrays import FloatArray, Matrix
from sslbench.solvers.logistic.gap import Certificate, certify
from sslbench.solvers.logistic.problem import Fit, Problem
from sslbench.solvers.logistic.unrotated import Precision

STORED_UP_TO = 2**28  # probabilities stored during a step (1 GB in single precision); more are recomputed
_ACCURACY = 0.03  # relative residual of a Newton system: higher accuracy costs more iterations than it saves steps
_MAX_ITERATIONS = 250  # of conjugate gradients in one step: then rounding prevents a higher accuracy
_HALVINGS = 12  # of a step in the line search


class Hessian:
    """Hessian of the mean loss at one point, as a linear operator."""

    def __init__(self, problem: Problem, precision: Precision, weight: FloatArray, bias: FloatArray) -> None:
        """Compute the probabilities (N, K) at the point, or leave them to be recomputed if they are too many.

        Args:
            problem: samples.
            precision: precision of the products.
            weight: (R, K).
            bias: (K,).
        """
        self._problem, self._precision = problem, precision
        self._weight = problem.on_columns(weight, precision)
        self._bias: Matrix = bias.astype(precision)
        self._parts: list[Matrix] = []
        if len(problem.x) * problem.outputs <= STORED_UP_TO:
            self._parts = [self._of_block(x, rows) for rows, x in problem.blocks(precision)]

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


def polish(
    problem: Problem, penalty: float, start: Fit, *, precision: Precision, max_iter: int, tolerance: float
) -> Fit:
    """Return the optimum from a fit near it; `iterations` counts those of the conjugate gradients.

    If a step does not decrease the objective, the best point is returned with its duality gap.

    Args:
        problem: samples.
        penalty: factor of half the squared length of the weights.
        start: initial fit.
        precision: precision of the steps; gradients are in double precision.
        max_iter: largest number of iterations.
        tolerance: relative duality gap at convergence.
    """
    at = certify(problem, start.weight, start.bias, penalty, tolerance)
    penalties = np.append(np.full(len(start.weight), penalty), 0.0)[:, None]
    iterations = 0
    while at.gap > tolerance and iterations < max_iter:
        hessian = Hessian(problem, precision, at.weight, at.bias)
        gradient = np.vstack([at.loss.by_weight + penalty * at.weight, at.loss.by_bias])
        step, taken = _solve(hessian, penalties, -gradient, min(_MAX_ITERATIONS, max_iter - iterations))
        iterations += taken
        improved = _line_search(problem, at, step, penalty, tolerance)
        if improved is None:
            break
        at = improved
    return Fit(at.weight, at.bias, at.gap <= tolerance, iterations, at.gap)


def _line_search(
    problem: Problem, at: Certificate, step: FloatArray, penalty: float, tolerance: float
) -> Certificate | None:
    """Return the first better point by backtracking along the step; None if there is none."""
    value = _objective(at, penalty)
    for halvings in range(_HALVINGS):
        weight, bias = at.weight + step[:-1] / 2**halvings, at.bias + step[-1] / 2**halvings
        point = certify(problem, weight, bias, penalty, tolerance)
        # The gain of the last steps is lost in the objective's rounding, but the gap falls.
        if _objective(point, penalty) < value * (1 - 1e-13) or point.gap < 0.9 * at.gap:
            return point
    return None


def _objective(at: Certificate, penalty: float) -> float:
    return float(at.loss.values.sum()) + penalty / 2 * float(np.sum(at.weight * at.weight))


def _solve(hessian: Hessian, penalties: FloatArray, right: FloatArray, most: int) -> tuple[FloatArray, int]:
    """Solve (hessian + penalties) s = right by preconditioned conjugate gradients; return s and the iterations."""
    diagonal = hessian.diagonal() + penalties
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, diagonal.max()))
    solution, residual = np.zeros_like(right), right * scale
    direction, square = residual.copy(), float(np.sum(residual * residual))
    target = _ACCURACY**2 * square
    iterations = 0
    while square > target and iterations < most:
        scaled = direction * scale
        image = (hessian.product(scaled) + penalties * scaled) * scale
        curvature = float(np.sum(direction * image))
        iterations += 1
        if curvature <= 0:
            break
        length = square / curvature
        solution += length * direction
        residual -= length * image
        previous, square = square, float(np.sum(residual * residual))
        direction = residual + square / previous * direction
    return solution * scale, iterations
