"""What the geometry of features says without a classifier: how many directions they use, how they fill the sphere.

Each function returns a value with its 95 % interval, -+ Student's t times the standard error by the infinitesimal
jackknife (Jaeckel 1972): the linear part of what a bootstrap over the samples would give. A bootstrap itself will not
do, because samples that are drawn twice lower a rank. The intervals say how much the value varies with the samples;
that a rank of few samples is lower than one of many is not in them.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sslbench.metrics.intervals import Units, ends, mean_errors

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.floating]
Interval = tuple[float, float, float]

_ROWS = 1024  # rows looked at together
_ANYTHING = (-float("inf"), float("inf"))
_NOTHING = (float("nan"), float("nan"), float("nan"))


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of the second moments of N features.

    Attributes:
        values: (R,) falling, R = min(N, D): eigenvalues of X'X / N.
        squares: (N, R) squared projections of each sample on the eigenvectors; their means are the eigenvalues.
        units: of the samples.
    """

    values: FloatArray
    squares: FloatArray
    units: Units

    def interval(self, value: float, slope: FloatArray) -> Interval:
        """A function of the eigenvalues with its interval, from its derivative (R,) by them."""
        return _interval(value, self.squares @ slope, self.units)


def spectrum(x: Matrix, *, centred: bool, groups: IntArray | None = None) -> Spectrum:
    """The spectrum of features (N, D), around their mean or around zero.

    It is taken from X'X or XX', whichever is smaller, in float64.
    """
    given = np.asarray(x, dtype=np.float64)
    if centred:
        given = given - given.mean(axis=0)
    n, width = given.shape
    if n >= width:
        values, vectors = np.linalg.eigh(given.T @ given / n)
        squares = (given @ vectors) ** 2
    else:
        values, vectors = np.linalg.eigh(given @ given.T / n)
        # Sample i's projection on direction k is sqrt(n * value_k) times the i-th entry of the k-th vector.
        squares = n * np.maximum(values, 0) * vectors**2
    # Rounding leaves tiny numbers in the place of zeros.
    values = np.where(values > values.max(initial=0) * np.finfo(np.float64).eps * max(n, width), values, 0)
    return Spectrum(values[::-1], squares[:, ::-1], Units.of(n, groups))


def rankme(found: Spectrum, epsilon: float = 1e-7) -> Interval:
    """RankMe (Garrido et al. 2023, eq. 1): exp of the entropy of the normalised singular values, not centred.

    With `epsilon` 0 and a centred spectrum it is the effective rank (Roy & Vetterli 2007).
    """
    singular = np.sqrt(found.values)
    total = singular.sum()
    if total == 0:
        return _NOTHING
    share = singular / total + epsilon
    log = np.log(np.maximum(share, 1e-300))
    rank = float(np.exp(-np.sum(share * log)))
    # d rank / d singular_k = -rank (log p_k + 1 - sum_j p_j (log p_j + 1)) / total, with the shares p
    inner = log + 1 - np.sum(singular / total * (log + 1))
    slope = np.divide(-rank * inner, 2 * total * singular, out=np.zeros_like(inner), where=singular > 0)
    return found.interval(rank, slope)


def effective_rank(found: Spectrum) -> Interval:
    """Effective rank (Roy & Vetterli 2007, definition 1) of the features, given their centred spectrum."""
    return rankme(found, epsilon=0.0)


def alpha_req(found: Spectrum, ranks: tuple[int, int]) -> Interval:
    """Exponent with which the eigenvalues of the covariance fall: value_k ~ k^-alpha (Agrawal et al. 2022).

    The slope of log(value_k) on log(k), least squares weighted by 1/k, over the ranks from `ranks[0]` to `ranks[1]`,
    fewer where there are fewer eigenvalues; NaN for fewer than three. The authors' code uses ranks 4 to 100 and these
    weights; their paper names neither.
    """
    first, last = ranks
    k = np.arange(first, min(last, int(np.sum(found.values > 0))) + 1)
    if len(k) < 3:
        return _NOTHING
    values, log = found.values[k - 1], np.log(k)
    weight = 1 / k / np.sum(1 / k)
    centred = log - np.sum(weight * log)
    coefficient = weight * centred / np.sum(weight * centred**2)
    slope = np.zeros(len(found.values))
    slope[k - 1] = -coefficient / values
    return found.interval(float(-np.sum(coefficient * np.log(values))), slope)


