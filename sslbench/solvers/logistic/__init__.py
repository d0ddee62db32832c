"""L2-regularised logistic regression to convergence.

The objective is scikit-learn's: C times the sum of the losses, plus half the squared length of the weights; the
intercept is free. Three or more classes: multinomial; two classes, and each label of a multi-label problem: binary.

How it is made fast without changing the optimum: the features are turned onto their principal axes (a rotation, which
leaves the length of the weights alone) and every axis is scaled by the curvature expected there. What is left for
L-BFGS is nearly round, so tens of steps are enough where hundreds to thousands are needed without. Large problems are
brought near the optimum in single precision, where a product costs half, and finished by Newton's method with gradients
in double. A fit ends when a bound of its distance to the optimum is proven (`_logistic_gap`). Everything is in
numpy, whose BLAS multiplies such narrow matrices several times as fast as torch's.
"""

import dataclasses
from typing import Any

import numpy as np

from sslbench.solvers.logistic.newton import polish
from sslbench.solvers.logistic.problem import Fit, FloatArray, Matrix, Precision, Problem, scales

__all__ = ["Axes", "Fit", "Problem", "ahead", "fit", "principal_axes"]

_DOUBLE_UP_TO = 2**27  # feature values (1 GB); above that the coordinates are kept in single precision, to save memory
_SINGLE_FROM = 2**22  # feature values x outputs from which on single precision is worth its copy of the features
_NEWTON_FROM = 1e-4  # estimated relative distance from which on Newton's method is faster
_STALLED = 1e-3  # share of the tolerance: L-BFGS ends when a step gains less
_DIGITS = 1e-8  # of the largest eigenvalue: smaller ones are not exact
_ROWS = 8192


@dataclasses.dataclass(frozen=True)
class Axes:
    """Standardisation and rotation: x -> ((x - mean) / std) @ rotation.

    Attributes:
        mean: (D,) of train.
        std: (D,) of train; infinite for a feature that does not vary, which makes it 0.
        rotation: (D, R), orthonormal columns: the principal axes of train along which it varies, R <= min(N, D).
        variance: (R,) of train along the axes.
        dtype: of the coordinates.
    """

    mean: FloatArray
    std: FloatArray
    rotation: FloatArray
    variance: FloatArray
    dtype: Precision

    def project(self, x: Matrix) -> Matrix:
        """Return (N, R) coordinates of features (N, D)."""
        out = np.empty((len(x), self.rotation.shape[1]), dtype=self.dtype)
        for start in range(0, len(x), _ROWS):
            out[start : start + _ROWS] = _standardise(x[start : start + _ROWS], self.mean, self.std) @ self.rotation
        return out


def principal_axes(x: Matrix, *, standardise: bool = True) -> Axes:
    """Return mean, deviation and principal axes of features (N, D).

    Without `standardise` every deviation is 1: the features are used as they are, only centred, which changes nothing
    but the intercept. With fewer samples than features the axes are found in the span of the samples.

    Axes that vary a hundred million times less than others are found in rounds, each among what the last one could not
    tell from rounding, so that none is lost. Left out are those whose variance is the rounding of the products: along
    them the features do not vary, and the optimum has no weight.
    """
    mean, std = _moments(x)
    if not standardise:
        std = np.ones_like(std)
    n, width = x.shape
    rotation = np.linalg.qr(_standardise(x, mean, std).T)[0] if n < width else np.eye(width)
    variance, open_axes = np.zeros(rotation.shape[1]), rotation.shape[1]
    noise, rotated = 0.0, n < width
    while open_axes:
        values, turn = np.linalg.eigh(_covariance(x, mean, std, rotation[:, :open_axes] if rotated else None))
        rotation[:, :open_axes] = rotation[:, :open_axes] @ turn
        variance[:open_axes], rotated = values, True
        noise = noise or (width * np.finfo(np.float64).eps) ** 2 * float(values.sum())
        # The eigenvalues ascend; those that are small among these are known to few digits.
        open_axes = int(np.sum(values < _DIGITS * values[-1])) if values[-1] > noise else 0
    kept = variance > noise
    dtype = np.float64 if n * int(kept.sum()) <= _DOUBLE_UP_TO else np.float32
    return Axes(mean, std, np.ascontiguousarray(rotation[:, kept]), variance[kept], dtype)


