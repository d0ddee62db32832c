"""Metrics of predicted places: shares of images within a distance of the true place, and the error in km.

Places are latitude and longitude in degrees; distances are those of great circles on a sphere of 6,371 km. The five
distances are those of Hays and Efros (2008) and Vo et al. (2017): street, city, region, country, continent.
"""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.metrics.metric import LOSS, RATE, Metric

EARTH_RADIUS = 6371.0
"""Mean radius of the earth in km."""
DISTANCES = {"street": 1, "city": 25, "region": 200, "country": 750, "continent": 2500}
"""Scale -> distance in km within which an image counts as located."""

ACCURACY = tuple(
    Metric(
        name=f"accuracy@{km}km",
        title=f"Share of images located within {km:,} km ({scale})",
        unit="%",
        direction=1,
        bounds=RATE,
        needs="places",
        labels=("value",),
    )
    for scale, km in DISTANCES.items()
)
"""Share of images located within each of `DISTANCES`."""
REGION = ACCURACY[tuple(DISTANCES).index("region")]
"""The leading metric: im2gps is reported at 200 km since its first publication."""
MEDIAN_ERROR = Metric(
    name="median_error_km",
    title="Median distance to the true place",
    unit="km",
    direction=-1,
    bounds=LOSS,
    needs="places",
    labels=("value",),
)
MEAN_ERROR = Metric(
    name="mean_error_km",
    title="Mean distance to the true place",
    unit="km",
    direction=-1,
    bounds=LOSS,
    needs="places",
    labels=("value",),
)
PLACES = (*ACCURACY, MEDIAN_ERROR, MEAN_ERROR)
"""All metrics of predicted places."""


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

    Args:
        places: (N, 2), latitude and longitude in degrees.
        others: (N, 2), or (2,) for one place.

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
