"""Assignment of clusters, or of predicted classes, to the true classes of label maps.

Unsupervised segmentation predicts clusters without names. They are named by their pixels before IoU is computed: one to
one (Hungarian) by common pixels (STEGO) or by IoU (Hummingbird), or each by itself. A one-to-one assignment hides a
permuted prediction, so that mIoU after it has a name of its own.

Assignments follow from the table (C, P) of pixels of C classes and P clusters (`segmentation.confusion_matrix`), summed
over images. For an interval the assignment stays that of all images, and by it the table of each image becomes the
areas (3, C) of its classes: 2,000 images of 150 classes are 7 MB.
"""

import dataclasses
from typing import Literal

import numpy as np

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.dense.pooling import Absent, pooled
from sslbench.metrics.dense.segmentation import MIOU, PIXEL_ACCURACY, segmentation_values
from sslbench.metrics.measure import Measure

MATCHED_MIOU = dataclasses.replace(
    MIOU,
    name="matched_mIoU",
    title="Intersection over union, mean over classes, after one-to-one assignment of the predicted classes",
    needs="matched_maps",
)
MATCHED_ACCURACY = dataclasses.replace(
    PIXEL_ACCURACY,
    name="matched_aAcc",
    title="Pixel accuracy after one-to-one assignment of the predicted classes",
    needs="matched_maps",
)
MATCHED = (MATCHED_MIOU, MATCHED_ACCURACY)
"""Metrics in the order of `matched_values`."""
UNASSIGNED = -1
"""Class of a cluster that stands for none: its pixels are wrong wherever they lie."""


def one_to_one(table: IntArray, by: Literal["pixels", "iou"]) -> IntArray:
    """Return the class of each cluster, (P,), so that the sum of common pixels or of IoUs is largest (Hungarian).

    Of more clusters than classes, P - C are `UNASSIGNED`. STEGO never counts clusters beyond the number of classes;
    Hummingbird takes those that are left over for class 0.

    Args:
        table: (C, P) pixels of each class and cluster.
        by: quantity whose sum is largest.

    >>> one_to_one(np.array([[1, 5, 4], [8, 0, 0]]), "pixels").tolist()
    [1, 0, -1]
    """
    from scipy.optimize import linear_sum_assignment

    classes, clusters = linear_sum_assignment(table if by == "pixels" else _ious(table), maximize=True)
    assigned = np.full(table.shape[1], UNASSIGNED, np.int64)
    assigned[clusters] = classes
    return assigned


def each_to_best(table: IntArray, by: Literal["precision", "iou"]) -> IntArray:
    """Return the class of each cluster, (P,), with which its precision or IoU is largest; several may share a class.

    With many clusters the score rises for any features. An empty cluster is of class 0.

    >>> each_to_best(np.array([[1, 5, 4], [8, 0, 0]]), "precision").tolist()
    [1, 0, 0]
    """
    return np.asarray((table if by == "precision" else _ious(table)).argmax(axis=0), dtype=np.int64)


def assigned_areas(table: IntArray, assigned: IntArray) -> IntArray:
    """Return the pixels of intersection, prediction and label of each class, (..., 3, C).

    Args:
        table: (..., C, P) pixels of each class and cluster, of all images or of each.
        assigned: (P,) class of each cluster, or `UNASSIGNED`.

    >>> assigned_areas(np.array([[1, 5, 4], [8, 0, 0]]), np.array([1, 0, -1])).tolist()
    [[5, 8], [5, 9], [10, 8]]
    """
    by_class = np.zeros((*table.shape[:-1], table.shape[-2]), np.int64)  # true class, assigned class
    for cluster, c in enumerate(assigned.tolist()):
        if c != UNASSIGNED:
            by_class[..., c] += table[..., cluster]
    return np.stack([by_class.diagonal(axis1=-2, axis2=-1), by_class.sum(axis=-2), table.sum(axis=-1)], axis=-2)


def matched_values(weights: FloatArray, areas: IntArray, *, absent: Absent = "omit") -> FloatArray:
    """Return the values (R, 2) of the metrics `MATCHED`.

    Args:
        weights: (R, N) R weightings of the images.
        areas: (N, 3, C) areas of each image, see `assigned_areas`.
        absent: treatment of classes that are neither labelled nor predicted.

    >>> areas = assigned_areas(np.array([[[5, 1], [0, 4]]]), np.array([0, 1]))
    >>> matched_values(np.ones((1, 1)), areas).round(3).tolist()
    [[0.817, 0.9]]
    """
    return segmentation_values(pooled(areas, weights), absent=absent)[:, : len(MATCHED)]


def matched_measure(areas: IntArray, *, absent: Absent = "omit") -> Measure:
    """Return the metrics `MATCHED` of N images as a function of the weights of the images; see `matched_values`."""
    return Measure(MATCHED, lambda weights: matched_values(weights, areas, absent=absent))


def _ious(table: IntArray) -> FloatArray:
    """Return the IoU of every class with every cluster, (C, P); 0 where both are empty."""
    union = table.sum(axis=1, keepdims=True) + table.sum(axis=0) - table
    return np.asarray(np.divide(table, union, out=np.zeros(table.shape), where=union > 0))
