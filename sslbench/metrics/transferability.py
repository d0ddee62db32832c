"""Transferability scores: closed-form predictions from features and labels of a fine-tuned network's accuracy.

Each function returns the value with its 95 % interval, -+ Student's t times the standard error by the infinitesimal
jackknife (Jaeckel 1972), as in `spectrum`. The intervals cover the variance over samples, not the bias: with few
samples per dimension every score but GBC fits noise, which the scores of shuffled labels show.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Self

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix, rows_of_each
from sslbench.metrics.answers import softmax
from sslbench.metrics.intervals import Interval, Units
from sslbench.metrics.metric import ANY, LOSS, Metric
from sslbench.metrics.spectrum import influence_interval, spanned

_NEGATIVE = (-math.inf, 0.0)
# The evidence of few samples is lower, by 0.09 of 100 and 0.024 of 1,000 (docs/intervals.md).
LOGME = Metric(
    "logme", "LogME", "log evidence per sample", 1, ANY, needs="features", labels=("single",), bias_decay=0.5
)
H_SCORE = Metric("h_score", "H-score", "H-score", 1, LOSS, needs="features", labels=("single",))
H_SCORE_REGULARISED = dataclasses.replace(H_SCORE, name="h_score_regularised", title="H-score, shrunk covariance")
TRANSRATE = Metric("transrate", "TransRate", "nats", 1, ANY, needs="features", labels=("single",))
GBC = Metric("gbc", "Gaussian Bhattacharyya coefficient", "overlap", 1, _NEGATIVE, "features", labels=("single",))
LEEP = Metric("leep", "LEEP", "nats", 1, _NEGATIVE, needs="features", labels=("single",))
NCE = Metric("nce", "Negative conditional entropy (NCE)", "nats", 1, _NEGATIVE, needs="features", labels=("single",))

_ROWS = 4096  # rows per block, so that memory-mapped features are never copied whole
_DISTORTION = 1e-4  # epsilon of TransRate, as published
_LEAST_VARIANCE = 1e-4  # of a feature in a class, as the authors of GBC bound it


@dataclasses.dataclass(frozen=True)
class LabelledFeatures:
    """Features with one class per sample, and their moments in double precision.

    Attributes:
        x: (N, R) features; of fewer samples than features, rotated into the R = N dimensions that they span.
        given: (N, D) features as they were given.
        classes: (N,) class of each sample, among the C classes that have samples.
        shares: (C,) share of the samples in each class.
        mean: (R,) of all samples.
        deviations: (C, R) mean of each class minus `mean`.
        values: (R,) eigenvalues of the covariance; 0 for directions without variance.
        vectors: (R, R) its eigenvectors, in columns.
        fourth: sum over the samples of the squared squared distance from the mean.
    """

    x: Matrix
    given: Matrix
    classes: IntArray
    shares: FloatArray
    mean: FloatArray
    deviations: FloatArray
    values: FloatArray
    vectors: FloatArray
    fourth: float
    units: Units

    @classmethod
    def of(cls, x: Matrix, classes: IntArray, groups: IntArray | None = None) -> Self:
        """Return the moments of features (N, D) with classes (N,); `groups`: as for `Units.of`."""
        given, x, n = x, spanned(x), len(x)
        own = np.unique(classes, return_inverse=True)[1].astype(np.int64)
        counts = np.bincount(own)
        sums = class_sums(x, own)
        mean = sums.sum(axis=0) / n
        covariance, fourth = np.zeros((x.shape[1], x.shape[1])), 0.0
        for start in range(0, n, _ROWS):
            block = x[start : start + _ROWS].astype(np.float64) - mean
            covariance += block.T @ block / n
            fourth += float(np.sum(np.einsum("nd,nd->n", block, block) ** 2))
        values, vectors = _eigen(covariance, n)
        deviations = sums / counts[:, None] - mean
        units = Units.of(n, groups)
        return cls(x, given, own, counts / n, mean, deviations, values, vectors, fourth, units)

    def influences(self, of_block: Callable[[FloatArray, IntArray], FloatArray]) -> FloatArray:
        """Return the influence (N,) of every sample, from a function of centred rows (n, R) and their classes."""
        found = [
            of_block(self.x[start : start + _ROWS].astype(np.float64) - self.mean, self.classes[start : start + _ROWS])
            for start in range(0, len(self.x), _ROWS)
        ]
        return np.concatenate(found)

    def interval(self, metric: Metric, value: float, influence: FloatArray) -> Interval:
        """Return a value with its interval from the influence (N,) of each sample, up to a constant."""
        return influence_interval(value, influence - influence.mean(), self.units, metric.bounds)


def class_sums(x: Matrix, classes: IntArray) -> FloatArray:
    """Return the sums (C, D) of rows (N, D) over each of the classes (N,) 0 to C - 1.

    >>> class_sums(np.array([[1.0], [2.0], [4.0]]), np.array([0, 1, 1])).tolist()
    [[1.0], [6.0]]
    """
    total = np.zeros((int(classes.max()) + 1, x.shape[1]))
    for start in range(0, len(x), _ROWS):
        np.add.at(total, classes[start : start + _ROWS], x[start : start + _ROWS])
    return total


def _eigen(moments: FloatArray, n: int) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues and eigenvectors of a moment matrix of n samples; values of rounding size are 0."""
    values, vectors = np.linalg.eigh(moments)
    least = values.max(initial=0) * np.finfo(np.float64).eps * max(n, len(values))
    return np.where(values > least, values, 0), vectors


