"""Metrics of low-level signals, of the orientation of structures, and of the relative pose of two cameras.

Orientations are vectors of doubled angles, (cos 2t, sin 2t), since t and t + 180 degrees are one; those of the truth
have the coherence as their length. Rotations are quaternions, w first.
"""

import dataclasses

import numpy as np

from sslbench.arrays import FloatArray, Matrix
from sslbench.metrics.dense.pooling import means
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import CORRELATION, LOSS, RATE, Metric
from sslbench.metrics.regression import weighted_medians

SIGNAL_CORRELATION = Metric(
    name="signal_correlation",
    title="Correlation of predicted and true signal, mean over images",
    unit="correlation",
    direction=1,
    bounds=CORRELATION,
    needs="signals",
    labels=("signal",),
    chance=0.0,
)
SIGNAL_RMSE = Metric(
    name="signal_rmse",
    title="Root mean square error of the signal, mean over images",
    unit="units of the signal",
    direction=-1,
    bounds=LOSS,
    needs="signals",
    labels=("signal",),
    label_units=True,
)
SIGNAL_MAE = dataclasses.replace(
    SIGNAL_RMSE, name="signal_mae", title="Mean absolute error of the signal, mean over images"
)
SIGNALS = (SIGNAL_CORRELATION, SIGNAL_RMSE, SIGNAL_MAE)
SIGNAL_COLUMNS = ("correlation", "root mean square error", "mean absolute error")
"""Values of an image, see `signal_row`."""


def signal_row(predicted: Matrix, target: Matrix) -> FloatArray:
    """Return correlation (Pearson), root mean square error and mean absolute error of one image, (3,).

    A constant prediction knows nothing of the places: its correlation is 0. So is that with a constant target. Without
    a known pixel all three are NaN.

    >>> signal_row(np.array([[1.0, 3.0]]), np.array([[0.0, 1.0]])).round(3).tolist()
    [1.0, 1.581, 1.5]

    Args:
        predicted: (H, W).
        target: (H, W); pixels with NaN do not count.
    """
    known = ~np.isnan(target)
    if not known.any():
        return np.full(3, np.nan)
    x, y = predicted[known].astype(np.float64), target[known].astype(np.float64)
    error = x - y
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    # The sums of squares of a constant are not exactly 0.
    least = 1e-12 * known.sum() * max(1.0, float(np.abs(y).max()) ** 2)
    correlation = float(np.clip(x @ y / scale, -1, 1)) if min(x @ x, y @ y) > least else 0.0
    return np.array([correlation, np.sqrt(np.mean(error**2)), np.abs(error).mean()])


def signal_measures(rows: FloatArray) -> list[Measure]:
    """Return the metrics `SIGNALS` of N images as functions of their weights; images with NaN are left out.

    >>> (measure,) = signal_measures(np.array([[0.5, 1, 1], [1, 2, 3]]))
    >>> measure.statistic(np.ones((1, 2)))[0].tolist()
    [0.75, 1.5, 2.0]

    Args:
        rows: (N, 3), see `signal_row`.
    """
    complete = not np.isnan(rows).any()
    return [Measure(SIGNALS, lambda weights: means(rows, weights), per_sample=rows if complete else None)]


BELOW = (11.25, 22.5)
"""Angles in degrees below which, strictly, the share of pixels is counted."""
ORIENTATION_COLUMNS = ("coherence", "mean angle", "median angle", *(f"below {limit:g}" for limit in BELOW))
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
    """Return the values of one image in the order of `ORIENTATION_COLUMNS`, (5,).

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
        return np.zeros(len(ORIENTATION_COLUMNS))
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


POSE_COLUMNS = ("qw", "qx", "qy", "qz", "tx", "ty", "tz")
"""Predicted pose of a pair: quaternion of the rotation, of any length, and translation, NaN where there is none."""
WITHIN = (15.0, 30.0)
"""Angles in degrees up to which, inclusive, the share of pairs is counted."""

ROTATION_ERROR = Metric(
    name="rotation_error",
    title="Angle between predicted and true relative rotation, mean",
    unit="degrees",
    direction=-1,
    bounds=(0.0, 180.0),
    needs="relative_poses",
    labels=("camera_pairs",),
)
ROTATION_MEDIAN = dataclasses.replace(
    ROTATION_ERROR, name="rotation_median", title="Angle between predicted and true relative rotation, median"
)
ROTATION_WITHIN = tuple(
    dataclasses.replace(
        ROTATION_ERROR,
        name=f"rotation@{limit:g}",
        title=f"Pairs with an error of the rotation up to {limit:g} degrees",
        unit="%",
        direction=1,
        bounds=RATE,
    )
    for limit in WITHIN
)
TRANSLATION_ERROR = dataclasses.replace(
    ROTATION_ERROR,
    name="translation_error",
    title="Distance of predicted and true relative translation, mean",
    unit="units of the data",
    bounds=LOSS,
    label_units=True,
)


def rotation_angles(predicted: FloatArray, true: FloatArray) -> FloatArray:
    """Return the angles (N,) in degrees, 0 to 180, between rotations given as quaternions (N, 4), w first.

    Quaternions have any length; q and -q are one rotation. One of length 0 counts as no rotation.

    >>> quarter = [[1, 0, 0, 1]]  # a quarter turn about z
    >>> rotation_angles(np.array(quarter), np.array([[-2.0, 0, 0, 0]])).round(6).tolist()
    [90.0]
    """
    a, b = (np.where(q.any(axis=1, keepdims=True), q, [1.0, 0.0, 0.0, 0.0]) for q in (predicted, true))
    a, b = (q / np.linalg.norm(q, axis=1, keepdims=True) for q in (a, b))
    # The arcus cosine of a rounded product would lose half of the digits of small angles.
    a = np.where(np.sum(a * b, axis=1, keepdims=True) < 0, -a, a)
    half = 2 * np.arctan2(np.linalg.norm(a - b, axis=1), np.linalg.norm(a + b, axis=1))
    return np.asarray(np.degrees(2 * half))


def pose_measures(scores: FloatArray, values: FloatArray) -> list[Measure]:
    """Return the metrics of N pairs as functions of their weights; that of translations where they are known.

    Args:
        scores: (N, 7), see `POSE_COLUMNS`.
        values: (N, 4) or (N, 7), the true ones.
    """
    angles = rotation_angles(scores[:, :4], values[:, :4])
    each = np.column_stack([angles, *((angles <= limit).astype(np.float64) for limit in WITHIN)])
    measures = [
        _means((ROTATION_ERROR, *ROTATION_WITHIN), each),
        Measure((ROTATION_MEDIAN,), lambda weights: weighted_medians(angles, weights)[:, None]),
    ]
    if values.shape[1] == len(POSE_COLUMNS):
        distances = np.linalg.norm(scores[:, 4:] - values[:, 4:], axis=1)
        measures.append(_means((TRANSLATION_ERROR,), distances[:, None]))
    return measures


def _means(metrics: tuple[Metric, ...], each: FloatArray) -> Measure:
    """Return metrics that are means of values (N, M) of the samples."""
    return Measure(metrics, lambda weights: weights @ each / weights.sum(axis=1, keepdims=True), per_sample=each)