def _covariance(x: Matrix, mean: FloatArray, std: FloatArray, axes: FloatArray | None) -> FloatArray:
    """Return that of the standardised features, or of their coordinates on some axes."""
    width = x.shape[1] if axes is None else axes.shape[1]
    covariance = np.zeros((width, width))
    for start in range(0, len(x), _ROWS):
        block = _standardise(x[start : start + _ROWS], mean, std)
        block = block if axes is None else block @ axes
        covariance += block.T @ block
    return covariance / len(x)


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
    """Return the optimum at one regularisation strength, with a proven bound of the distance to it.

    Args:
        problem: the samples.
        variance: (R,) of the coordinates.
        c: inverse regularisation strength, as in scikit-learn.
        start: a fit at a nearby strength to begin from.
        max_iter: largest number of steps.
        tolerance: largest relative distance of the objective to its lowest value.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    size, penalty = problem.x.size * problem.outputs, 1 / (c * len(problem.x))
    if start is None:
        start = Fit(np.zeros((len(variance), problem.outputs)), np.zeros(problem.outputs), False, 0, np.inf)
    first: Precision = np.float32 if size >= _SINGLE_FROM else np.float64
    # Threads must wait for each other in every product; below this size that costs more than they save.
    with threadpool_limits(1 if size < 2**28 else None, user_api="blas"):
        found = _descend(problem, first, variance, penalty, start, max_iter, max(tolerance, _NEWTON_FROM))
        for precision in (first, np.float64) if first is np.float32 else (first,):
            left = max_iter - found.iterations
            better = polish(problem, penalty, found, precision=precision, max_iter=left, tolerance=tolerance)
            found = dataclasses.replace(better, iterations=found.iterations + better.iterations)
            if found.converged:
                break
    if problem.multinomial:
        # One number added to the biases of all classes changes nothing, so it is fixed.
        found = dataclasses.replace(found, bias=found.bias - found.bias.mean())
    return found


def _descend(
    problem: Problem,
    precision: Precision,
    variance: FloatArray,
    penalty: float,
    start: Fit,
    max_iter: int,
    tolerance: float,
) -> Fit:
    """Run L-BFGS, scaled by the curvature that is expected along the axes, to an estimate of the relative distance."""
    from scipy.optimize import minimize

    outputs = problem.outputs
    first = np.vstack([start.weight, start.bias])
    scale = scales(problem, precision, variance, penalty, start.weight, start.bias)
    latest = np.inf

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        nonlocal latest
        values = flat.reshape(-1, outputs) * scale
        weight, bias = values[:-1], values[-1]
        slope = problem.slope(precision, weight, bias)
        gradient = np.vstack([slope.by_weight + penalty * weight, slope.by_bias])
        value = float(slope.losses.sum()) + penalty / 2 * float(np.sum(weight * weight))
        latest = float(np.sum(gradient[:-1] ** 2) / penalty + np.sum((gradient[-1] * scale[-1]) ** 2)) / 2 / value
        gradient *= scale
        return value / reference, gradient.ravel() / reference

    def callback(flat: FloatArray) -> None:
        if latest <= tolerance:
            raise StopIteration

    reference = 1.0
    reference = objective((first / scale).ravel())[0]
    options: dict[str, Any] = {"maxiter": max(1, max_iter), "maxfun": 2 * max(1, max_iter) + 20}
    options |= {"gtol": 0.0, "ftol": _STALLED * tolerance, "maxcor": 20}
    solution = minimize(
        objective, (first / scale).ravel(), jac=True, method="L-BFGS-B", callback=callback, options=options
    )
    values = solution.x.reshape(-1, outputs) * scale
    return Fit(values[:-1], values[-1], latest <= tolerance, int(solution.nit), latest)


def ahead(before: Fit, last: Fit, steps: float) -> Fit:
    """Return a guess at the next fit of a path from the two before it, going on in a straight line for some steps."""
    weight = last.weight + steps * (last.weight - before.weight)
    return dataclasses.replace(last, weight=weight, bias=last.bias + steps * (last.bias - before.bias))