def logme(features: LabelledFeatures) -> Interval:
    """Return LogME: mean over the classes of the log evidence per sample of Bayesian linear regression on one class.

    You et al., ICML 2021, and the fixed-point iteration of You et al., JMLR 2022, as the authors' code runs it. Of R
    directions with variance among D features, alpha has the power R / 2, as in the papers' evidence; the authors' code
    has D / 2, which differs where R < D.

    >>> x = np.array([[1.0, 0.0], [2.0, 1.0], [-1.0, 0.0], [-2.0, 1.0]])
    >>> good, poor = (logme(LabelledFeatures.of(x, np.array(y)))[0] for y in ([0, 0, 1, 1], [0, 1, 1, 0]))
    >>> good > poor
    True
    """
    n, counts = len(features.x), features.shares * len(features.x)
    covariance = features.vectors * features.values @ features.vectors.T
    values, vectors = _eigen(n * (covariance + np.outer(features.mean, features.mean)), n)
    kept = values > 0
    values, vectors = values[kept][:, None], vectors[:, kept]
    products = vectors.T @ ((features.deviations + features.mean) * counts[:, None]).T  # (R, C)
    explained = products**2 / values
    rest = np.maximum(counts - explained.sum(axis=0), 0)
    alpha, beta = np.ones((2, len(counts)))
    evidence, ratio, moving = np.zeros(len(counts)), np.ones(len(counts)), np.ones(len(counts), dtype=np.bool_)
    for _ in range(11):
        ratio = np.where(moving, alpha / beta, ratio)
        used = (values / (values + ratio)).sum(axis=0)
        weight = (values * explained / (ratio + values) ** 2).sum(axis=0)
        error = (explained / (1 + values / ratio) ** 2).sum(axis=0) + rest
        alpha = np.where(moving, used / (weight + 1e-5), alpha)
        beta = np.where(moving, (n - used) / (error + 1e-5), beta)
        evidence = len(values) * np.log(alpha) + n * np.log(beta / (2 * np.pi)) - beta * error - alpha * weight
        evidence -= np.log(alpha + beta * values).sum(axis=0)
        moving &= np.abs(alpha / beta - ratio) / ratio > 1e-3
    # At the maximum the derivative by the weight of a sample is that of its own terms, the parameters held fixed.
    solution = products / (ratio + values)
    leverage = (beta / (alpha + beta * values)).sum(axis=1)

    def influence(block: FloatArray, own: IntArray) -> FloatArray:
        rotated = (block + features.mean) @ vectors
        errors = rotated @ solution
        errors[np.arange(len(own)), own] -= 1
        return np.asarray(-(errors**2 @ beta + rotated**2 @ leverage) / (2 * len(counts)))

    return features.interval(LOGME, float(evidence.mean()) / (2 * n), features.influences(influence))


def h_score(features: LabelledFeatures) -> Interval:
    """Return the H-score tr(cov(f)^-1 cov(E[f | y])) (Bao et al., ICIP 2019, definition 2), 0 to C - 1.

    >>> x = np.array([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [-1.0, 1.0]])
    >>> round(h_score(LabelledFeatures.of(x, np.array([0, 0, 1, 1])))[0], 6)
    1.0
    """
    return _h_score(features, H_SCORE, shrinkage=0.0)


def h_score_regularised(features: LabelledFeatures) -> Interval:
    """Return the H-score with the covariance of Ledoit and Wolf (Ibrahim et al. 2022, "Newer is not always better").

    >>> x = np.array([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [-1.0, 1.0]])
    >>> found = LabelledFeatures.of(x, np.array([0, 0, 1, 1]))
    >>> 0 < h_score_regularised(found)[0] < h_score(found)[0]
    True
    """
    return _h_score(features, H_SCORE_REGULARISED, ledoit_wolf(features))


