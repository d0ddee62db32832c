"""L2-regularised logistic regression to convergence.

The objective is scikit-learn's: C times the sum of the losses, plus half the squared length of the weights; the
intercept is free. Three or more classes: multinomial; two classes, and each label of a multi-label problem: binary.

How it is made fast without changing the optimum: the features are turned onto their principal axes (a rotation, which
leaves the length of the weights alone) and every axis is scaled by the curvature expected there. What is left for
L-BFGS is nearly round, so tens of steps are enough where hundreds to thousands are needed without. Large problems are
brought near the optimum in single precision, where a product costs half, and finished in double. Everything is in
numpy, whose BLAS multiplies such narrow matrices several times as fast as torch's.
"""

import dataclasses
from typing import Any

import numpy as np

from sslbench.protocols import _logistic_newton
from sslbench.protocols._logistic_problem import Fit, FloatArray, Matrix, Problem, scales

__all__ = ["Axes", "Fit", "Problem", "ahead", "fit", "principal_axes"]

_DOUBLE_UP_TO = 2**27  # feature values (1 GB); above that there is no copy in double precision, to save memory
_SINGLE_FROM = 2**22  # feature values x outputs from which on single precision is worth its copy of the features
_NEWTON_FROM = 1e-4  # gradient from which on Newton's method is faster
_SINGLE_TOLERANCE = 1e-5  # gradients computed in single precision are no more exact than this
_NULL = 1e-13  # share of the largest eigenvalue below which an axis is rounding noise
_ROWS = 8192


@dataclasses.dataclass(frozen=True)
class Axes:
    """Standardisation and rotation: x -> ((x - mean) / std) @ rotation.

    Attributes:
        mean: (D,) of train.
        std: (D,) of train; infinite for a feature that does not vary, which makes it 0.
        rotation: (D, R), orthonormal columns: the principal axes of train along which it varies, R <= min(N, D).
        variance: (R,) of train along the axes.
    """

    mean: FloatArray
    std: FloatArray
    rotation: Matrix
    variance: FloatArray

    def project(self, x: Matrix) -> Matrix:
        """(N, R) coordinates of features (N, D)."""
        out = np.empty((len(x), self.rotation.shape[1]), dtype=self.rotation.dtype)
        for start in range(0, len(x), _ROWS):
            block = _standardise(x[start : start + _ROWS], self.mean, self.std)
            out[start : start + _ROWS] = block.astype(self.rotation.dtype, copy=False) @ self.rotation
        return out


def principal_axes(x: Matrix, *, standardise: bool = True) -> Axes:
    """Mean, deviation and principal axes of features (N, D); nothing larger than a block of them is copied.

    Without `standardise` every deviation is 1: the features are used as they are, only centred, which changes nothing
    but the intercept. With fewer samples than features the axes are found from the N x N products, and there are at
    most N of them. Along directions in which the features do not vary the optimum has no weight; they are left out.
    """
    mean, std = _moments(x)
    if not standardise:
        std = np.ones_like(std)
    n, width = x.shape
    if n >= width:
        covariance = np.zeros((width, width))
        for start in range(0, n, _ROWS):
            block = _standardise(x[start : start + _ROWS], mean, std)
            covariance += block.T @ block
        values, rotation = np.linalg.eigh(covariance)
        kept = values > _NULL * max(values[-1], np.finfo(np.float64).tiny)
        values, rotation = values[kept], rotation[:, kept]
    else:
        everything = _standardise(x, mean, std)
        values, left = np.linalg.eigh(everything @ everything.T)
        kept = values > _NULL * max(values[-1], np.finfo(np.float64).tiny)
        values, left = values[kept], left[:, kept]
        rotation = everything.T @ (left / np.sqrt(values))
    dtype = np.float64 if n * len(values) <= _DOUBLE_UP_TO else np.float32
    return Axes(mean, std, np.ascontiguousarray(rotation, dtype=dtype), np.maximum(values, 0) / n)


def _standardise(x: Matrix, mean: FloatArray, std: FloatArray) -> FloatArray:
    return np.asarray((x.astype(np.float64) - mean) / std)


