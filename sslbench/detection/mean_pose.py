"""Mean pose: a floor of keypoints that sees no pixels, the same keypoints in every box of a class."""

import dataclasses

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.objects.types import ObjectSource
from sslbench.detection.batches import HALF
from sslbench.metrics.detection import Detections
from sslbench.metrics.detection.keypoints import labelled


def mean_pose(train: ObjectSource) -> FloatArray:
    """Return the median place of each keypoint in the boxes of each class, (C, K, 2), as shares of width and height.

    Crowds and difficult objects do not count. A keypoint that no object of a class has is in the middle of the box.

    Args:
        train: training part, with keypoints.
    """
    truth = train.truth(skeleton=train.skeleton)
    if truth.keypoints is None:
        raise ValueError(f"{train.name} has no keypoints")
    counted = ~(truth.crowd | truth.difficult)
    boxes, points = truth.boxes[counted].astype(np.float64), truth.keypoints[counted]
    shares = (points[:, :, :2] + HALF - boxes[:, None, :2]) / (boxes[:, None, 2:] - boxes[:, None, :2])
    there, labels = labelled(points), truth.labels[counted]
    poses = np.full((len(train.classes), points.shape[1], 2), 0.5)
    for label, keypoint in np.ndindex(poses.shape[:2]):
        rows = (labels == label) & there[:, keypoint]
        if rows.any():
            poses[label, keypoint] = np.median(shares[rows, keypoint], axis=0)
    return poses


def with_pose(found: Detections, poses: FloatArray) -> Detections:
    """Return detections with the pose of their class in their boxes, in place of any keypoints of their own."""
    boxes = found.boxes.astype(np.float64)
    places = boxes[:, None, :2] + poses[found.labels] * (boxes[:, None, 2:] - boxes[:, None, :2]) - HALF
    keypoints = np.concatenate([places, np.ones((*places.shape[:2], 1))], axis=2)
    return dataclasses.replace(found, masks=None, keypoints=keypoints)
