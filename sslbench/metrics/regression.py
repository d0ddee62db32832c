"""Metrics of predicted numbers (R2, errors, rank correlation) and of predicted places (shares within a distance, km).

All are functions of the weights of the samples, so that intervals come from the half-samples of `intervals`. Several
numbers per sample are scored one by one and averaged, as scikit-learn does by default.
"""

import math

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import CORRELATION, LOSS, RATE, Metric

R2 = Metric(
    "r2", "Share of explained variance (R2)", "fraction", 1, (-math.inf, 1.0), needs="scores", labels=("value",)
)
MAE = Metric(
    "mae", "Mean absolute error", "units of the labels", -1, LOSS, needs="scores", labels=("value",), label_units=True
)
RMSE = Metric(
    "rmse", "Root mean square error",
    "units of the labels", -1, LOSS, needs="scores", labels=("value",), label_units=True,
)  # fmt: skip
SPEARMAN = Metric(
    "spearman", "Spearman's rank correlation",
    "%", 1, CORRELATION, needs="scores", labels=("value", "rated_pairs"), chance=0.0,
)  # fmt: skip
EARTH_RADIUS = 6371.0
"""Mean radius of the earth in km."""
# Of Hays and Efros (2008) and Vo et al. (2017), on a sphere: street, city, region, country, continent.
DISTANCES = {"street": 1, "city": 25, "region": 200, "country": 750, "continent": 2500}
"""Scale -> distance in km within which an image counts as located."""
ACCURACY = tuple(
    Metric(
        f"accuracy@{km}km",
        f"Share of images located within {km:,} km ({scale})",
        "%",
        1,
        RATE,
        needs="places",
        labels=("value",),
    )
    for scale, km in DISTANCES.items()
)
"""Share of images located within each of `DISTANCES`."""
REGION = ACCURACY[tuple(DISTANCES).index("region")]
"""The leading metric: im2gps is reported at 200 km since its first publication."""
MEDIAN_ERROR = Metric(
    "median_error_km", "Median distance to the true place", "km", -1, LOSS, needs="places", labels=("value",)
)
MEAN_ERROR = Metric(
    "mean_error_km", "Mean distance to the true place", "km", -1, LOSS, needs="places", labels=("value",)
)
PLACES = (*ACCURACY, MEDIAN_ERROR, MEAN_ERROR)
"""All metrics of predicted places."""


