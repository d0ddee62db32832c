"""L2-regularised logistic regression to convergence.

The objective is scikit-learn's: C times the sum of the losses, plus half the squared length of the weights; the bias is
not regularised. Three or more classes: multinomial; two classes, and each label of a multi-label problem: binary.

The features are rotated onto their principal axes, which preserves the length of the weights, and every axis is scaled
by the root of its expected curvature. This diagonal preconditioning of L-BFGS (Liu & Nocedal 1989) reduces hundreds to
thousands of steps to tens, at the same optimum. Large problems approach the optimum in single precision, where a
product costs half, and end with Newton's method with gradients in double precision. A fit ends when the duality gap
proves its distance to the optimum (`gap`). All products are numpy's, whose BLAS is several times as fast as torch's for
such narrow matrices.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from sslbench.arrays import FloatArray, Matrix, Rows
from sslbench.solvers.logistic.newton import polish
from sslbench.solvers.logistic.problem import Fit, Precision, Problem, Unrotated

__all__ = ["Axes", "Fit", "Problem", "Unrotated", "extrapolate", "fit", "mean_and_deviation", "principal_axes"]

_STORED_UP_TO = 2**27  # coordinates kept in memory (1 GB); of more samples they are never stored
_SINGLE_FROM = 2**22  # feature values x outputs above which single precision is worth a copy of the features
_NEWTON_FROM = 1e-4  # estimated relative distance below which Newton's method is faster than L-BFGS
_ACCURATE = 1e-8  # share of the largest eigenvalue below which eigenvalues are inaccurate
_ROWS = 8192


@dataclasses.dataclass(frozen=True)
class Axes:
    """Standardisation and rotation: x -> ((x - mean) / std) @ rotation.

    Attributes:
        mean: (D,) mean of the training features.
        std: (D,) standard deviation; infinite for a constant feature, whose standardised value is then 0.
        rotation: (D, R) orthonormal columns: the principal axes with nonzero variance, R <= min(N, D).
        variance: (R,) variance along the axes.
    """

    mean: FloatArray
    std: FloatArray
    rotation: FloatArray
    variance: FloatArray

    def coordinates(self, x: Matrix) -> Matrix | Unrotated:
        """Return the (N, R) coordinates of features (N, D) for a `Problem`; those of very many are not stored."""
        if len(x) * self.rotation.shape[1] <= _STORED_UP_TO:
            return self.project(x)
        return Unrotated(x, self.mean, self.rotation / self.std[:, None])

    def project(self, x: Rows) -> FloatArray:
        """Return the (N, R) coordinates of features (N, D)."""
        out = np.empty((len(x), self.rotation.shape[1]))
        for start in range(0, len(x), _ROWS):
            out[start : start + _ROWS] = _standardise(x[start : start + _ROWS], self.mean, self.std) @ self.rotation
        return out


def mean_and_deviation(x: Rows) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation (D,) of features (N, D); the deviation of a constant feature is infinite.

    >>> mean, std = mean_and_deviation(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> mean.tolist(), std.tolist()
    ([2.0, 5.0], [1.0, inf])
    """
    # in two passes to avoid cancellation
    blocks = range(0, len(x), _ROWS)
    mean = np.sum([x[i : i + _ROWS].sum(axis=0, dtype=np.float64) for i in blocks], axis=0) / len(x)
    squares = np.sum([((x[i : i + _ROWS].astype(np.float64) - mean) ** 2).sum(axis=0) for i in blocks], axis=0)
    std = np.sqrt(squares / len(x))
    # The computed deviation of a constant feature is the rounding error of its mean.
    return mean, np.where(std > 1e-12 * np.abs(mean), std, np.inf)


def principal_axes(x: Rows, *, standardise: bool = True, device: str = "cpu") -> Axes:
    """Return mean, standard deviation and principal axes of features (N, D).

    If N < D the axes are found in the span of the samples. Axes whose variance is below 1e-8 of the largest are
    recomputed in their own subspace, repeatedly, since a single eigendecomposition gives them few digits. Axes whose
    variance is rounding error are dropped: the optimum has no weight along them.

    >>> axes = principal_axes(np.array([[1.0, 2.0], [3.0, 6.0]]))
    >>> axes.variance.round(6).tolist(), np.abs(axes.project(np.array([[5.0, 10.0]]))).round(6).tolist()
    ([2.0], [[4.242641]])

    Args:
        x: (N, D) features.
        standardise: divide by the standard deviation; otherwise the features are only centred, which changes the bias
            alone.
        device: 'cuda' computes the covariances of many samples there.
    """
    mean, std = mean_and_deviation(x)
    std = std if standardise else np.ones_like(std)
    n, width = x.shape
    rotation = np.linalg.qr(_standardise(x[:], mean, std).T)[0] if n < width else np.eye(width)
    variance, open_axes = np.zeros(rotation.shape[1]), rotation.shape[1]
    noise, rotated = 0.0, n < width
    while open_axes:
        values, turn = _open_axes(x, mean, std, rotation[:, :open_axes] if rotated else None, device)
        rotation[:, :open_axes] = rotation[:, :open_axes] @ turn
        variance[:open_axes], rotated = values, True
        noise = noise or (width * np.finfo(np.float64).eps) ** 2 * float(values.sum())
        # The eigenvalues ascend; the small ones are known to few digits.
        open_axes = int(np.sum(values < _ACCURATE * values[-1])) if values[-1] > noise else 0
    kept = variance > noise
    return Axes(mean, std, np.ascontiguousarray(rotation[:, kept]), variance[kept])


