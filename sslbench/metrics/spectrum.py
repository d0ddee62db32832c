"""Geometry of features without a classifier: effective dimension, spread over the sphere, closeness of classes; CKA.

Each function returns a value with its 95 % interval, -+ Student's t times the standard error by the infinitesimal
jackknife (Jaeckel 1972), the linear approximation of a bootstrap over the samples. A bootstrap itself is biased,
because samples that are drawn twice lower a rank. The intervals cover the variance over samples, not the bias: a rank
of few samples is lower than one of many.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.metrics.intervals import Interval, Units, ends, mean_errors
from sslbench.metrics.metric import ANY, LOSS, Bounds, Metric

RANKME = Metric("rankme", "RankMe", "RankMe, in directions", 0, LOSS, needs="features")
EFFECTIVE_RANK = Metric("effective_rank", "Effective rank", "effective rank, in directions", 0, LOSS, needs="features")
ALPHA_REQ = Metric("alpha_req", "Decay exponent of the eigenvalues (alpha-ReQ)", "exponent", 0, ANY, needs="features")
UNIFORMITY = Metric("uniformity", "Uniformity on the sphere", "log potential", 0, (-math.inf, 0.0), needs="features")
ALIGNMENT = Metric(
    "alignment", "Alignment of the samples of one class",
    "squared distance", 0, (0.0, 4.0), needs="features", labels=("single",),
)  # fmt: skip
FEATURE_STD = Metric(
    "feature_std", "Standard deviation of unit features",
    "standard deviation x sqrt(D)", 0, (0.0, 1.0), needs="features",
)  # fmt: skip

LIDAR = Metric("lidar", "LiDAR", "LiDAR, in directions", 0, LOSS, needs="features")
TWO_NN = Metric("two_nn", "Intrinsic dimension (TwoNN)", "dimensions", 0, LOSS, needs="features")
MLE_DIMENSION = dataclasses.replace(TWO_NN, name="mle_dimension", title="Intrinsic dimension (maximum likelihood)")

DIMENSION_NEIGHBOURS = 20
"""Neighbours per sample of the intrinsic dimension by maximum likelihood."""
ALPHA_RANKS = (4, 100)
"""First and last rank of the eigenvalues to which the authors' code of alpha-ReQ fits the exponent."""
SAMPLES = 25600
"""Number of samples for which the authors of RankMe compute it."""

