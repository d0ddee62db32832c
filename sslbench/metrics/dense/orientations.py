"""Predicted orientations of the structures of images: angles modulo 180 degrees, weighted by coherence.

Directions are vectors of doubled angles, (cos 2t, sin 2t); those of the truth have the coherence as their length.
"""

import dataclasses

import numpy as np

from sslbench.arrays import FloatArray, Matrix
from sslbench.metrics.dense.pooling import means
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

BELOW = (11.25, 22.5)
"""Angles in degrees below which, strictly, the share of pixels is counted."""
COLUMNS = ("coherence", "mean angle", "median angle", *(f"below {limit:g}" for limit in BELOW))
"""Values of an image, see `orientation_row`."""

ORIENTATION_ERROR = Metric(
    name="orientation_error",
    title="Error of the orientation, weighted by coherence, mean over images",
    unit="degrees",
    direction=-1,
    bounds=(0.0, 90.0),
    needs="orientations",
    labels=("orientation",),
    chance=45.0,
)
ORIENTATION_MEDIAN = dataclasses.replace(
    ORIENTATION_ERROR, name="orientation_median", title="Median error of the orientation, mean over images", chance=None
)
ORIENTATION_BELOW = tuple(
    dataclasses.replace(
        ORIENTATION_ERROR,
        name=f"orientation@{limit:g}",
        title=f"Coherence of pixels with an error of the orientation below {limit:g} degrees, mean over images",
        unit="%",
        direction=1,
        bounds=RATE,
        chance=limit / 90,
    )
    for limit in BELOW
)
ORIENTATION = (ORIENTATION_ERROR, ORIENTATION_MEDIAN, *ORIENTATION_BELOW)


def orientation_row(predicted: Matrix, target: Matrix) -> FloatArray:
    """Return the values of one image in the order of `COLUMNS`, (5,).

    A median is the smallest error up to which half of the coherence lies. A prediction of length 0 errs by 45 degrees,
    as a random one does on average.

    >>> true = np.array([[[1.0, 1.0]], [[0.0, 0.0]]])  # both along x
    >>> orientation_row(np.array([[[2.0, 0.0]], [[0.0, 1.0]]]), true).tolist()  # along x, and 45 degrees to it
    [2.0, 22.5, 0.0, 0.5, 0.5]

    Args:
        predicted: (2, H, W), of any length.
        target: (2, H, W); pixels with NaN do not count.

    Returns:
        Zeros without any coherence.
    """
    known = ~np.isnan(target).any(axis=0)
    (a, b), (x, y) = predicted[:, known].astype(np.float64), target[:, known].astype(np.float64)
    weights = np.hypot(x, y)
    total = weights.sum()
    if not total > 0:
        return np.zeros(len(COLUMNS))
    angles = np.degrees(np.arctan2(np.abs(a * y - b * x), a * x + b * y)) / 2
    angles[(a == 0) & (b == 0)] = 45.0
    order = np.argsort(angles, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), total / 2))
    median = angles[order[min(place, len(order) - 1)]]
    below = [weights[angles < limit].sum() / total for limit in BELOW]
    return np.array([total, weights @ angles / total, median, *below])


def orientation_measures(rows: FloatArray) -> list[Measure]:
    """Return the metrics `ORIENTATION` of N images as functions of their weights; those without coherence do not count.

    >>> (measure,) = orientation_measures(np.array([[2, 10, 10, 0.5, 1], [0, 0, 0, 0, 0], [9, 20, 20, 0, 1]]))
    >>> measure.statistic(np.ones((1, 3)))[0].tolist()
    [15.0, 15.0, 0.25, 1.0]

    Args:
        rows: (N, 5), see `orientation_row`.
    """
    values = np.where(rows[:, :1] > 0, rows[:, 1:], np.nan)
    return [Measure(ORIENTATION, lambda weights: means(values, weights))]