def _open_axes(
    x: Rows, mean: FloatArray, std: FloatArray, axes: FloatArray | None, device: str
) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues, ascending, and eigenvectors of the covariance of the standardised features.

    `axes`: (D, R) of whose coordinates it is; None: of all features. A GPU computes what is large.
    """
    width, on_gpu = x.shape[1] if axes is None else axes.shape[1], device.startswith("cuda")
    if on_gpu:
        from sslbench.solvers.logistic import on_device

    if on_gpu and len(x) * width * width >= 2**34:
        covariance = on_device.covariance(x, mean, std, axes, device)
    else:
        covariance = np.zeros((width, width))
        for start in range(0, len(x), _ROWS):
            block = _standardise(x[start : start + _ROWS], mean, std)
            block = block if axes is None else block @ axes
            covariance += block.T @ block
        covariance /= len(x)
    return on_device.eigenvectors(covariance, device) if on_gpu and width >= 512 else np.linalg.eigh(covariance)


def _standardise(x: Matrix, mean: FloatArray, std: FloatArray) -> FloatArray:
    return np.asarray((x.astype(np.float64) - mean) / std)


def fit(problem: Problem, variance: FloatArray, c: float, *, start: Fit | None, max_iter: int, tolerance: float) -> Fit:
    """Return the optimum at one regularisation strength, with a proven bound of the distance to it.

    >>> x = np.array([[-1.0], [1.0]])
    >>> problem = Problem(x, np.array([[0], [1]], dtype=np.int8), 1)
    >>> found = fit(problem, np.ones(1), 1.0, start=None, max_iter=100, tolerance=1e-10)
    >>> found.weight.round(4).tolist(), found.converged  # the optimum solves w (1 + exp(w)) = 2
    ([[0.6748]], True)

    Args:
        problem: samples.
        variance: (R,) variance of the coordinates.
        c: inverse regularisation strength, as in scikit-learn.
        start: initial fit, e.g. that at a nearby strength; default: 0.
        max_iter: largest number of steps.
        tolerance: largest relative distance of the objective to its minimum.
    """
    size, penalty = problem.x.size * problem.outputs, 1 / (c * len(problem.x))
    if start is None:
        start = Fit(np.zeros((len(variance), problem.outputs)), np.zeros(problem.outputs), False, 0, np.inf)
    first: Precision = np.float32 if size >= _SINGLE_FROM else np.float64
    # Below this size, synchronising threads in every product costs more than they save.
    with _blas().limit(limits=1 if size < 2**28 else None):
        found = problem.descend(
            first, variance, penalty, start, max_iter=max_iter, tolerance=max(tolerance, _NEWTON_FROM)
        )
        for precision in (first, np.float64) if first is np.float32 else (first,):
            remaining = max_iter - found.iterations
            polished = polish(problem, penalty, found, precision=precision, max_iter=remaining, tolerance=tolerance)
            found = dataclasses.replace(polished, iterations=found.iterations + polished.iterations)
            if found.converged:
                break
    if problem.multinomial:
        # A constant added to the biases of all classes does not change the probabilities.
        found = dataclasses.replace(found, bias=found.bias - found.bias.mean())
    return found


@functools.cache  # looking for the libraries of a process takes longer than a small fit
def _blas() -> Any:
    """Return the controller of the threads of BLAS."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController().select(user_api="blas")


def extrapolate(before: Fit, last: Fit, steps: float) -> Fit:
    """Extrapolate a path of fits linearly, by `steps` times the step from `before` to `last`.

    >>> before, last = (Fit(np.full((1, 1), w), np.zeros(1), True, 0, 0.0) for w in (1.0, 2.0))
    >>> extrapolate(before, last, 0.5).weight.tolist()
    [[2.5]]
    """
    weight = last.weight + steps * (last.weight - before.weight)
    return dataclasses.replace(last, weight=weight, bias=last.bias + steps * (last.bias - before.bias))