def ledoit_wolf(features: LabelledFeatures) -> float:
    """Return the shrinkage of Ledoit and Wolf (2004), 0 to 1, as scikit-learn computes it.

    >>> ledoit_wolf(LabelledFeatures.of(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([0, 1])))
    0.0
    """
    n, width = features.given.shape
    squares = float(np.sum(features.values**2))
    spread = squares - float(features.values.sum()) ** 2 / width
    noise = min((features.fourth / n - squares) / n, spread)
    return noise / spread if noise > 0 else 0.0


def _h_score(features: LabelledFeatures, metric: Metric, shrinkage: float) -> Interval:
    n, width = features.given.shape
    variance, kept = float(features.values.sum()), 1 - shrinkage
    values = kept * features.values + shrinkage * variance / width
    inverse = np.divide(1, values, out=np.zeros_like(values), where=values > 0)
    rotated = features.deviations @ features.vectors * inverse
    directions = features.vectors @ rotated.T  # (R, C): the inverse covariance times the deviations
    own_terms = np.einsum("cd,dc->c", features.deviations, directions)
    value = kept * float(features.shares @ own_terms)
    lengths = float(features.shares @ np.sum(directions**2, axis=0))  # of the directions, squared
    # Derivatives of the value by the shrinkage, and of the shrinkage by the moments that it follows from.
    by_shrinkage = float(features.shares @ (rotated**2 @ features.values)) - lengths * variance / width
    by_shrinkage = kept * by_shrinkage - float(features.shares @ own_terms)
    spread = n * (float(np.sum(features.values**2)) - variance**2 / width)
    by_moments = by_shrinkage / spread if 0 < shrinkage < 1 else 0.0

    def influence(block: FloatArray, own: IntArray) -> FloatArray:
        products = block @ directions
        squares = np.einsum("nd,nd->n", block, block)
        between = 2 * products[np.arange(len(own)), own] - own_terms[own]
        within = kept * (products**2 @ features.shares) + shrinkage / width * lengths * squares
        found = kept * (between - within)
        if by_moments:
            quadratic = 2 * ((block @ features.vectors) ** 2 @ features.values)
            of_spread = n * (quadratic - 2 * variance / width * squares)
            found += by_moments * (squares**2 - quadratic - shrinkage * of_spread)
        return np.asarray(found)

    return features.interval(metric, value, features.influences(influence))


def transrate(features: LabelledFeatures) -> Interval:
    """Return TransRate: coding rate of all features minus the mean over the classes of theirs, distortion 1e-4.

    Huang et al., ICML 2022, equation 5 and the listing of appendix A; features are centred and not scaled.

    >>> x = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> apart, mixed = (transrate(LabelledFeatures.of(x, np.array(y)))[0] for y in ([0, 0, 1, 1], [0, 1, 0, 1]))
    >>> apart > mixed
    True
    """
    shrunk = features.values / _DISTORTION
    value = 0.5 * float(np.log1p(shrunk).sum())
    inverse = features.vectors / (1 + shrunk) @ features.vectors.T / (2 * _DISTORTION)
    each = features.influences(lambda block, own: np.einsum("nd,nd->n", block @ inverse, block))
    through_mean, number = np.zeros(features.x.shape[1]), len(features.shares)
    for c, rows in enumerate(rows_of_each(features.classes)):
        rate, own, direction = _class_rate(features.x[rows].astype(np.float64) - features.mean)
        value -= rate / number
        each[rows] -= own / (features.shares[c] * number)
        through_mean += direction / number
    each += features.influences(lambda block, own: np.asarray(block @ through_mean))
    return features.interval(TRANSRATE, value, each)