_ROWS = 1024  # rows per block
_NAN = (float("nan"), float("nan"), float("nan"))
_CENTRED_ROWS = 4096  # rows per block, so that memory-mapped features are never copied whole


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the second moments of N features.

    Attributes:
        values: (R,) falling, R = min(N, D): eigenvalues of X'X / N.
        squares: (N, R) squared projections of each sample on the eigenvectors; their means are the eigenvalues.
    """

    values: FloatArray
    squares: FloatArray
    units: Units

    def interval(self, value: float, slope: FloatArray) -> Interval:
        """Return a function of the eigenvalues with its interval, given its derivative (R,) with respect to them."""
        return influence_interval(value, self.squares @ slope, self.units)


def spectrum(x: Matrix, *, centred: bool, groups: IntArray | None = None) -> Spectrum:
    """Return the spectrum of features (N, D) around their mean (`centred`) or around zero.

    >>> spectrum(np.array([[2.0, 0.0], [0.0, 1.0]]), centred=False).values.round(6).tolist()
    [2.0, 0.5]
    """
    # Computed from X'X or XX', whichever is smaller, in float64.
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
    # Rounding turns zeros into tiny numbers.
    values = np.where(values > values.max(initial=0) * np.finfo(np.float64).eps * max(n, width), values, 0)
    return Spectrum(values[::-1], squares[:, ::-1], Units.of(n, groups))


def drawn_rows(n: int, samples: int, seed: int) -> IntArray:
    """Return ascending positions of a random subset of n samples; all positions if there are no more than `samples`.

    >>> drawn_rows(5, 3, 0).tolist(), drawn_rows(2, 3, 0).tolist()
    ([2, 3, 4], [0, 1])
    """
    if n <= samples:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, samples, replace=False))


def rankme(found: Spectrum, epsilon: float = 1e-7) -> Interval:
    """Return RankMe (Garrido et al. 2023, eq. 1): exp of the entropy of the normalised singular values, not centred.

    At least 1, at most the number of directions; NaN for features that are all 0.

    >>> round(rankme(spectrum(np.eye(3), centred=False))[0], 4)
    3.0
    """
    singular = np.sqrt(found.values)
    total = singular.sum()
    if total == 0:
        return _NAN
    share = singular / total + epsilon
    log = np.log(np.maximum(share, 1e-300))
    rank = float(np.exp(-np.sum(share * log)))
    # d rank / d singular_k = -rank (log p_k + 1 - sum_j p_j (log p_j + 1)) / total, with the shares p
    inner = log + 1 - np.sum(singular / total * (log + 1))
    slope = np.divide(-rank * inner, 2 * total * singular, out=np.zeros_like(inner), where=singular > 0)
    return found.interval(rank, slope)


def effective_rank(found: Spectrum) -> Interval:
    """Return the effective rank (Roy & Vetterli 2007, definition 1) of the features, given their centred spectrum.

    >>> round(effective_rank(spectrum(np.eye(3), centred=True))[0], 4)
    2.0
    """
    return rankme(found, epsilon=0.0)


def alpha_req(found: Spectrum, ranks: tuple[int, int]) -> Interval:
    """Return the exponent with which the eigenvalues of the covariance fall: value_k ~ k^-alpha (Agrawal et al. 2022).

    >>> found = Spectrum(1 / np.arange(1.0, 21.0), np.ones((3, 20)), Units.of(3, None))
    >>> round(alpha_req(found, (4, 20))[0], 4)
    1.0
    """
    # The slope of log(value_k) on log(k), least squares weighted by 1/k, over the ranks from `ranks[0]` to `ranks[1]`,
    # fewer where there are fewer eigenvalues; NaN for fewer than three. The authors' code uses ranks 4 to 100 and these
    # weights; their paper names neither.
    first, last = ranks
    k = np.arange(first, min(last, int(np.sum(found.values > 0))) + 1)
    if len(k) < 3:
        return _NAN
    values, log = found.values[k - 1], np.log(k)
    weight = 1 / k / np.sum(1 / k)
    centred = log - np.sum(weight * log)
    coefficient = weight * centred / np.sum(weight * centred**2)
    slope = np.zeros(len(found.values))
    slope[k - 1] = -coefficient / values
    return found.interval(float(-np.sum(coefficient * np.log(values))), slope)


def spanned(x: Matrix) -> Matrix:
    """Return features (N, D) rotated into the N dimensions that they span, where these are fewer than D.

    >>> spanned(np.array([[3.0, 4.0]])).round(6).tolist()
    [[5.0]]
    """
    n, width = x.shape
    if n >= width:
        return x
    gram = np.zeros((n, n))
    for start in range(0, width, _CENTRED_ROWS):
        part = np.asarray(x[:, start : start + _CENTRED_ROWS], dtype=np.float64)
        gram += part @ part.T
    values, vectors = np.linalg.eigh(gram)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)))


def lidar(x: Matrix, groups: IntArray, ridge: float = 1e-4, epsilon: float = 1e-7) -> Interval:
    """Return LiDAR (Thilak et al., ICLR 2024, equations 1 to 4): effective rank of the discriminant analysis of groups.

    The rank is that of the covariance of the group means, whitened by the covariance within groups + `ridge`. In the
    paper a group has the augmented views of one image. NaN for fewer than two groups.

    `x`: (N, D); `groups`: (N,), the group of each sample.

    >>> x = np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]])
    >>> round(lidar(x, np.array([0, 0, 1, 1]))[0], 4)
    1.0
    """
    from scipy.linalg import eigh

    units = Units.of(len(x), groups)
    if units.place is None or units.number < 2:
        return _NAN
    given = np.asarray(spanned(x), dtype=np.float64)
    sizes = np.bincount(units.place)[:, None]
    means = units.sums(given) / sizes
    between, within = means - means.mean(axis=0), given - means[units.place]
    # Every group counts alike, however many samples it has.
    scatter = (within / sizes[units.place]).T @ within / units.number + ridge * np.eye(given.shape[1])
    values, vectors = eigh(between.T @ between / units.number, scatter)
    values = np.maximum(values, 0)
    total = values.sum()
    if total == 0:
        return _NAN
    share = values / total + epsilon
    rank = float(np.exp(-np.sum(share * np.log(share))))
    inner = np.log(share) + 1
    slope = -rank * (inner - np.sum(values / total * inner)) / total
    each = (between @ vectors) ** 2 - values * (units.sums((within @ vectors) ** 2) / sizes + ridge)
    return influence_interval(rank, each @ slope, Units.of(units.number, None))


def two_nn(distances: FloatArray, groups: IntArray | None = None) -> Interval:
    """Return the intrinsic dimension by the ratio of the first two distances (Facco et al. 2017), by their likelihood.

    `distances`: (N, K >= 2) of each sample to its nearest others, rising; copies of a sample are left out.

    >>> round(two_nn(np.array([[1.0, 2.0], [1.0, 4.0]]))[0], 4)
    0.9618
    """
    return mle_dimension(distances[:, :2], groups)


def mle_dimension(distances: FloatArray, groups: IntArray | None = None) -> Interval:
    """Return the intrinsic dimension of Levina and Bickel 2004, inverses averaged (MacKay and Ghahramani 2005).

    Arguments as for `two_nn`. Each sample's neighbours are taken as independent of those of others.

    >>> round(mle_dimension(np.array([[1.0, 2.0, 4.0]]))[0], 4)
    0.9618
    """
    rows = np.flatnonzero(distances[:, 0] > 0)
    if not len(rows):
        return _NAN
    kept = distances[rows]
    inverse = np.mean(np.log(kept[:, -1:] / kept[:, :-1]), axis=1)
    if not (mean := float(inverse.mean())):
        return _NAN
    units = Units.of(len(rows), None if groups is None else groups[rows])
    return influence_interval(1 / mean, (mean - inverse) / mean**2, units, LOSS)


def uniformity(unit: Matrix, t: float = 2.0, groups: IntArray | None = None) -> Interval:
    """Return the log of the mean of exp(-t |x - y|^2) over all pairs of samples (Wang & Isola 2020, eq. 2).

    0 for collapsed features; the lower, the more evenly they are spread. NaN for fewer than two samples.

    `unit`: (N, D) features of length 1; `groups`: (N,) the group of each sample; None: each stands for itself.

    >>> round(uniformity(np.array([[1.0, 0.0], [-1.0, 0.0]]))[0], 4)
    -8.0
    """
    n = len(unit)
    if n < 2:
        return _NAN
    each = np.zeros(n)
    for start in range(0, n, _ROWS):
        part = np.asarray(unit[start : start + _ROWS], dtype=np.float64)
        for other in range(0, n, _ROWS):
            products = part @ np.asarray(unit[other : other + _ROWS], dtype=np.float64).T
            each[start : start + len(part)] += np.exp(-2 * t * (1 - products)).sum(axis=1)
    each = (each - 1) / (n - 1)
    mean = float(each.mean())
    # A sample takes part in pairs from both sides.
    return influence_interval(float(np.log(mean)), 2 * each / mean, Units.of(n, groups))


def alignment(unit: Matrix, classes: IntArray, groups: IntArray | None = None) -> Interval:
    """Return the mean of |x - y|^2 over all pairs of different samples of one class, 0 to 4; lower is closer.

    `unit`: (N, D) features of length 1; `classes`: (N,) class numbers; `groups`: (N,) the group of each sample; None:
    each stands for itself.

    >>> round(alignment(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), np.array([0, 0, 1]))[0], 4)
    2.0
    """
    # Wang & Isola 2020, eq. 1 with exponent 2; their pairs are two views of one image, these are two images of one
    # class. NaN where no class has two samples.
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
        return _NAN
    value = float(distance.sum() / pairs.sum())
    return influence_interval(value, 2 * (distance - value * pairs) / pairs.mean(), Units.of(len(given), groups))


def feature_std(unit: Matrix, groups: IntArray | None = None) -> Interval:
    """Return the mean over the columns of the standard deviation, times sqrt(D): 1 if spread evenly, 0 if collapsed.

    Chen & He 2021, section 4.1.

    `unit`: (N, D) features of length 1; `groups`: (N,) the group of each sample; None: each stands for itself.

    >>> round(feature_std(np.array([[1.0, 0.0], [-1.0, 0.0]]))[0], 4)
    0.7071
    """
    given = np.asarray(unit, dtype=np.float64)
    scale = given.shape[1] ** 0.5
    squares = (given - given.mean(axis=0)) ** 2
    variance = squares.mean(axis=0)
    std = np.sqrt(variance)
    slope = np.divide(1, 2 * std, out=np.zeros_like(std), where=std > 0) * scale / given.shape[1]
    return influence_interval(float(std.mean() * scale), squares @ slope, Units.of(len(given), groups))


def unit_length(x: Matrix) -> FloatArray:
    """Return features (N, D) divided by their length, in float64; a row of zeros stays zero.

    >>> unit_length(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    given = np.asarray(x, dtype=np.float64)
    length = np.linalg.norm(given, axis=1, keepdims=True)
    return given / np.where(length > 0, length, 1)


def influence_interval(value: float, influence: FloatArray, units: Units, bounds: Bounds = ANY) -> Interval:
    """Return a statistic with its 95 % interval by the infinitesimal jackknife.

    `influence`: (N,) derivative of the statistic with respect to the weight of each sample, times N.

    >>> influence_interval(0.5, np.array([0.0, 1.0, 0.0, 1.0]), Units.of(4, None))[0]
    0.5
    """
    return value, *ends(value, float(mean_errors(influence[:, None], units)[0]), size=units.number, bounds=bounds)


# Kornblith et al. 2019: CKA(X, Y) = HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y, Y)) on all samples at once, no minibatches.
# HSIC is computed from the (D1, D2) product of the two, or from their (N, N) Gram matrices, whichever is smaller; the
# value is the same.
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
        self.blocks = [slice(start, start + _CENTRED_ROWS) for start in range(0, len(x), _CENTRED_ROWS)]
        self.mean = np.sum([x[block].sum(axis=0, dtype=np.float64) for block in self.blocks], axis=0) / len(x)
        self._gram: FloatArray | None = None
        centred = [self.part(block) for block in self.blocks]
        # The diagonal of the Gram matrix. Centred features sum to 0, so each row without it sums to minus this.
        self.square = np.concatenate([np.einsum("nd,nd->n", part, part) for part in centred])
        # Rounding leaves a constant column not quite at its mean.
        self.constant = bool(self.square.max() <= (1e-14 * np.abs(self.mean).max()) ** 2 * x.shape[1])

    def part(self, block: slice) -> FloatArray:
        """Return a block of centred rows in float64."""
        return np.asarray(self.x[block].astype(np.float64) - self.mean)

    def gram(self) -> FloatArray:
        """Return the Gram matrix of the centred samples (N, N)."""
        if self._gram is None:
            whole = np.concatenate([self.part(block) for block in self.blocks])
            self._gram = whole @ whole.T
        return self._gram

    def hsic(self, other: "_Side") -> float:
        """Return HSIC with another layer, up to a factor that cancels in CKA; 0 for constant features."""
        if self.constant or other.constant:
            return 0.0
        # the inner product of both Gram matrices, which is |X'Y|^2
        if len(self.x) ** 2 < self.x.shape[1] * other.x.shape[1]:
            product = float(np.vdot(self.gram(), other.gram()))
        else:
            total = np.zeros((self.x.shape[1], other.x.shape[1]))
            for block in self.blocks:
                total += self.part(block).T @ other.part(block)
            product = float(np.vdot(total, total))
        if not self.debiased:
            return product
        n = len(self.x)
        # With zero diagonals: tr(KL) + 1'K1 1'L1 / ((n-1)(n-2)) - 2/(n-2) 1'KL1
        trace = product - float(self.square @ other.square)
        ones = self.square.sum() * other.square.sum() / ((n - 1) * (n - 2))
        return float(trace + ones - 2 / (n - 2) * (self.square @ other.square))
