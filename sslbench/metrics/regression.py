"""How well numbers are predicted: R2, mean absolute and root mean square error, Spearman's rank correlation.

All are functions of how often each sample counts, so that intervals come from the half-samples of `intervals`. Several
numbers per sample are scored one by one and averaged, as scikit-learn does by default.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def r2(values: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """The share of the variance that is explained, 1 at best, 0 for the mean of the samples, negative below that.

    Args:
        values: (N, C).
        predicted: (N, C).

    Returns:
        The mean over the C numbers; NaN where one of them does not vary.
    """
    return float(np.mean(r2_each(values, predicted)))


def r2_each(values: npt.ArrayLike, predicted: npt.ArrayLike) -> FloatArray:
    """(C,) the same for each number."""
    true = _columns(values)
    each = Errors(true, _columns(predicted)).explained(np.ones((1, len(true))))
    return np.asarray(each[0])


def spearman(values: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """The correlation of the ranks, equal values sharing theirs; NaN where values or predictions do not vary."""
    true = _columns(values)
    return float(Ranks(true, _columns(predicted)).correlation(np.ones((1, len(true))))[0, 0])


class Errors:
    """What is computed from the differences between values and predictions."""

    names = ("r2", "mae", "rmse")

    def __init__(self, values: npt.ArrayLike, predicted: npt.ArrayLike) -> None:
        """Prepare.

        Args:
            values: (N, C).
            predicted: (N, C).
        """
        true, guess = _columns(values), _columns(predicted)
        self._squares, self._lengths = (true - guess) ** 2, np.abs(true - guess)
        # Centred, so that sums of squares of large values lose no digits.
        self._true = true - true.mean(axis=0)

    def explained(self, counts: FloatArray) -> FloatArray:
        """(R, C) R2 of each number."""
        total = counts.sum(axis=1, keepdims=True)
        mean = counts @ self._true / total
        spread = counts @ self._true**2 - total * mean**2
        left = counts @ self._squares
        # What rounding leaves of the spread of equal values is none.
        varies = spread > 1e-12 * np.maximum(counts @ self._true**2, np.finfo(np.float64).tiny)
        return np.where(varies, 1 - left / np.where(varies, spread, 1), np.nan)

    def statistic(self, counts: FloatArray) -> FloatArray:
        """(R, 3) R2, mean absolute error, root mean square error."""
        total = counts.sum(axis=1, keepdims=True)
        lengths, squares = counts @ self._lengths / total, counts @ self._squares / total
        parts = (self.explained(counts), lengths, np.sqrt(squares))
        return np.column_stack([part.mean(axis=1) for part in parts])


class Ranks:
    """The rank correlation of values and predictions."""

    names = ("spearman",)

    def __init__(self, values: npt.ArrayLike, predicted: npt.ArrayLike) -> None:
        """Prepare; (N, C) both."""
        self._pairs = [
            (_Order(true), _Order(guess)) for true, guess in zip(_columns(values).T, _columns(predicted).T, strict=True)
        ]

    def correlation(self, counts: FloatArray) -> FloatArray:
        """(R, 1) the mean over the numbers of Pearson's correlation of the ranks, equal values having their mean."""
        found = [_correlation(one.ranks(counts), other.ranks(counts), counts) for one, other in self._pairs]
        return np.asarray(np.mean(found, axis=0))[:, None]


class _Order:
    """The order of N numbers, and which of them are equal."""

    def __init__(self, values: FloatArray) -> None:
        _, self._group, sizes = np.unique(values, return_inverse=True, return_counts=True)
        self._order = np.argsort(self._group, kind="stable")
        self._starts = np.append(0, np.cumsum(sizes)[:-1])

    def ranks(self, counts: FloatArray) -> FloatArray:
        """(R, N) mean ranks, centred, where sample i is there counts[:, i] times."""
        each = np.add.reduceat(counts[:, self._order], self._starts, axis=1)
        middle = np.cumsum(each, axis=1) - each / 2
        return np.asarray((middle - counts.sum(axis=1, keepdims=True) / 2)[:, self._group])


def _correlation(a: FloatArray, b: FloatArray, counts: FloatArray) -> FloatArray:
    both = np.sqrt(np.sum(counts * a * a, axis=1) * np.sum(counts * b * b, axis=1))
    together = np.sum(counts * a * b, axis=1)
    return np.asarray(np.divide(together, both, out=np.full_like(both, np.nan), where=both > 0))


def _columns(values: npt.ArrayLike) -> FloatArray:
    found = np.asarray(values, dtype=np.float64)
    return found[:, None] if found.ndim == 1 else found
