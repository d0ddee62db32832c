"""Object discovery and saliency: CorLoc, mask IoU, maximal F of saliency maps.

Every metric but the maximal F is a mean over images; the maximal F has one threshold for all images, so that it follows
from the F of each image at 255 thresholds (2 kB per image).
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.metrics.dense.pooling import means
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

Mask = npt.NDArray[np.bool_]

OVERLAP = 0.5
"""IoU from which on a box counts as found."""
BETA_SQUARED = 0.3
"""Weight of precision against recall in the F of saliency (Achanta et al., CVPR 2009)."""
THRESHOLDS = np.arange(255) / 255
"""Thresholds at which a saliency map is cut for the maximal F; a pixel is salient above them."""

CORLOC = Metric(
    "corloc", "CorLoc: share of images whose box overlaps an object by half",
    "%", 1, RATE, needs="discoveries", labels=("boxes",),
)  # fmt: skip
BOX_IOU = dataclasses.replace(CORLOC, name="discovery_box_iou", title="IoU with the best box, mean over images")
MASK_IOU = dataclasses.replace(CORLOC, name="discovery_mask_iou", title="IoU with the best mask, mean over images")
DISCOVERY = (CORLOC, BOX_IOU, MASK_IOU)
SALIENCY_IOU = dataclasses.replace(
    CORLOC, name="saliency_iou", title="IoU of the salient region, mean over images", needs="saliency", labels=("mask",)
)
SALIENCY_ACCURACY = dataclasses.replace(
    SALIENCY_IOU, name="saliency_accuracy", title="Pixel accuracy of the salient region, mean over images"
)
SALIENCY_MAX_F = dataclasses.replace(
    SALIENCY_IOU, name="saliency_max_f", title="F of saliency, mean over images, at the best threshold"
)
SALIENCY = (SALIENCY_IOU, SALIENCY_ACCURACY, SALIENCY_MAX_F)
DISCOVERY_COLUMNS = tuple(metric.name for metric in DISCOVERY)
SALIENCY_COLUMNS = (SALIENCY_IOU.name, SALIENCY_ACCURACY.name, *(f"f at {k}/255" for k in range(len(THRESHOLDS))))
"""Names of the values of one image that records keep."""


def overlaps(box: npt.ArrayLike, boxes: npt.ArrayLike) -> FloatArray:
    """Return the IoU of a box with each of G others, (G,); boxes without area have 0.

    `boxes`: (G, 4), likewise. Of Pascal VOC's inclusive 1-based corners, the left and upper end are less by 1.

    >>> overlaps([0, 0, 10, 10], [[5, 0, 15, 10], [0, 0, 10, 10]]).round(3).tolist()
    [0.333, 1.0]
    """
    own, others = np.asarray(box, dtype=np.float64), np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    low, high = np.maximum(own[:2], others[:, :2]), np.minimum(own[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0), axis=1)
    union = np.prod(np.maximum(own[2:] - own[:2], 0)) + np.prod(np.maximum(others[:, 2:] - others[:, :2], 0), axis=1)
    union = union - common
    return np.asarray(np.divide(common, union, out=np.zeros(len(others)), where=union > 0))


def is_located(box: npt.ArrayLike | None, boxes: npt.ArrayLike) -> float:
    """Return 1 if a box overlaps any of an image's objects by at least `OVERLAP`, else 0; NaN without an object.

    CorLoc is the mean over the images that have an object.

    `box`: the discovered box; None if there is none, which is a miss; `boxes`: (G, 4) boxes of all objects; see
    `overlaps`.

    >>> is_located([0, 0, 10, 10], [[0, 0, 10, 20]]), is_located(None, [[0, 0, 10, 20]])
    (1.0, 0.0)
    """
    if not np.size(boxes):
        return float("nan")
    return 0.0 if box is None else float(overlaps(box, boxes).max() >= OVERLAP)


def mask_iou(found: Mask, objects: npt.NDArray[np.bool_]) -> float:
    """Return the IoU of a mask (H, W) with the object that it fits best, of masks (G, H, W); NaN without an object.

    >>> mask_iou(np.array([[True, True, False]]), np.array([[[True, False, False]], [[False, True, True]]]))
    0.5
    """
    if not len(objects):
        return float("nan")
    union = (found | objects).sum(axis=(1, 2))
    return float(((found & objects).sum(axis=(1, 2)) / np.maximum(union, 1)).max())


def discovery_row(box: npt.ArrayLike | None, found: Mask, boxes: npt.ArrayLike, objects: Mask | None) -> FloatArray:
    """Return the values (3,) of `DISCOVERY` of one image with objects.

    `box`: the discovered box; None if there is none; `found`: its region (H, W); `boxes`: (G, 4) boxes of the objects;
    see `overlaps`; `objects`: (G, H, W) masks of the objects; None where they are not known.

    >>> discovery_row([0, 0, 2, 1], np.array([[True, True]]), [[0, 0, 2, 1]], None).tolist()
    [1.0, 1.0, nan]
    """
    best = 0.0 if box is None else float(overlaps(box, boxes).max())
    masks = float("nan") if objects is None else mask_iou(found, objects)
    return np.array([is_located(box, boxes), best, masks])


def discovery_measures(values: FloatArray) -> list[Measure]:
    """Return the metrics `DISCOVERY` as means over N images; that of masks only where some are known.

    `values`: (N, 3), see `discovery_row`.

    >>> [measure.names for measure in discovery_measures(np.array([[1.0, 0.6, np.nan], [0.0, 0.2, np.nan]]))]
    [('corloc',), ('discovery_box_iou',)]
    """
    found = [
        Measure((CORLOC,), lambda weights: means(values[:, :1], weights), per_sample=values[:, :1], binary=True),
        Measure((BOX_IOU,), lambda weights: means(values[:, 1:2], weights), per_sample=values[:, 1:2]),
    ]
    if not np.isnan(values[:, 2]).all():
        found.append(Measure((MASK_IOU,), lambda weights: means(values[:, 2:], weights)))
    return found


@dataclasses.dataclass(frozen=True)
class SaliencyValues:
    """Scores of one saliency map.

    Attributes:
        iou: IoU of the map above one half with the salient region.
        accuracy: share of right pixels at one half.
        f: (255,) F at each of the `THRESHOLDS`.
    """

    iou: float
    accuracy: float
    f: FloatArray

    @property
    def row(self) -> FloatArray:
        """Values (257,) that records keep of an image: IoU, accuracy and F at each threshold; see `columns`."""
        return np.concatenate([[self.iou, self.accuracy], self.f])


def saliency_values(saliency: npt.NDArray[np.floating], truth: Mask) -> SaliencyValues:
    """Return the scores of a saliency map.

    `saliency`: (H, W) from 0 to 1; `truth`: (H, W) salient region.

    >>> saliency_values(np.array([[0.9, 0.2]]), np.array([[True, True]])).iou
    0.5
    """
    # The precision of an empty prediction is 1, the recall of an empty region is 1, and where both are 0 so is F. Two
    # empty regions have an IoU of 1.
    found = saliency > 0.5
    union = np.count_nonzero(found | truth)
    iou = float(np.count_nonzero(found & truth) / union) if union else 1.0
    level = np.searchsorted(THRESHOLDS, saliency.ravel(), side="left")  # thresholds below the value
    number = len(THRESHOLDS) + 1
    above = np.cumsum(np.bincount(level, minlength=number)[::-1])[::-1][1:]
    right = np.cumsum(np.bincount(level[truth.ravel()], minlength=number)[::-1])[::-1][1:]
    positive = np.count_nonzero(truth)
    precision = np.divide(right, above, out=np.ones(len(above)), where=above > 0)
    recall = right / positive if positive else np.ones(len(above))
    both = BETA_SQUARED * precision + recall
    f = np.divide((1 + BETA_SQUARED) * precision * recall, both, out=np.zeros(len(above)), where=both > 0)
    return SaliencyValues(iou, float(np.mean(found == truth)), f)


def max_f(weights: FloatArray, f: FloatArray) -> FloatArray:
    """Return the largest of the means over images of F at each threshold, (R, 1).

    `weights`: (R, N) R weightings of the images; `f`: (N, 255) F of each image, see `saliency_values`.

    >>> max_f(np.ones((1, 2)), np.array([[0.2, 0.9], [0.8, 0.5]])).tolist()
    [[0.7]]
    """
    return np.asarray(means(f, weights).max(axis=1, keepdims=True))


def saliency_measures(values: FloatArray) -> list[Measure]:
    """Return the metrics `SALIENCY` of N maps.

    `values`: (N, 257), see `SaliencyValues.row`.

    >>> row = saliency_values(np.array([[0.9, 0.2]]), np.array([[True, True]])).row
    >>> [round(float(each.statistic(np.ones((1, 1)))[0, -1]), 3) for each in saliency_measures(row[None])]
    [0.5, 1.0]
    """
    each, f = values[:, :2], values[:, 2:]
    return [
        Measure((SALIENCY_IOU, SALIENCY_ACCURACY), lambda weights: means(each, weights), per_sample=each),
        Measure((SALIENCY_MAX_F,), lambda weights: max_f(weights, f)),
    ]
