"""Average precision and recall of keypoints as COCO defines them: by object keypoint similarity in place of overlap.

An object without a labelled keypoint and a crowd do not count, and neither do their detections; the 20 detections of
highest score of a class on an image count. There are no small objects: COCO labels no keypoints of them.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection.matches import AT_75, ClassMatches, Truth

MOST = 20
"""Largest number of detections of one class that count on one image."""
TITLES = {
    "AP": "Average precision of keypoints, mean over similarities (OKS) of .5 to .95",
    "AP50": "Average precision of keypoints at a similarity of .5",
    "AP75": "Average precision of keypoints at a similarity of .75",
    "APm": "Average precision of keypoints of medium objects",
    "APl": "Average precision of keypoints of large objects",
    "AR": "Average recall of keypoints",
    "AR50": "Recall of keypoints at a similarity of .5",
    "AR75": "Recall of keypoints at a similarity of .75",
    "ARm": "Average recall of keypoints of medium objects",
    "ARl": "Average recall of keypoints of large objects",
}
_ALL, _MEDIUM, _LARGE = 0, 2, 3  # of the area ranges of `matches`
_EACH = ((_ALL, slice(None)), (_ALL, slice(1)), (_ALL, slice(AT_75, AT_75 + 1)))
_OF_AREAS = ((_MEDIUM, slice(None)), (_LARGE, slice(None)))


def values_of(
    matches: Sequence[ClassMatches], curves: precision_recall.Curves, weights: FloatArray
) -> list[FloatArray]:
    """Return the metrics in the order of `TITLES`, each (R,), for weights of the images (N, R)."""
    precision = precision_recall.average_precisions(curves, weights, precision_recall.coco_points)
    found = [
        precision_recall.mean_over([table[at].mean(axis=0) for table in precision[:, area]])
        for area, at in (*_EACH, *_OF_AREAS)
    ]
    return found + [precision_recall.mean_recall(matches, area, MOST, weights, at) for area, at in (*_EACH, *_OF_AREAS)]


def with_one(truth: Truth, keypoint: int) -> Truth:
    """Return the objects as if one keypoint alone were labelled."""
    if truth.keypoints is None:
        raise ValueError("the objects have no keypoints")
    points = truth.keypoints.copy()
    points[:, np.arange(points.shape[1]) != keypoint, 2] = 0
    return dataclasses.replace(truth, keypoints=points)
