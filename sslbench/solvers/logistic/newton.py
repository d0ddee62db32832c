"""Truncated Newton method for a logistic regression: gradients in double precision, steps also in single precision.

Inexact Newton steps converge as long as the gradient is exact (Dembo, Eisenstat & Steihaug 1982), so single precision
suffices for the Newton systems. They are solved by conjugate gradients with a diagonal preconditioner, which need a few
products where L-BFGS in double precision needs tens of twice the cost.
"""

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.solvers.logistic.gap import Certificate, certify
from sslbench.solvers.logistic.problem import Fit, HessianOperator, Problem
from sslbench.solvers.logistic.unrotated import Precision

_ACCURACY = 0.03  # relative residual of a Newton system: higher accuracy costs more iterations than it saves steps
_MAX_ITERATIONS = 250  # of conjugate gradients in one step: then rounding prevents a higher accuracy
_HALVINGS = 12  # of a step in the line search


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
        hessian = problem.hessian(precision, at.weight, at.bias)
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


def _solve(hessian: HessianOperator, penalties: FloatArray, right: FloatArray, most: int) -> tuple[FloatArray, int]:
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
