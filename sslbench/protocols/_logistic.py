"""L2-regularised logistic regression to convergence.

The objective is scikit-learn's: C times the sum of the losses, plus half the squared length of the weights; the
intercept is free. Three or more classes: multinomial; two classes, and each label of a multi-label problem: binary.

How it is made fast without changing the optimum: the features are turned onto their principal axes (a rotation, which
leaves the length of the weights alone) and every axis is scaled by the curvature expected there. What is left for
L-BFGS is nearly round, so tens of steps are enough where hundreds to thousands are needed without. Everything is in
numpy, whose BLAS multiplies such narrow matrices several times as fast as torch's.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.floating]

_DOUBLE_UP_TO = 2**27  # feature values (1 GB); above that single precision is used, to save memory
_SINGLE_TOLERANCE = 1e-5  # gradients computed in single precision are no more exact than this
_ROWS = 8192


@dataclasses.dataclass(frozen=True)
class Axes:
    """Standardisation and rotation: x -> ((x - mean) / std) @ rotation.

    Attributes:
        mean: (D,) of train.
        std: (D,) of train; infinite for a feature that does not vary, which makes it 0.
        rotation: (D, R), orthonormal columns: the principal axes of train, R <= min(N, D).
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


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted model.

    Attributes:
        weight: (R, K) on the axes.
        bias: (K,).
        converged: whether the gradient became as small as asked.
        iterations: of L-BFGS.
        gradient: largest entry of the gradient of the mean objective, in the scaled coordinates it was solved in.
    """

    weight: FloatArray
    bias: FloatArray
    converged: bool
    iterations: int
    gradient: float

    def decide(self, x: Matrix) -> FloatArray:
        """(N, K) decision values of coordinates (N, R)."""
        return np.asarray(x @ self.weight.astype(x.dtype) + self.bias, dtype=np.float64)


def principal_axes(x: Matrix) -> Axes:
    """Mean, deviation and principal axes of features (N, D); nothing larger than a block of them is copied.

    With fewer samples than features the axes are found from the N x N products, and there are at most N of them: along
    all others the features do not vary, and the optimum has no weight.
    """
    mean, std = _moments(x)
    n, width = x.shape
    if n >= width:
        covariance = np.zeros((width, width))
        for start in range(0, n, _ROWS):
            block = _standardise(x[start : start + _ROWS], mean, std)
            covariance += block.T @ block
        values, rotation = np.linalg.eigh(covariance)
    else:
        everything = _standardise(x, mean, std)
        values, left = np.linalg.eigh(everything @ everything.T)
        kept = values > max(values[-1], 1.0) * 1e-12
        values, left = values[kept], left[:, kept]
        rotation = everything.T @ (left / np.sqrt(values))
    dtype = np.float64 if x.size <= _DOUBLE_UP_TO else np.float32
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


class Problem:
    """The loss over some samples and its gradient by the decision values."""

    def __init__(self, x: Matrix, targets: npt.NDArray[np.int64] | npt.NDArray[np.int8], outputs: int) -> None:
        """Prepare.

        Args:
            x: (N, R) coordinates.
            targets: (N,) classes 0..K-1 for a multinomial problem; (N, K) of 1, 0 or -1 (ignored) for K binary ones.
            outputs: K.
        """
        self.x, self.outputs = x, outputs
        self.multinomial = targets.ndim == 1
        self._rows = np.arange(len(x))
        self._classes = targets if self.multinomial else None
        self._sign = np.where(targets > 0, 1.0, -1.0)
        self._known = (targets >= 0).astype(np.float64)

    def loss_and_gradient(self, logits: FloatArray) -> tuple[float, FloatArray]:
        """The mean loss per sample (summed over outputs), and its gradient by the logits (N, K)."""
        n = len(logits)
        if self._classes is not None:
            shifted = logits - logits.max(axis=1, keepdims=True)
            gradient = np.exp(shifted)
            total = gradient.sum(axis=1)
            loss = np.sum(np.log(total) - shifted[self._rows, self._classes])
            gradient /= total[:, None]
            gradient[self._rows, self._classes] -= 1
        else:
            margin = self._sign * logits
            smaller = np.exp(-np.abs(margin))
            loss = np.sum((np.maximum(-margin, 0) + np.log1p(smaller)) * self._known)
            # The chance of the wrong answer, computed without overflow on either side.
            wrong = np.where(margin > 0, smaller, 1.0) / (1 + smaller)
            gradient = -self._sign * wrong * self._known
        return float(loss) / n, gradient / n

    def curvature(self, logits: FloatArray) -> float:
        """The mean of p (1 - p) over samples and outputs: how curved the loss is in a decision value."""
        if self.multinomial:
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
        else:
            p = 1 / (1 + np.exp(np.minimum(np.abs(logits), 500)))
        return float(np.mean(p * (1 - p)))


def fit(problem: Problem, variance: FloatArray, c: float, *, start: Fit | None, max_iter: int, tolerance: float) -> Fit:
    """The optimum at one regularisation strength.

    Args:
        problem: the samples.
        variance: (R,) of the coordinates.
        c: inverse regularisation strength, as in scikit-learn.
        start: a fit at a nearby strength to begin from.
        max_iter: largest number of L-BFGS steps.
        tolerance: how small the largest entry of the gradient must become, in scaled coordinates; in
            single precision never less than 1e-5.
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    x, outputs = problem.x, problem.outputs
    penalty = 1 / (c * len(x))
    if x.dtype != np.float64:
        tolerance = max(tolerance, _SINGLE_TOLERANCE)
    first = np.zeros((len(variance) + 1, outputs))
    if start is not None:
        first[:-1], first[-1] = start.weight, start.bias
    curvature = max(problem.curvature(x @ first[:-1].astype(x.dtype) + first[-1]), 1e-4)
    scale = np.append(1 / np.sqrt(variance * curvature + penalty), 1 / np.sqrt(curvature))[:, None]

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        values = flat.reshape(-1, outputs) * scale
        weight, bias = values[:-1], values[-1]
        loss, by_logits = problem.loss_and_gradient(x @ weight.astype(x.dtype) + bias)
        gradient = np.empty_like(values)
        gradient[:-1] = (by_logits.T.astype(x.dtype) @ x).T + penalty * weight
        gradient[-1] = by_logits.sum(axis=0)
        gradient *= scale
        return loss + penalty / 2 * float(np.sum(weight * weight)), gradient.ravel()

    options = {"maxiter": max_iter, "maxfun": 2 * max_iter + 20, "gtol": tolerance, "ftol": 0.0, "maxcor": 20}
    # Threads must wait for each other in every product; below this size that costs more than they save.
    threads = 1 if x.size * outputs < 2**28 else None
    with threadpool_limits(threads, user_api="blas"):
        solution = minimize(objective, (first / scale).ravel(), jac=True, method="L-BFGS-B", options=options)
    values = solution.x.reshape(-1, outputs) * scale
    largest = float(np.abs(solution.jac).max())
    return Fit(values[:-1], values[-1], largest <= tolerance, int(solution.nit), largest)
