"""Linear CKA (Kornblith et al. 2019): similarity of two sets of features of the same samples, in any basis.

CKA(X, Y) = HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y, Y)) on all samples at once, no minibatches. HSIC is computed from the
(D1, D2) product of the two, or from their (N, N) Gram matrices, whichever is smaller; the value is the same.
"""

from collections.abc import Sequence

import numpy as np

from sslbench.arrays import FloatArray, Matrix

_ROWS = 4096  # rows per block, so that memory-mapped features are never copied whole


def cka_matrix(xs: Sequence[Matrix], ys: Sequence[Matrix], *, debiased: bool = False) -> FloatArray:
    """Return linear CKA (eq. 4) of every pair of features (N, D) of the same samples, (len(xs), len(ys)).

    At most 1; 1 for features that agree up to rotation and scale; NaN where one side is constant.

    >>> x = np.array([[1.0], [2.0], [4.0]])
    >>> cka_matrix([x], [x, x**0]).round(6).tolist()
    [[1.0, nan]]
    """
    sizes = {len(features) for features in (*xs, *ys)}
    fewest = 4 if debiased else 2
    if len(sizes) != 1 or min(sizes) < fewest:
        raise ValueError(f"CKA needs at least {fewest} samples, the same for both sides, not {sorted(sizes)}")
    left, right = ([_Side(features, debiased) for features in side] for side in (xs, ys))
    own = [np.array([a.hsic(a) for a in side]) for side in (left, right)]
    both = np.array([[a.hsic(b) for b in right] for a in left])
    scale = np.sqrt(np.maximum(own[0][:, None] * own[1], 0))
    return np.asarray(np.divide(both, scale, out=np.full_like(both, np.nan), where=scale > 0))


class _Side:
    """Features of one layer, centred as they are read, with the diagonal of their Gram matrix."""

    def __init__(self, x: Matrix, debiased: bool) -> None:
        self.x, self.debiased = x, debiased
        self.mean = np.sum([part.sum(axis=0, dtype=np.float64) for part in _parts(x)], axis=0) / len(x)
        self._gram: FloatArray | None = None
        centred = [self.part(start) for start in range(0, len(x), _ROWS)]
        # The diagonal of the Gram matrix. Centred features sum to 0, so each row without it sums to minus this.
        self.square = np.concatenate([np.einsum("nd,nd->n", part, part) for part in centred])
        # Rounding leaves a constant column not quite at its mean.
        self.constant = bool(self.square.max() <= (1e-14 * np.abs(self.mean).max()) ** 2 * x.shape[1])

    def part(self, start: int) -> FloatArray:
        """Return a block of centred rows in float64."""
        return np.asarray(self.x[start : start + _ROWS].astype(np.float64) - self.mean)

    def gram(self) -> FloatArray:
        """Return the Gram matrix of the centred samples (N, N)."""
        if self._gram is None:
            whole = np.concatenate([self.part(start) for start in range(0, len(self.x), _ROWS)])
            self._gram = whole @ whole.T
        return self._gram

    def hsic(self, other: "_Side") -> float:
        """Return HSIC with another layer, up to a factor that cancels in CKA; 0 for constant features."""
        if self.constant or other.constant:
            return 0.0
        product = self._product(other)
        if not self.debiased:
            return product
        n = len(self.x)
        # With zero diagonals: tr(KL) + 1'K1 1'L1 / ((n-1)(n-2)) - 2/(n-2) 1'KL1
        trace = product - float(self.square @ other.square)
        ones = self.square.sum() * other.square.sum() / ((n - 1) * (n - 2))
        return float(trace + ones - 2 / (n - 2) * (self.square @ other.square))

    def _product(self, other: "_Side") -> float:
        """Return the inner product of both Gram matrices, which is |X'Y|^2."""
        n = len(self.x)
        if n * n < self.x.shape[1] * other.x.shape[1]:
            return float(np.vdot(self.gram(), other.gram()))
        total = np.zeros((self.x.shape[1], other.x.shape[1]))
        for start in range(0, n, _ROWS):
            total += self.part(start).T @ other.part(start)
        return float(np.vdot(total, total))


def _parts(x: Matrix) -> list[Matrix]:
    return [x[start : start + _ROWS] for start in range(0, len(x), _ROWS)]