def r2(values: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Return R2, the share of explained variance: 1 at best, 0 for the mean of the samples, negative below that.

    `values`: (N,) or (N, C), true numbers; returns the mean over the C numbers; NaN where one of them does not vary
    (scikit-learn's `r2_score`).

    >>> r2([1.0, 2.0, 3.0], [1.0, 2.0, 2.0])
    0.5
    """
    return float(np.mean(r2_each(values, predicted)))


def r2_each(values: npt.ArrayLike, predicted: npt.ArrayLike) -> FloatArray:
    """Return R2 of each number (C,); arguments as for `r2`.

    >>> r2_each([[1.0, 1.0], [2.0, 3.0]], [[1.0, 2.0], [2.0, 2.0]]).tolist()
    [1.0, 0.0]
    """
    true = _columns(values)
    each = Errors(true, _columns(predicted)).explained(np.ones((1, len(true))))
    return np.asarray(each[0])


class Errors:
    """R2, mean absolute error and root mean square error of weighted samples."""

    metrics = (R2, MAE, RMSE)

    def __init__(self, values: npt.ArrayLike, predicted: npt.ArrayLike) -> None:
        """Subtract the predictions.

        `values`: (N,) or (N, C), true numbers.
        """
        true = _columns(values)
        difference = true - _columns(predicted)
        self._squares, self._lengths = difference**2, np.abs(difference)
        # Centred, so that sums of squares of large values lose no digits.
        self._true = true - true.mean(axis=0)

    def explained(self, counts: FloatArray) -> FloatArray:
        """Return R2 of each number (R, C) for R weightings (R, N)."""
        total = counts.sum(axis=1, keepdims=True)
        mean = counts @ self._true / total
        spread = counts @ self._true**2 - total * mean**2
        left = counts @ self._squares
        # Rounding leaves a tiny variance of equal values.
        varies = spread > 1e-12 * np.maximum(counts @ self._true**2, np.finfo(np.float64).tiny)
        return np.where(varies, 1 - left / np.where(varies, spread, 1), np.nan)

    def statistic(self, counts: FloatArray) -> FloatArray:
        """Return R2, mean absolute error and root mean square error (R, 3) for R weightings (R, N)."""
        total = counts.sum(axis=1, keepdims=True)
        lengths, squares = counts @ self._lengths / total, counts @ self._squares / total
        parts = (self.explained(counts), lengths, np.sqrt(squares))
        return np.column_stack([part.mean(axis=1) for part in parts])


class Ranks:
    """Spearman's rank correlation of values and predictions of weighted samples; equal values share their mean rank.

    >>> Ranks([1.0, 2.0, 3.0], [10.0, 20.0, 300.0]).correlation(np.ones((1, 3))).tolist()
    [[1.0]]
    """

    def __init__(self, values: npt.ArrayLike, predicted: npt.ArrayLike) -> None:
        """Rank values and predictions, both (N,) or (N, C)."""
        self._pairs = [
            (_Order(true), _Order(found)) for true, found in zip(_columns(values).T, _columns(predicted).T, strict=True)
        ]

    def correlation(self, counts: FloatArray) -> FloatArray:
        """Return Pearson's correlation of the mean ranks, averaged over the numbers (R, 1), for weights (R, N)."""
        correlations = []
        for one, other in self._pairs:
            a, b = one.ranks(counts), other.ranks(counts)
            both = np.sqrt(np.sum(counts * a * a, axis=1) * np.sum(counts * b * b, axis=1))
            together = np.sum(counts * a * b, axis=1)
            correlations.append(np.divide(together, both, out=np.full_like(both, np.nan), where=both > 0))
        return np.asarray(np.mean(correlations, axis=0))[:, None]


def number_measures(values: npt.ArrayLike, predicted: npt.ArrayLike) -> list[Measure]:
    """Return the metrics of predicted numbers as functions of the weights of the samples."""
    errors, ranks = Errors(values, predicted), Ranks(values, predicted)
    return [
        Measure((R2,), lambda weights: errors.statistic(weights)[:, :1]),
        Measure((MAE, RMSE), lambda weights: errors.statistic(weights)[:, 1:]),
        Measure((SPEARMAN,), ranks.correlation),
    ]


class _Order:
    """Order of N numbers, with their ties."""

    def __init__(self, values: FloatArray) -> None:
        _, self._group, sizes = np.unique(values, return_inverse=True, return_counts=True)
        self._order = np.argsort(self._group, kind="stable")
        self._starts = np.append(0, np.cumsum(sizes)[:-1])

    def ranks(self, counts: FloatArray) -> FloatArray:
        """Return the centred mean ranks (R, N), where sample i occurs counts[:, i] times."""
        each = np.add.reduceat(counts[:, self._order], self._starts, axis=1)
        middle = np.cumsum(each, axis=1) - each / 2
        return np.asarray((middle - counts.sum(axis=1, keepdims=True) / 2)[:, self._group])


def _columns(values: npt.ArrayLike) -> FloatArray:
    found = np.asarray(values, dtype=np.float64)
    return found[:, None] if found.ndim == 1 else found


def unit_vectors(places: npt.ArrayLike) -> FloatArray:
    """Return points on the unit sphere (N, 3) of latitudes and longitudes (N, 2) in degrees.

    >>> unit_vectors([[0.0, 90.0], [90.0, 0.0]]).round(6).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    latitude, longitude = np.radians(np.asarray(places, np.float64)).T
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)


def great_circle_distances(places: npt.ArrayLike, others: npt.ArrayLike) -> FloatArray:
    """Return the distances (N,) in km between places, by the haversine formula.

    `places`: (N, 2), latitude and longitude in degrees; `others`: (N, 2), or (2,) for one place.

    >>> paris, london = [[48.8566, 2.3522]], [[51.5074, -0.1278]]
    >>> great_circle_distances(paris, london).round().tolist()
    [344.0]
    """
    one, other = (np.radians(np.asarray(each, np.float64)) for each in (places, others))
    half = np.sin((one - other) / 2) ** 2
    chord = half[..., 0] + np.cos(one[..., 0]) * np.cos(other[..., 0]) * half[..., 1]
    # Rounding can bring opposite places above 1.
    return np.asarray(2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.clip(chord, 0.0, 1.0))))


def located_within(distances: FloatArray) -> FloatArray:
    """Return 1 where a distance (N,) in km is within that of a column of `ACCURACY`, else 0 (N, 5).

    >>> located_within(np.array([0.4, 30.0, 9000.0])).tolist()
    [[1.0, 1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]]
    """
    return np.asarray(distances[:, None] <= np.array(list(DISTANCES.values())), np.float64)


def weighted_medians(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the medians (R,) of values (N,) for weights (R, N); between two middle values their mean.

    >>> weighted_medians(np.array([5.0, 1.0, 2.0]), np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])).tolist()
    [2.0, 3.5]
    """
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[:, order], axis=1)
    half = total[:, -1:] / 2
    last = len(values) - 1
    low = np.minimum((total < half).sum(axis=1), last)
    high = np.minimum((total <= half).sum(axis=1), last)
    return np.asarray((values[order][low] + values[order][high]) / 2)
