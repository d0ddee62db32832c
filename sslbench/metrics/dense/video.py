"""Video object segmentation: region similarity J and boundary measure F of DAVIS 2017.

Perazzi et al., CVPR 2016; Pont-Tuset et al. 2017. Each object of each frame has a J and an F; an object's score is the
mean over its frames, that of a data set the mean over objects. Frames are scored one by one: memory is a few masks per
object.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.metrics.dense.pooling import quotient
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import CORRELATION, RATE, Metric

Mask = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.integer]

BOUNDARY = 0.008
"""Tolerance of the boundary measure as a share of the image diagonal."""
_QUARTERS = 4

J_MEAN = Metric(
    "j_mean", "Region similarity J, mean over frames and objects", "%", 1, RATE, needs="tracks", labels=("tracks",)
)
J_RECALL = dataclasses.replace(J_MEAN, name="j_recall", title="Share of frames with J above .5, mean over objects")
J_DECAY = dataclasses.replace(
    J_MEAN, name="j_decay", title="J of the first quarter less that of the last, mean over objects",
    direction=-1, bounds=CORRELATION,
)  # fmt: skip
F_MEAN = dataclasses.replace(J_MEAN, name="f_mean", title="Boundary measure F, mean over frames and objects")
F_RECALL = dataclasses.replace(J_MEAN, name="f_recall", title="Share of frames with F above .5, mean over objects")
F_DECAY = dataclasses.replace(
    J_DECAY, name="f_decay", title="F of the first quarter less that of the last, mean over objects"
)
JF_MEAN = dataclasses.replace(J_MEAN, name="jf_mean", title="J&F: mean of region similarity and boundary measure")
TRACKING = (JF_MEAN, J_MEAN, J_RECALL, J_DECAY, F_MEAN, F_RECALL, F_DECAY)
"""Metrics of one object, in the order of the columns of `object_values`."""
TRACK_COLUMNS = ("objects", *(f"sum of {metric.name}" for metric in TRACKING))
"""Columns of the scores of a video: number of objects, and sums over them."""


@dataclasses.dataclass(frozen=True)
class VideoScores:
    """J and F of every object in every scored frame of a video.

    Attributes:
        j: (K, T) region similarity.
        f: (K, T) boundary measure.
    """

    j: FloatArray
    f: FloatArray


def region_similarity(truth: Mask, found: Mask) -> float:
    """Return J, the intersection over union of two masks (H, W); 1 if both are empty.

    >>> region_similarity(np.array([[True, True, False]]), np.array([[False, True, False]]))
    0.5
    """
    union = np.count_nonzero(truth | found)
    return float(np.count_nonzero(truth & found) / union) if union else 1.0


def boundary_measure(truth: Mask, found: Mask, *, boundary: float = BOUNDARY) -> float:
    """Return F, the harmonic mean of precision and recall of the pixels of two boundaries; 1 if neither has any.

    A pixel is right if the other boundary has one within the tolerance.

    `truth`: (H, W) mask; `found`: (H, W) mask.

    >>> mask = np.zeros((20, 20), bool)
    >>> mask[5:15, 5:15] = True
    >>> boundary_measure(mask, np.roll(mask, 1, axis=1), boundary=1)
    1.0
    """
    radius = math.ceil(boundary if boundary >= 1 else boundary * math.hypot(*truth.shape))
    of_truth, of_found = _Boundary.of(truth, radius), _Boundary.of(found, radius)
    if not of_truth.length or not of_found.length:
        return float(of_truth.length == of_found.length)
    precision = np.count_nonzero(of_found.line & of_truth.reach) / of_found.length
    recall = np.count_nonzero(of_truth.line & of_found.reach) / of_truth.length
    return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0


def objects_in(ids: Ids) -> npt.NDArray[np.int64]:
    """Return the ids of the objects (K,) that have a pixel in a map or several, ascending; 0 is background.

    >>> objects_in(np.array([[0, 200], [1, 200]])).tolist()
    [1, 200]
    """
    return np.unique(ids[ids > 0]).astype(np.int64)


def frame_scores(truth: Ids, found: Ids, objects: npt.NDArray[np.int64], *, boundary: float = BOUNDARY) -> FloatArray:
    """Return J and F (2, K) of the objects in one frame.

    `truth`: (H, W) object ids; others than those of the objects count as background; `found`: (H, W) predicted object
    ids; `objects`: (K,) ids in the first frame, see `objects_in`.

    >>> mask = np.array([[0, 1, 1], [0, 7, 7]])
    >>> frame_scores(mask, mask, objects_in(mask)).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    masks = [(truth == k, found == k) for k in objects]
    j = [region_similarity(*pair) for pair in masks]
    return np.array([j, [boundary_measure(*pair, boundary=boundary) for pair in masks]])


