"""Ridge regression in closed form, for every strength of the regularisation at once.

`fit_regression` minimises the sum of squared errors plus alpha times the squared length of the weights, the intercept
free, as scikit-learn's Ridge does: on the principal axes of the centred features it is one division per axis.

`fit_classifier` is the few-shot least squares of big_vision's `fewshot_lsr`: W = (X'X + l2 I)^-1 X'Y on standardised
features with a constant feature of 100, which leaves the bias nearly unregularised.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix, Rows
from sslbench.solvers.logistic import Axes, principal_axes

_ROWS = 8192  # converted to double precision at a time
_CONSTANT = 100.0


@dataclasses.dataclass(frozen=True)
class RidgeRegression:
    """Ridge regression of C numbers, for every alpha at once.

    Attributes:
        cross: (R, C) products of the axes with the centred values, summed over the samples.
        mean: (C,) of the values.
    """

    axes: Axes
    cross: FloatArray
    mean: FloatArray
    n: int

    def weights(self, alpha: float) -> FloatArray:
        """Return (R, C) weights on the axes."""
        return self.cross / (self.n * self.axes.variance + alpha)[:, None]

    def predict(self, x: Rows, alpha: float) -> FloatArray:
        """Return (N, C) values for features (N, D)."""
        return np.asarray(self.predict_each(x, [alpha])[0])

    def predict_each(self, x: Rows, alphas: Sequence[float]) -> FloatArray:
        """Return (A, N, C) values for features (N, D) by each alpha; the features are read once."""
        weights = [self.weights(alpha) for alpha in alphas]
        out = np.empty((len(alphas), len(x), len(self.mean)))
        for start in range(0, len(x), _ROWS):
            rows = slice(start, start + _ROWS)
            coordinates = self.axes.project(x[rows])
            for values, own in zip(out, weights, strict=True):
                values[rows] = coordinates @ own
        return out + self.mean


def fit_regression(x: Rows, values: FloatArray, *, standardise: bool) -> RidgeRegression:
    """Return ridge regression of N samples with C values each.

    >>> x = np.arange(6.0)[:, None]
    >>> model = fit_regression(x, 2 * x + 1, standardise=False)
    >>> [float(v) for v in model.predict(x[:2], alpha=1e-9).ravel().round(3)]
    [1.0, 3.0]

    Args:
        x: (N, D).
        values: (N, C).
        standardise: divide every feature by its deviation.
    """
    axes = principal_axes(x, standardise=standardise)
    mean = values.mean(axis=0)
    cross = np.zeros((len(axes.variance), values.shape[1]))
    for start in range(0, len(x), _ROWS):
        block = slice(start, start + _ROWS)
        cross += axes.project(x[block]).T @ (values[block] - mean)
    return RidgeRegression(axes, cross, mean, len(x))


@dataclasses.dataclass(frozen=True)
class LeastSquaresClassifier:
    """Ridge regression to the targets -1 and 1, for every l2 from one eigendecomposition.

    Attributes:
        mean: (D,) of the training samples.
        std: (D,) of them, + 1e-5.
        values: (R,) eigenvalues of X'X or, with fewer samples than columns, of XX'.
        left: (D + 1, R); the weights are left @ diag(1 / (values + l2)) @ right.
        right: (R, C).
    """

    mean: FloatArray
    std: FloatArray
    values: FloatArray
    left: FloatArray
    right: FloatArray

    def weights(self, l2: float) -> FloatArray:
        """Return (D + 1, C) weights; the last row belongs to the constant feature."""
        return np.asarray((self.left / (self.values + l2)) @ self.right)

    def decide(self, x: Matrix, l2: float) -> FloatArray:
        """Return (N, C) decision values of features (N, D)."""
        weights, out = self.weights(l2), np.empty((len(x), self.right.shape[1]))
        for start in range(0, len(x), _ROWS):
            rows = slice(start, start + _ROWS)
            out[rows] = _standardised(x[rows], self.mean, self.std) @ weights
        return out


def fit_classifier(x: Matrix, classes: IntArray, n_classes: int) -> LeastSquaresClassifier:
    """Return least squares to the targets -1 and 1 of C classes.

    >>> model = fit_classifier(np.array([[0.0], [1.0], [4.0], [5.0]]), np.array([0, 0, 1, 1]), 2)
    >>> model.decide(np.array([[0.5], [4.5]]), l2=1.0).argmax(axis=1).tolist()
    [0, 1]

    Args:
        x: (N, D).
        classes: (N,), 0 to n_classes - 1.
        n_classes: C.
    """
    mean, std = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64) + 1e-5
    given = _standardised(x, mean, std)
    target = np.where(classes[:, None] == np.arange(n_classes), 1.0, -1.0)
    if len(given) >= given.shape[1]:
        values, vectors = np.linalg.eigh(given.T @ given)
        return LeastSquaresClassifier(mean, std, np.maximum(values, 0), vectors, vectors.T @ (given.T @ target))
    values, vectors = np.linalg.eigh(given @ given.T)
    return LeastSquaresClassifier(mean, std, np.maximum(values, 0), given.T @ vectors, vectors.T @ target)


def _standardised(x: Matrix, mean: FloatArray, std: FloatArray) -> FloatArray:
    """Return (N, D + 1) standardised features with the constant one."""
    out = np.empty((len(x), x.shape[1] + 1))
    np.divide(np.subtract(x, mean, dtype=np.float64), std, out=out[:, :-1])
    out[:, -1] = _CONSTANT
    return out