def uniformity(unit: Matrix, t: float = 2.0, groups: IntArray | None = None) -> Interval:
    """Log of the mean of exp(-t |x - y|^2) over all pairs of two samples (Wang & Isola 2020, eq. 2); lower is evener.

    Args:
        unit: (N, D) features of length 1.
        t: as in their experiments.
        groups: (N,) the group of each sample; None: each stands for itself.
    """
    n = len(unit)
    if n < 2:
        return _NOTHING
    each = np.zeros(n)
    for start in range(0, n, _ROWS):
        part = np.asarray(unit[start : start + _ROWS], dtype=np.float64)
        for other in range(0, n, _ROWS):
            products = part @ np.asarray(unit[other : other + _ROWS], dtype=np.float64).T
            each[start : start + len(part)] += np.exp(-2 * t * (1 - products)).sum(axis=1)
    each = (each - 1) / (n - 1)
    mean = float(each.mean())
    # A sample takes part in pairs from both sides.
    return _interval(float(np.log(mean)), 2 * each / mean, Units.of(n, groups))


def alignment(unit: Matrix, classes: IntArray, groups: IntArray | None = None) -> Interval:
    """Mean of |x - y|^2 over all pairs of two different samples of one class, every pair alike; lower is closer.

    Wang & Isola 2020, eq. 1 with exponent 2; their pairs are two views of one image, these are two images of one class.

    Args:
        unit: (N, D) features of length 1.
        classes: (N,) class numbers.
        groups: (N,) the group of each sample; None: each stands for itself.
    """
    given = np.asarray(unit, dtype=np.float64)
    present, own = np.unique(classes, return_inverse=True)
    sums = np.zeros((len(present), given.shape[1]))
    np.add.at(sums, own, given)
    size = np.bincount(own).astype(np.float64)[own]
    square = np.einsum("nd,nd->n", given, given)
    squares = np.bincount(own, square)[own]
    # Over the other samples y of the class: sum of |x - y|^2.
    distance = np.maximum(size * square + squares - 2 * np.einsum("nd,nd->n", given, sums[own]), 0)
    pairs = size - 1
    if not pairs.sum():
        return _NOTHING
    value = float(distance.sum() / pairs.sum())
    return _interval(value, 2 * (distance - value * pairs) / pairs.mean(), Units.of(len(given), groups))


def feature_std(unit: Matrix, groups: IntArray | None = None) -> Interval:
    """Mean over the columns of the standard deviation, times sqrt(D): 1 if spread evenly, 0 if collapsed.

    Chen & He 2021, section 4.1.

    Args:
        unit: (N, D) features of length 1.
        groups: (N,) the group of each sample; None: each stands for itself.
    """
    given = np.asarray(unit, dtype=np.float64)
    scale = given.shape[1] ** 0.5
    squares = (given - given.mean(axis=0)) ** 2
    variance = squares.mean(axis=0)
    std = np.sqrt(variance)
    slope = np.divide(1, 2 * std, out=np.zeros_like(std), where=std > 0) * scale / given.shape[1]
    return _interval(float(std.mean() * scale), squares @ slope, Units.of(len(given), groups))


def unit_length(x: Matrix) -> FloatArray:
    """Features (N, D) divided by their length, in float64; a row of zeros stays zero."""
    given = np.asarray(x, dtype=np.float64)
    length = np.linalg.norm(given, axis=1, keepdims=True)
    return given / np.where(length > 0, length, 1)


def _interval(value: float, influence: FloatArray, units: Units) -> Interval:
    return value, *ends(value, float(mean_errors(influence[:, None], units)[0]), size=units.number, bounds=_ANYTHING)