def _moments(x: Matrix) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation per feature in two passes, so that a large common offset costs no digits."""
    blocks = range(0, len(x), _ROWS)
    mean = np.sum([x[i : i + _ROWS].sum(axis=0, dtype=np.float64) for i in blocks], axis=0) / len(x)
    squares = np.sum([((x[i : i + _ROWS].astype(np.float64) - mean) ** 2).sum(axis=0) for i in blocks], axis=0)
    std = np.sqrt(squares / len(x))
    # What is left of a constant feature is rounding noise of its mean.
    return np.asarray(mean), np.where(std > 1e-12 * np.abs(mean), std, np.inf)


def fit(problem: Problem, variance: FloatArray, c: float, *, start: Fit | None, max_iter: int, tolerance: float) -> Fit:
    """The optimum at one regularisation strength.

    Args:
        problem: the samples.
        variance: (R,) of the coordinates.
        c: inverse regularisation strength, as in scikit-learn.
        start: a fit at a nearby strength to begin from.
        max_iter: largest number of L-BFGS steps.
        tolerance: how small the largest entry of the gradient must become, in scaled coordinates; where there are too
            many features for double precision never less than 1e-5.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    size = problem.x.size * problem.outputs
    if start is None:
        start = Fit(np.zeros((len(variance), problem.outputs)), np.zeros(problem.outputs), False, 0, np.inf)
    start = dataclasses.replace(start, iterations=0)
    large, double = size >= _SINGLE_FROM, problem.x.dtype == np.float64
    # Threads must wait for each other in every product; below this size that costs more than they save.
    with threadpool_limits(1 if size < 2**28 else None, user_api="blas"):
        if large or not double:
            loose = _NEWTON_FROM if double else _SINGLE_TOLERANCE
            within = tolerance if tolerance >= _SINGLE_TOLERANCE else loose
            found = _descend(problem, problem.single(), variance, c, start, max_iter, within)
            if not double or tolerance >= _SINGLE_TOLERANCE:
                return found
            start = dataclasses.replace(found, converged=found.gradient <= tolerance)
            if len(problem.x) * problem.outputs <= _logistic_newton.STORED_UP_TO:
                found = _logistic_newton.polish(problem, variance, c, start, max_iter - start.iterations, tolerance)
                start = dataclasses.replace(found, iterations=start.iterations + found.iterations)
            if start.converged or start.iterations >= max_iter:
                return start
        found = _descend(problem, problem.x, variance, c, start, max_iter - start.iterations, tolerance)
    return dataclasses.replace(found, iterations=start.iterations + found.iterations)


def _descend(
    problem: Problem, x: Matrix, variance: FloatArray, c: float, start: Fit, max_iter: int, tolerance: float
) -> Fit:
    """L-BFGS on the coordinates `x`, scaled by the curvature that is expected along them."""
    from scipy.optimize import minimize

    outputs, penalty = problem.outputs, 1 / (c * len(x))
    first = np.vstack([start.weight, start.bias])
    scale = scales(problem, x, variance, c, start)

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        values = flat.reshape(-1, outputs) * scale
        weight, bias = values[:-1], values[-1]
        loss, by_weight, by_bias = problem.loss_and_gradient(x, weight, bias)
        gradient = np.vstack([by_weight + penalty * weight, by_bias])
        gradient *= scale
        return loss + penalty / 2 * float(np.sum(weight * weight)), gradient.ravel()

    options: dict[str, Any] = {"maxiter": max(1, max_iter), "maxfun": 2 * max(1, max_iter) + 20}
    options |= {"gtol": tolerance, "ftol": 0.0, "maxcor": 20}
    solution = minimize(objective, (first / scale).ravel(), jac=True, method="L-BFGS-B", options=options)
    values = solution.x.reshape(-1, outputs) * scale
    largest = float(np.abs(solution.jac).max())
    return Fit(values[:-1], values[-1], largest <= tolerance, int(solution.nit), largest)


def ahead(before: Fit, last: Fit, steps: float) -> Fit:
    """A guess at the next fit of a path from the two before it, going on in a straight line for so many steps."""
    weight = last.weight + steps * (last.weight - before.weight)
    return dataclasses.replace(last, weight=weight, bias=last.bias + steps * (last.bias - before.bias))
