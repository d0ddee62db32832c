"""Floors of detection that see no pixels: constant boxes, and the mean pose in them."""

import dataclasses

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.objects import ObjectSource
from sslbench.detection.batches import HALF
from sslbench.metrics.detection import Detections
from sslbench.metrics.detection.keypoints import labelled


def constant_boxes(train: ObjectSource, test: ObjectSource) -> Detections:
    """Return one box per class on every test image: the median of each edge of the class's boxes in train.

    Edges are shares of the image's width and height; in pixels if a manifest leaves out the size of an image. Crowds
    and difficult objects do not count. All boxes of a class have the same score, the class's share of the objects.
    """
    truth = train.truth()
    counted = ~(truth.crowd | truth.difficult)
    labels, images = truth.labels[counted], truth.images[counted]
    relative = bool((train.target.sizes > 0).all() and (test.target.sizes > 0).all())
    edges = truth.boxes[counted] / _scales(train, relative)[images]
    classes = np.unique(labels)
    medians = np.array([np.median(edges[labels == c], axis=0) for c in classes]).reshape(-1, 4)
    shares = np.bincount(labels, minlength=1)[classes] / max(len(labels), 1) if len(classes) else np.zeros(0)
    boxes = _scales(test, relative)[:, None] * medians[None]
    return Detections(
        np.repeat(np.arange(len(test)), len(classes)),
        boxes.reshape(-1, 4).astype(np.float32),
        np.tile(shares, len(test)).astype(np.float32),
        np.tile(classes, len(test)),
    )


def _scales(source: ObjectSource, relative: bool) -> FloatArray:
    """Return the units of x1, y1, x2, y2 in pixels for each image, (N, 4)."""
    sizes = source.target.sizes if relative else np.ones_like(source.target.sizes)
    return np.asarray(sizes[:, [1, 0, 1, 0]], dtype=np.float64)


def mean_pose(train: ObjectSource) -> FloatArray:
    """Return the median place of each keypoint in the boxes of each class, (C, K, 2), as shares of width and height.

    Crowds and difficult objects do not count. A keypoint that no object of a class has is in the middle of the box.
    """
    truth = train.truth(skeleton=train.target.skeleton)
    if truth.keypoints is None:
        raise ValueError(f"{train.name} has no keypoints")
    counted = ~(truth.crowd | truth.difficult)
    boxes, points = truth.boxes[counted].astype(np.float64), truth.keypoints[counted]
    shares = (points[:, :, :2] + HALF - boxes[:, None, :2]) / (boxes[:, None, 2:] - boxes[:, None, :2])
    there, labels = labelled(points), truth.labels[counted]
    # A keypoint that no object of the class shows is put at the centre of the box.
    poses = np.full((len(train.target.classes), points.shape[1], 2), 0.5)
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
