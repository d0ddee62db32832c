"""Comparisons of images: choices between two candidates, as persons make them."""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

CHOICE_COLUMNS = ("similarity to the right candidate minus similarity to the left one",)
"""Score of a triplet."""

CHOICE_ACCURACY = Metric(
    "choice_accuracy", "Share of triplets with the choice of persons",
    "%", 1, RATE, needs="choices", labels=("triplets",), chance=0.5,
)  # fmt: skip


def agreement(preferences: FloatArray, choices: npt.NDArray[np.integer]) -> FloatArray:
    """Return 1 for triplets with the right choice, 0 for the others and one half where both candidates are equal, (N,).

    `preferences`: (N,), above 0 for the right candidate, below 0 for the left one; `choices`: (N,), 0: left; 1: right.

    >>> agreement(np.array([0.2, -0.1, 0.0]), np.array([1, 1, 0])).tolist()
    [1.0, 0.0, 0.5]
    """
    return np.asarray(0.5 + 0.5 * np.sign(preferences) * np.where(choices == 1, 1, -1))


def choice_measure(scores: npt.NDArray[np.floating], choices: npt.NDArray[np.integer]) -> Measure:
    """Return the accuracy of N triplets as a function of their weights.

    `scores`: (N, 1), see `CHOICE_COLUMNS`; `choices`: (N,), 0: left; 1: right.
    """
    each = agreement(scores[:, 0].astype(np.float64), choices)[:, None]
    return Measure(
        (CHOICE_ACCURACY,),
        lambda weights: weights @ each / weights.sum(axis=1, keepdims=True),
        per_sample=each,
        binary=bool((each != 0.5).all()),
    )
