"""Joints of persons that are followed through videos: PCK by the size of the person.

As in the evaluation of JHMDB by Li et al. 2019 (UVC) and Jabri et al. 2020 (CRW): a joint is right within a share of
the size of the person in the same frame, which is 0.6 times the diagonal of the box around the true joints. Each joint
has the share of all frames of all clips in which it is right; the score is the mean over joints.
"""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.dense.pooling import mean_over_classes, pooled, quotient
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

ALPHAS = (0.1, 0.2)
"""Thresholds as shares of the size of the person."""
SIZE = 0.6
"""Size of a person as a share of the diagonal of the box around the joints."""
POSE_PCK = tuple(
    Metric(
        f"pose_pck@{alpha}",
        f"Share of frames with a joint within {alpha} of the person's size, mean over joints",
        "%",
        1,
        RATE,
        needs="poses",
        labels=("poses",),
    )
    for alpha in ALPHAS
)
COUNTS = (*(f"frames within {alpha}" for alpha in ALPHAS), "frames")
"""Counts of each joint in a clip."""


def person_sizes(joints: FloatArray, counted: BoolArray) -> FloatArray:
    """Return the size of the person in each frame, (T,): 0.6 x the diagonal of the box around its joints.

    `joints`: (T, J, 2) true positions; `counted`: (T, J) joints that the box contains; a frame without any has the size
    0.

    >>> person_sizes(np.array([[[0.0, 0.0], [30.0, 40.0]]]), np.ones((1, 2), bool)).tolist()
    [30.0]
    """
    some = counted[..., None]
    high = np.where(some, joints, -np.inf).max(axis=1)
    low = np.where(some, joints, np.inf).min(axis=1)
    extent = np.where(some.any(axis=1), [high, low], 0.0)
    return np.asarray(SIZE * np.linalg.norm(extent[0] - extent[1], axis=1))


def joint_counts(predicted: FloatArray, joints: FloatArray, counted: BoolArray) -> IntArray:
    """Return the number of frames of a clip with each joint within each threshold, and in all, (3, J).

    `predicted`: (T, J, 2) predicted positions in the scored frames; NaN for a joint that is nowhere, a miss; `joints`:
    (T, J, 2) true positions in the same pixels; `counted`: (T, J) joints that are scored, and whose box is the size of
    the person.

    >>> true = np.array([[[0.0, 0.0], [30.0, 40.0]]])
    >>> joint_counts(true + [[3.0, 0.0], [4.0, 0.0]], true, np.ones((1, 2), bool)).tolist()
    [[1, 0], [1, 1], [1, 1]]
    """
    distance = np.linalg.norm(predicted - joints, axis=2)
    limits = person_sizes(joints, counted)[:, None]
    with np.errstate(invalid="ignore"):
        found = [(counted & (distance <= alpha * limits)).sum(axis=0) for alpha in ALPHAS]
    return np.stack([*found, counted.sum(axis=0)]).astype(np.int64)


def pck(counts: npt.NDArray[np.number]) -> FloatArray:
    """Return the PCK of each joint at each threshold, (..., J, 2) for counts (..., 3, J); NaN where it is not scored.

    >>> pck(np.array([[1, 0], [2, 0], [4, 0]])).tolist()
    [[0.25, 0.5], [nan, nan]]
    """
    each = counts.astype(np.float64)
    return np.stack([quotient(each[..., k, :], each[..., -1, :]) for k in range(len(ALPHAS))], axis=-1)


def pose_measure(counts: IntArray, units: Units) -> Measure:
    """Return PCK as the mean over joints, as a function of the weights of the clips.

    `counts`: (N, 3, J), see `joint_counts`.

    >>> counts = np.array([[[1, 4], [2, 4], [4, 4]], [[3, 0], [4, 0], [4, 0]]])
    >>> pose_measure(counts, Units.of(2, None)).statistic(np.ones((1, 2))).tolist()
    [[0.75, 0.875]]
    """
    return Measure(
        POSE_PCK,
        lambda weights: mean_over_classes(np.swapaxes(pck(pooled(counts, weights)), -1, -2)),
        class_units=units.having_each(counts[:, -1]),
    )
