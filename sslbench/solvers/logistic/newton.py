"""Newton's method for a logistic regression: gradients in double precision, steps in single or double precision.

Near the optimum the error of a Newton step is that of the system it solves, so the system need not be solved to more
digits than single precision has; the gradient, computed in double, says how far it still is. The systems are solved by
conjugate gradients, which need a handful of products where L-BFGS in double needs tens of twice the price.
"""

import numpy as np

from sslbench.solvers.logistic.gap import Certificate, certify
from sslbench.solvers.logistic.problem import Fit, FloatArray, Matrix, Precision, Problem

STORED_UP_TO = 2**28  # logits that are kept for a step (1 GB in single precision); more are computed again each time
_ACCURACY = 0.03  # of a Newton step: more digits cost more rounds than they save steps
_ROUNDS = 250  # of one step: a rough step from here is better than an exact one where rounding is in the way
_HALVINGS = 12


class Hessian:
    """The second derivative of the mean loss at one point, as a product."""

    def __init__(self, problem: Problem, precision: Precision, weight: FloatArray, bias: FloatArray) -> None:
        """Prepare: what is needed of the point, (N, K) values.

        Args:
            problem: the samples.
            precision: of the products.
            weight: (R, K).
            bias: (K,).
        """
        self._problem, self._precision = problem, precision
        self._weight: Matrix = weight.astype(precision)
        self._bias: Matrix = bias.astype(precision)
        self._parts: list[Matrix] = []
        if len(problem.x) * problem.outputs <= STORED_UP_TO:
            self._parts = [self._of_block(x, rows) for rows, x in problem.blocks(precision)]

    def product(self, direction: FloatArray) -> FloatArray:
        """Return the product with a direction: (R + 1, K), the last row that of the biases."""
        narrow: Matrix = direction.astype(self._precision)
        out, total = np.zeros(direction.shape[::-1]), len(self._problem.x)
        for i, (rows, x) in enumerate(self._problem.blocks(self._precision)):
            parts = self._parts[i] if self._parts else self._of_block(x, rows)
            change = x @ narrow[:-1]
            change += narrow[-1]
            if self._problem.multinomial:
                # Relative to the sample's own class, so that nothing cancels where its probability is nearly 1.
                change -= change[np.arange(len(change)), self._problem.targets[rows]][:, None]
                change -= np.einsum("nk,nk->n", parts, change)[:, None]
            change *= parts
            out[:, :-1] += change.T @ x
            out[:, -1] += change.sum(axis=0, dtype=np.float64)
        return out.T / total

    def diagonal(self) -> FloatArray:
        """Return its diagonal, (R + 1, K)."""
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
            out[:, :-1] += of_sample.T @ (x * x)
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
    """Return the optimum from a fit that is near it; `iterations` are the rounds of the conjugate gradients.

    It ends early where a step does not lead down, with the bound that was reached.

    Args:
        problem: the samples.
        penalty: of the squared length of the weights.
        start: the fit to begin from.
        precision: of the steps; the gradients are in double precision.
        max_iter: largest number of rounds.
        tolerance: bound that is small enough.
    """
    at = certify(problem, start.weight, start.bias, penalty, tolerance)
    penalties = np.append(np.full(len(start.weight), penalty), 0.0)[:, None]
    rounds = 0
    while at.gap > tolerance and rounds < max_iter:
        hessian = Hessian(problem, precision, at.weight, at.bias)
        gradient = np.vstack([at.slope.by_weight + penalty * at.weight, at.slope.by_bias])
        step, taken = _solve(hessian, penalties, -gradient, min(_ROUNDS, max_iter - rounds))
        rounds += taken
        further = _downhill(problem, at, step, penalty, tolerance)
        if further is None:
            break
        at = further
    return Fit(at.weight, at.bias, at.gap <= tolerance, rounds, at.gap)


def _downhill(
    problem: Problem, at: Certificate, step: FloatArray, penalty: float, tolerance: float
) -> Certificate | None:
    """Return the first point along the step, halved again and again, that is better; None where there is none."""
    value = _objective(at, penalty)
    for halvings in range(_HALVINGS):
        weight, bias = at.weight + step[:-1] / 2**halvings, at.bias + step[-1] / 2**halvings
        further = certify(problem, weight, bias, penalty, tolerance)
        # Rounding hides what the last steps gain; there the bound falls.
        if _objective(further, penalty) < value * (1 - 1e-13) or further.gap < 0.9 * at.gap:
            return further
    return None


def _objective(at: Certificate, penalty: float) -> float:
    return float(at.slope.losses.sum()) + penalty / 2 * float(np.sum(at.weight * at.weight))


def _solve(hessian: Hessian, penalties: FloatArray, right: FloatArray, most: int) -> tuple[FloatArray, int]:
    """Return s with (hessian + penalties) s = right by conjugate gradients, preconditioned, and the rounds taken."""
    diagonal = hessian.diagonal() + penalties
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, diagonal.max()))
    solution, residual = np.zeros_like(right), right * scale
    direction, square = residual.copy(), float(np.sum(residual * residual))
    enough = _ACCURACY**2 * square
    rounds = 0
    while square > enough and rounds < most:
        moved = direction * scale
        image = (hessian.product(moved) + penalties * moved) * scale
        bend = float(np.sum(direction * image))
        rounds += 1
        if bend <= 0:
            break
        reach = square / bend
        solution += reach * direction
        residual -= reach * image
        before, square = square, float(np.sum(residual * residual))
        direction = residual + square / before * direction
    return solution * scale, rounds