def _class_rate(x: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    """Return the coding rate of centred rows (n, R), the influence (n,) of each, and that of the mean (R,)."""
    n, width = x.shape
    scale = 1 / (n * _DISTORTION)
    if n <= width:
        gram = scale * (x @ x.T)
        inner = np.linalg.inv(np.eye(n) + gram)
        own = n * (1 - np.diag(inner)) / 2  # of gram (I + gram)^-1
        direction = x.T @ inner.sum(axis=1) * scale
    else:
        gram = scale * (x.T @ x)
        inner = np.linalg.inv(np.eye(width) + gram)
        own = np.einsum("nd,nd->n", x @ inner, x) / (2 * _DISTORTION)
        direction = inner @ x.sum(axis=0) * scale
    rate = 0.5 * float(np.linalg.slogdet(np.eye(len(gram)) + gram)[1])
    return rate, own - own.mean(), direction


def gbc(features: LabelledFeatures) -> Interval:
    """Return minus the sum over ordered pairs of classes of exp(-Bhattacharyya distance) of spherical Gaussians.

    Pandy et al., CVPR 2022, equations 2 to 4, as the authors' code: the logarithms of the variances count once, not
    once per dimension, and no variance is below 1e-4. 0 for classes that do not overlap.

    >>> x = np.array([[1.0], [1.5], [-1.0], [-1.5]])
    >>> round(gbc(LabelledFeatures.of(x, np.array([0, 0, 1, 1])))[0], 6)
    -7e-06
    """
    x, own, (n, width) = features.given, features.classes, features.given.shape
    counts = features.shares[:, None] * n
    means = class_sums(x, own) / counts
    variances = np.zeros_like(means)
    for start in range(0, n, _ROWS):
        rows = own[start : start + _ROWS]
        np.add.at(variances, rows, (x[start : start + _ROWS] - means[rows]) ** 2)
    variances /= counts
    free = variances > _LEAST_VARIANCE
    spread = np.maximum(variances, _LEAST_VARIANCE).mean(axis=1)
    both = (spread[:, None] + spread) / 2
    squares = np.einsum("cd,cd->c", means, means)
    apart = np.maximum(squares[:, None] + squares - 2 * means @ means.T, 0)
    overlap = np.exp(-apart / both / 8 - np.log(both / np.sqrt(np.outer(spread, spread))) / 2)
    np.fill_diagonal(overlap, 0)
    pull = overlap / both / 2
    by_mean = pull.sum(axis=1)[:, None] * means - pull @ means
    by_spread = np.sum(overlap * (1 / (2 * both) - 1 / (2 * spread[:, None]) - apart / (8 * both**2)), axis=1)
    each = np.empty(n)
    for start in range(0, n, _ROWS):
        rows = own[start : start + _ROWS]
        block = x[start : start + _ROWS] - means[rows]
        moved = np.einsum("nd,nd->n", block, by_mean[rows])
        widened = (block**2 * free[rows]).sum(axis=1) - (variances * free).sum(axis=1)[rows]
        each[start : start + _ROWS] = (moved + by_spread[rows] * widened / width) / features.shares[rows]
    return features.interval(GBC, -float(overlap.sum()), each)


def of_source_classes(
    logits: Callable[[Matrix], FloatArray], x: Matrix, classes: IntArray, groups: IntArray | None = None
) -> dict[str, Interval]:
    """Return LEEP (Nguyen et al., ICML 2020, equations 1 and 2) and NCE (Tran et al., ICCV 2019, equation 6).

    Both are at most 0: the mean log probability of the class, given the source classes that a classifier predicts:
    all by their probabilities, or the most probable one.

    `logits`: function from features (n, D) to those of Z source classes (n, Z); `classes`: (N,).

    >>> found = of_source_classes(lambda x: 50.0 * x, np.eye(2)[[0, 0, 1, 1]], np.array([0, 0, 1, 1]))
    >>> round(found["leep"][0], 6) + 0.0, round(found["nce"][0], 6) + 0.0
    (0.0, 0.0)
    """
    own, units = np.unique(classes, return_inverse=True)[1].astype(np.int64), Units.of(len(x), groups)

    def blocks() -> Iterator[tuple[slice, IntArray, FloatArray]]:
        for start in range(0, len(x), _ROWS):
            rows = slice(start, start + _ROWS)
            yield rows, own[rows], softmax(logits(x[rows]))

    joint, predicted = np.zeros((int(own.max()) + 1, logits(x[:1]).shape[1])), np.empty(len(x), dtype=np.int64)
    for rows, labels, source in blocks():
        np.add.at(joint, labels, source)
        predicted[rows] = source.argmax(axis=1)
    marginal = np.maximum(joint.sum(axis=0), 1e-300)
    conditional = joint / marginal
    log, gradient = np.empty(len(x)), np.zeros_like(joint)
    for rows, labels, source in blocks():
        probability = np.einsum("nz,nz->n", conditional[labels], source)
        log[rows] = np.log(probability)
        np.add.at(gradient, labels, source / probability[:, None])
    # A sample also moves P(class | source class), by which all samples are scored.
    gradient /= marginal
    lost, each = np.sum(gradient * conditional, axis=0), log.copy()
    for rows, labels, source in blocks():
        each[rows] += np.einsum("nz,nz->n", source, gradient[labels]) - source @ lost
    table = np.zeros_like(joint)
    np.add.at(table, (own, predicted), 1)
    entropy = np.log((table / np.maximum(table.sum(axis=0), 1))[own, predicted])
    return {
        LEEP.name: influence_interval(float(log.mean()), each - each.mean(), units, LEEP.bounds),
        NCE.name: influence_interval(float(entropy.mean()), entropy - entropy.mean(), units, NCE.bounds),
    }


SCORES: tuple[tuple[Metric, Callable[[LabelledFeatures], Interval]], ...] = (
    (LOGME, logme),
    (H_SCORE, h_score),
    (H_SCORE_REGULARISED, h_score_regularised),
    (TRANSRATE, transrate),
    (GBC, gbc),
)
"""Scores of features and classes alone."""
