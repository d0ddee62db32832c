"""Semantic segmentation: IoU, pixel accuracy and F-score, from the areas of the classes in each image.

`class_areas` counts one image. Areas are stacked, (..., 3, C), and summed before they are divided: the sum over all
images gives the scores of the data set (as MMSegmentation, DINOv2 and DINOv3 report them), the areas of each image its
own. Of ADE20K's 2,000 maps with 150 classes they take 7 MB.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.dense.pooling import Absent, mean_over_classes, pooled, quotient
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

MIOU = Metric(
    "mIoU", "Intersection over union, mean over classes", "%", 1, RATE, labels=("map", "parts"), needs="label_maps"
)
PIXEL_ACCURACY = dataclasses.replace(MIOU, name="aAcc", title="Pixel accuracy")
CLASS_ACCURACY = dataclasses.replace(MIOU, name="mAcc", title="Pixel accuracy of each class, mean over classes")
MEAN_F_SCORE = dataclasses.replace(MIOU, name="mFscore", title="F-score (Dice) of the pixels, mean over classes")
SEGMENTATION = (MIOU, PIXEL_ACCURACY, CLASS_ACCURACY, MEAN_F_SCORE)
"""Metrics in the order of `segmentation_values`."""
AREAS = ("intersection", "prediction", "label")
"""Areas of each class in an image, in the order of the rows of `class_areas`."""
MATCHED_MIOU = dataclasses.replace(
    MIOU,
    name="matched_mIoU",
    title="Intersection over union, mean over classes, after one-to-one assignment of the predicted classes",
    needs="matched_maps",
)
MATCHED_ACCURACY = dataclasses.replace(
    PIXEL_ACCURACY, name="matched_aAcc", title="Pixel accuracy after one-to-one assignment of the predicted classes",
    needs="matched_maps",
)  # fmt: skip
MATCHED = (MATCHED_MIOU, MATCHED_ACCURACY)
"""Metrics in the order of `matched_values`."""
UNASSIGNED = -1
"""Class of a cluster that stands for none: its pixels are wrong wherever they lie."""


def counted_pixels(label: npt.NDArray[np.integer], ignore: Sequence[int]) -> BoolArray:
    """Return True for the pixels whose label is none of the ignored values."""
    counted = np.ones(label.shape, dtype=np.bool_)
    for value in ignore:
        counted &= label != value
    return counted


def confusion_matrix(
    prediction: npt.NDArray[np.integer],
    label: npt.NDArray[np.integer],
    n_classes: int,
    *,
    ignore: Sequence[int],
    n_predicted: int | None = None,
) -> IntArray:
    """Return the number of pixels of each pair of label and prediction, (C, P).

    `prediction`: (H, W), 0 to P - 1; any value where the label is ignored; `label`: (H, W), 0 to C - 1 or an ignored
    value; `ignore`: labels of pixels that do not count, for instance (255,); () if all count; `n_predicted`: P, the
    number of predicted classes or clusters; C if None.

    >>> confusion_matrix(np.array([[0, 1]]), np.array([[1, 1]]), 2, ignore=(255,)).tolist()
    [[0, 0], [1, 1]]
    """
    columns = n_classes if n_predicted is None else n_predicted
    if prediction.shape != label.shape:
        raise ValueError(f"a prediction of {prediction.shape} for a label map of {label.shape}")
    # Runs of equal pairs, of which maps have few, are much quicker to count than pixels.
    flat = [prediction.ravel(), label.ravel()]
    changes = np.logical_or(*(values[1:] != values[:-1] for values in flat))
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])[: label.size]
    lengths = np.diff(starts, append=label.size)
    predictions, labels = (values[starts] for values in flat)
    counted = counted_pixels(labels, ignore)
    predictions, labels, lengths = predictions[counted], labels[counted], lengths[counted]
    for name, values, number in (("label", labels, n_classes), ("prediction", predictions, columns)):
        if values.size and not 0 <= values.min() <= values.max() < number:
            wrong = int(values.max() if values.max() >= number else values.min())
            raise ValueError(f"{name} {wrong} is none of the {number} classes and is not ignored")
    pairs = np.multiply(labels, columns, dtype=np.intp) + predictions
    counts = np.bincount(pairs, weights=lengths, minlength=n_classes * columns)
    return counts.reshape(n_classes, columns).astype(np.int64)


def class_areas(
    prediction: npt.NDArray[np.integer], label: npt.NDArray[np.integer], n_classes: int, *, ignore: Sequence[int]
) -> IntArray:
    """Return the pixels of intersection, prediction and label of each class in one image, (3, C).

    >>> class_areas(np.array([[0, 1, 1]]), np.array([[1, 1, 255]]), 2, ignore=(255,)).tolist()
    [[0, 1], [1, 1], [0, 2]]
    """
    # Ignored pixels belong to none of the three. Labels outside the classes are refused; MMSegmentation leaves them out
    # of the area of the labels and keeps them as false positives. Arguments and errors as for `confusion_matrix`.
    table = confusion_matrix(prediction, label, n_classes, ignore=ignore)
    return np.stack([table.diagonal(), table.sum(axis=0), table.sum(axis=1)])


def iou(areas: npt.NDArray[np.number]) -> FloatArray:
    """Return intersection over union, (..., C) for areas (..., 3, C); NaN for a class without any pixel.

    >>> iou(np.array([[3, 0, 0], [4, 2, 0], [4, 0, 0]])).tolist()
    [0.6, 0.0, nan]
    """
    both, predicted, labelled = _parts(areas)
    return quotient(both, predicted + labelled - both)


def class_accuracy(areas: npt.NDArray[np.number]) -> FloatArray:
    """Return the share of each class's pixels that were predicted as that class (its recall), (..., C).

    NaN for a class without labelled pixels.
    """
    both, _, labelled = _parts(areas)
    return quotient(both, labelled)


def f_score(areas: npt.NDArray[np.number], *, beta: float = 1.0) -> FloatArray:
    """Return the F-score of each class, (..., C): recall counts `beta` times as much as precision; 1 gives Dice.

    >>> f_score(np.array([[3, 0, 0], [4, 2, 0], [4, 0, 0]])).tolist()
    [0.75, 0.0, nan]
    """
    # NaN for a class without any pixel. A class that is never hit has 0; MMSegmentation and DINOv3 give NaN and leave
    # it out of the mean, which raises the mean.
    both, predicted, labelled = _parts(areas)
    return quotient((1 + beta**2) * both, beta**2 * labelled + predicted)


def pixel_accuracy(areas: npt.NDArray[np.number]) -> FloatArray:
    """Return the share of all counted pixels that are predicted rightly, (...); NaN where none is counted."""
    both, _, labelled = _parts(areas)
    return quotient(both.sum(axis=-1), labelled.sum(axis=-1))


def segmentation_values(areas: npt.NDArray[np.number], *, absent: Absent = "omit") -> FloatArray:
    """Return mIoU, aAcc, mAcc and mFscore, (..., 4) for areas (..., 3, C), in the order of `SEGMENTATION`.

    With `absent="omit"`, a class that is predicted and not labelled has an IoU and F-score of 0, and no accuracy.

    >>> areas = class_areas(np.array([[0, 0, 1, 1]]), np.array([[0, 0, 0, 1]]), 3, ignore=())
    >>> segmentation_values(areas).round(3).tolist()
    [0.583, 0.75, 0.833, 0.733]
    """
    mean_iou, mean_accuracy, mean_f = (
        mean_over_classes(values, absent=absent) for values in (iou(areas), class_accuracy(areas), f_score(areas))
    )
    return np.stack([mean_iou, pixel_accuracy(areas), mean_accuracy, mean_f], axis=-1)


def segmentation_measures(areas: IntArray, units: Units) -> list[Measure]:
    """Return the metrics of N images as functions of the weights of the images, for `summary.with_intervals`.

    `areas`: (N, 3, C), see `class_areas`.

    >>> from sslbench.metrics.summary import with_intervals
    >>> maps = np.random.default_rng(0).integers(0, 2, (20, 8, 8))
    >>> areas = np.stack([class_areas(image, np.zeros_like(image), 2, ignore=()) for image in maps])
    >>> (measure, *_) = segmentation_measures(areas, Units.of(20, None))
    >>> [round(value, 2) for value in with_intervals(measure, Units.of(20, None), 0, 200)["aAcc"]]
    [0.47, 0.45, 0.5]
    """

    def statistic(weights: FloatArray) -> FloatArray:
        return segmentation_values(pooled(areas, weights))

    return [
        Measure((PIXEL_ACCURACY,), lambda weights: statistic(weights)[:, 1:2]),
        Measure(
            (MIOU, CLASS_ACCURACY, MEAN_F_SCORE),
            lambda weights: statistic(weights)[:, [0, 2, 3]],
            class_units=units.having_each(areas[:, 2]),
        ),
    ]


def _parts(areas: npt.NDArray[np.number]) -> tuple[FloatArray, FloatArray, FloatArray]:
    both, predicted, labelled = (areas[..., row, :].astype(np.float64) for row in range(3))
    return both, predicted, labelled


# Unsupervised segmentation predicts clusters without names. They are named by their pixels before IoU is computed, one
# to one by common pixels (STEGO) or by IoU (Hummingbird). An assignment hides a permuted prediction, so that mIoU after
# it has a name of its own. For an interval the assignment stays that of all images, and by it the table (C, P) of each
# image becomes the areas (3, C) of its classes.
def one_to_one(table: IntArray, by: Literal["pixels", "iou"]) -> IntArray:
    """Return the class of each cluster, (P,), so that the sum of common pixels or of IoUs is largest (Hungarian).

    `table`: (C, P) pixels of each class and cluster.

    >>> one_to_one(np.array([[1, 5, 4], [8, 0, 0]]), "pixels").tolist()
    [1, 0, -1]
    """
    # Of more clusters than classes, P - C are `UNASSIGNED`. STEGO never counts clusters beyond the number of classes;
    # Hummingbird takes those that are left over for class 0.
    from scipy.optimize import linear_sum_assignment

    classes, clusters = linear_sum_assignment(table if by == "pixels" else _ious(table), maximize=True)
    assigned = np.full(table.shape[1], UNASSIGNED, np.int64)
    assigned[clusters] = classes
    return assigned


def assigned_areas(table: IntArray, assigned: IntArray) -> IntArray:
    """Return the pixels of intersection, prediction and label of each class, (..., 3, C).

    `assigned`: (P,) class of each cluster, or `UNASSIGNED`.

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

    `weights`: (R, N) R weightings of the images; `areas`: (N, 3, C) areas of each image, see `assigned_areas`.

    >>> areas = assigned_areas(np.array([[[5, 1], [0, 4]]]), np.array([0, 1]))
    >>> matched_values(np.ones((1, 1)), areas).round(3).tolist()
    [[0.817, 0.9]]
    """
    return segmentation_values(pooled(areas, weights), absent=absent)[:, : len(MATCHED)]


def matched_measure(areas: IntArray) -> Measure:
    """Return the metrics `MATCHED` of N images as a function of the weights of the images; see `matched_values`."""
    return Measure(MATCHED, lambda weights: matched_values(weights, areas))


def _ious(table: IntArray) -> FloatArray:
    """Return the IoU of every class with every cluster, (C, P); 0 where both are empty."""
    union = table.sum(axis=1, keepdims=True) + table.sum(axis=0) - table
    return np.asarray(np.divide(table, union, out=np.zeros(table.shape), where=union > 0))
