"""Comparisons of images: choices between two candidates, as persons make them; relative poses of two cameras."""

import dataclasses

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.metrics.geolocation import weighted_medians
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import LOSS, RATE, Metric

CHOICE_COLUMNS = ("similarity to the right candidate minus similarity to the left one",)
"""Score of a triplet."""

CHOICE_ACCURACY = Metric(
    name="choice_accuracy",
    title="Share of triplets with the choice of persons",
    unit="%",
    direction=1,
    bounds=RATE,
    needs="choices",
    labels=("triplets",),
    chance=0.5,
)


def agreement(preferences: FloatArray, choices: npt.NDArray[np.integer]) -> FloatArray:
    """Return 1 for triplets with the right choice, 0 for the others and one half where both candidates are equal, (N,).

    >>> agreement(np.array([0.2, -0.1, 0.0]), np.array([1, 1, 0])).tolist()
    [1.0, 0.0, 0.5]

    Args:
        preferences: (N,), above 0 for the right candidate, below 0 for the left one.
        choices: (N,), 0: left; 1: right.
    """
    return np.asarray(0.5 + 0.5 * np.sign(preferences) * np.where(choices == 1, 1, -1))


def choice_measure(scores: npt.NDArray[np.floating], choices: npt.NDArray[np.integer]) -> Measure:
    """Return the accuracy of N triplets as a function of their weights.

    Args:
        scores: (N, 1), see `CHOICE_COLUMNS`.
        choices: (N,), 0: left; 1: right.
    """
    each = agreement(scores[:, 0].astype(np.float64), choices)[:, None]
    return Measure(
        (CHOICE_ACCURACY,),
        lambda weights: weights @ each / weights.sum(axis=1, keepdims=True),
        per_sample=each,
        binary=bool((each != 0.5).all()),
    )


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
