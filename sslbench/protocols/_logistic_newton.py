"""The last digits of a logistic regression by Newton's method: gradients in double, steps in single precision.

Near the optimum the error of a Newton step is that of the system it solves, so the system need not be solved to more
digits than single precision has; the gradient, computed in double, says how far it still is. The systems are solved by
conjugate gradients, which need a handful of products where L-BFGS in double needs tens of twice the price.
"""

import numpy as np

from sslbench.protocols._logistic_problem import Fit, FloatArray, Matrix, Problem, scales

STORED_UP_TO = 2**28  # logits (1 GB in single precision)
_ACCURACY = 0.03  # of a Newton step: more digits cost more rounds than they save steps
_HALVINGS = 8


class Curvature:
    """The second derivative of the mean loss at one point, as a product."""

    def __init__(self, problem: Problem, weight: FloatArray, bias: FloatArray) -> None:
        """Prepare: what is needed of the point, (N, K) values in single precision."""
        self._problem, self._x = problem, problem.single()
        self._bend = [
            problem.bend(self._x[rows], rows, weight.astype(np.float32), bias.astype(np.float32))
            for rows in problem.blocks()
        ]

    def product(self, direction: FloatArray) -> FloatArray:
        """With a direction: (R + 1, K), the last row that of the biases."""
        narrow = direction.astype(np.float32)
        out, total = np.zeros(direction.shape[::-1]), len(self._x)
        for rows, bend in zip(self._problem.blocks(), self._bend, strict=True):
            change = self._x[rows] @ narrow[:-1]
            change += narrow[-1]
            change *= bend
            if self._problem.multinomial:
                change -= bend * change.sum(axis=1, keepdims=True)
            out[:, :-1] += change.T @ self._x[rows]
            out[:, -1] += change.sum(axis=0, dtype=np.float64)
        return out.T / total


def polish(problem: Problem, variance: FloatArray, c: float, start: Fit, max_iter: int, tolerance: float) -> Fit:
    """Newton's method from a fit that is near the optimum; `iterations` are those of the conjugate gradients.

    It gives up where a step does not lead down, and says that it did not converge.
    """
    penalty = np.append(np.full(len(variance), 1 / (c * len(problem.x))), 0.0)[:, None]
    scale = scales(problem, problem.single(), variance, c, start)
    point = np.vstack([start.weight, start.bias])
    value, gradient = _objective(problem, problem.x, point, penalty)
    done = 0
    while (largest := float(np.abs(gradient * scale).max())) > tolerance and done < max_iter:
        curvature = Curvature(problem, point[:-1], point[-1])
        within = max(_ACCURACY, 0.3 * tolerance / largest)
        step, rounds = _solve(curvature, penalty, -gradient, scale, within, max_iter - done)
        done += rounds
        for halvings in range(_HALVINGS):
            further = point + step / 2**halvings
            trial, slope = _objective(problem, problem.x, further, penalty)
            # Rounding hides what the last steps gain.
            if trial <= value + 1e-14 * abs(value):
                break
        else:
            break
        point, value, gradient = further, trial, slope
    return Fit(point[:-1], point[-1], largest <= tolerance, done, largest)


def _objective(problem: Problem, x: Matrix, point: FloatArray, penalty: FloatArray) -> tuple[float, FloatArray]:
    loss, by_weight, by_bias = problem.loss_and_gradient(x, point[:-1], point[-1])
    held = penalty * point
    return loss + float(np.sum(held * point)) / 2, np.vstack([by_weight, by_bias]) + held


def _solve(
    curvature: Curvature, penalty: FloatArray, right: FloatArray, scale: FloatArray, within: float, most: int
) -> tuple[FloatArray, int]:
    """(curvature + penalty) s = right by conjugate gradients in scaled coordinates, and the number of rounds."""
    solution, residual = np.zeros_like(right), right * scale
    direction, square = residual.copy(), float(np.sum(residual * residual))
    enough = within**2 * square
    rounds = 0
    while square > enough and rounds < most:
        moved = direction * scale
        image = (curvature.product(moved) + penalty * moved) * scale
        reach = square / float(np.sum(direction * image))
        solution += reach * direction
        residual -= reach * image
        before, square = square, float(np.sum(residual * residual))
        direction = residual + square / before * direction
        rounds += 1
    return solution * scale, rounds