def object_values(scores: VideoScores) -> FloatArray:
    """Return the values (K, 7) of the metrics `TRACKING` for each object of a video; NaN without a scored frame.

    A data set's score is the mean over the objects of all videos; its interval resamples videos.

    >>> object_values(VideoScores(np.array([[1.0, 0.8, 0.6, 0.4]]), np.ones((1, 4)))).round(3).tolist()
    [[0.85, 0.7, 0.75, 0.4, 1.0, 1.0, 0.0]]
    """
    j, f = _statistics(scores.j), _statistics(scores.f)
    return np.column_stack([(j[:, 0] + f[:, 0]) / 2, j, f])


def measure_of_videos(rows: npt.NDArray[np.floating]) -> Measure:
    """Return the metrics `TRACKING` as means over objects, as a function of the weights of the videos.

    `rows`: (N, 8), columns `TRACK_COLUMNS`.

    >>> rows = np.array([[1.0] + [0.5] * 7, [3.0] + [2.7] * 7])
    >>> measure_of_videos(rows).statistic(np.ones((1, 2))).round(3).tolist()[0][:2]
    [0.8, 0.8]
    """
    each = rows.astype(np.float64)
    return Measure(TRACKING, lambda weights: quotient(weights @ each[:, 1:], weights @ np.tile(each[:, :1], 7)))


def _statistics(values: FloatArray) -> FloatArray:
    """Return mean, recall and decay (K, 3) of values (K, T)."""
    # The decay compares the first of four runs of frames with the last; neighbouring runs share a frame, as in DAVIS.
    frames = values.shape[1]
    if frames == 0:
        return np.full((len(values), 3), np.nan)
    edges = np.round(np.linspace(1, frames, _QUARTERS + 1) + 1e-10).astype(int) - 1
    first, last = values[:, edges[0] : edges[1] + 1], values[:, edges[-2] : edges[-1] + 1]
    return np.column_stack([values.mean(axis=1), (values > 0.5).mean(axis=1), first.mean(axis=1) - last.mean(axis=1)])


@dataclasses.dataclass(frozen=True)
class _Boundary:
    """Boundary of a mask.

    Attributes:
        line: (H, W) pixels that differ from their right, lower or lower right neighbour.
        reach: (H, W) pixels within the tolerance of the line.
        length: number of pixels of the line.
    """

    line: Mask
    reach: Mask
    length: int

    @classmethod
    def of(cls, mask: Mask, radius: int) -> "_Boundary":
        """Return the boundary of a mask (H, W), with a tolerance in pixels."""
        import cv2

        line = np.zeros(mask.shape, np.bool_)
        line[:, :-1] |= mask[:, :-1] ^ mask[:, 1:]
        line[:-1] |= mask[:-1] ^ mask[1:]
        line[:-1, :-1] |= mask[:-1, :-1] ^ mask[1:, 1:]
        length = int(np.count_nonzero(line))
        if not length:
            return cls(line, line, 0)
        offset = np.arange(-radius, radius + 1)
        disk = (offset[:, None] ** 2 + offset**2 <= radius**2).astype(np.uint8)
        return cls(line, cv2.dilate(line.view(np.uint8), disk).view(np.bool_), length)
