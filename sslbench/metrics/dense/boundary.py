"""Boundary F-score of semantic segmentation: agreement of the outlines of classes within a tolerance in pixels.

Csurka et al., "What is a good evaluation measure for semantic segmentation?", BMVC 2013. `boundary_counts` counts one
image; counts are stacked, (..., 4, C), and summed before they are divided, or divided image by image.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.dense.pooling import Absent, mean_over_classes, pooled, quotient
from sslbench.metrics.dense.segmentation import counted_pixels
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

BOUNDARY_F = Metric(
    name="boundary_F",
    title="F-score of the boundaries, mean over classes",
    unit="%",
    direction=1,
    bounds=RATE,
    needs="boundaries",
)


def tolerance_pixels(height: int, width: int, share: float = 0.0075) -> int:
    """Return a tolerance in pixels, at least 1: a share of the image's diagonal, rounded up.

    >>> tolerance_pixels(512, 683)
    7
    """
    return max(1, math.ceil(share * math.hypot(height, width)))


def boundary_counts(
    prediction: npt.NDArray[np.integer],
    label: npt.NDArray[np.integer],
    n_classes: int,
    *,
    ignore: Sequence[int],
    tolerance: int,
) -> IntArray:
    """Return the boundary pixels of each class in one image, (4, C).

    A boundary pixel of a class has a pixel of another class to its left, right, above or below, and neither is ignored:
    edges of ignored regions are no boundaries. Where boundaries themselves are ignored, as in Pascal VOC, little is
    left to score.

    Args:
        prediction: (H, W), 0 to C - 1; any value where the label is ignored.
        label: (H, W), 0 to C - 1 or an ignored value.
        n_classes: C.
        ignore: labels of pixels that do not count; () if all count.
        tolerance: largest distance, in pixels between centres, of boundary pixels that agree; at least 1.

    Returns:
        Rows: predicted boundary pixels; those within the tolerance of a labelled one of the same class; labelled ones;
        those within the tolerance of a predicted one.

    Raises:
        ValueError: the shapes differ, or a boundary pixel has a label or a prediction outside the classes.

    >>> label = np.array([[0, 0, 0, 1, 1, 1]])
    >>> boundary_counts(np.array([[0, 0, 1, 1, 1, 1]]), label, 2, ignore=(), tolerance=1).tolist()
    [[1, 1], [1, 1], [1, 1], [1, 1]]
    """
    if prediction.shape != label.shape:
        raise ValueError(f"a prediction of {prediction.shape} for a label map of {label.shape}")
    counted = counted_pixels(label, ignore)
    outlines = [_boundaries(values, counted) for values in (prediction, label)]
    classes = [values[outline].astype(np.int64) for values, outline in zip((prediction, label), outlines, strict=True)]
    for name, found in zip(("prediction", "label"), classes, strict=True):
        if found.size and not 0 <= found.min() <= found.max() < n_classes:
            wrong = found.max() if found.max() >= n_classes else found.min()
            raise ValueError(f"{name} {wrong} is none of the {n_classes} classes and is not ignored")
    agreeing = [
        _near(outlines[0], classes[0], outlines[1], classes[1], tolerance),
        _near(outlines[1], classes[1], outlines[0], classes[0], tolerance),
    ]
    rows = (classes[0], classes[0][agreeing[0]], classes[1], classes[1][agreeing[1]])
    return np.stack([np.bincount(row, minlength=n_classes) for row in rows]).astype(np.int64)


def boundary_f(counts: npt.NDArray[np.number]) -> FloatArray:
    """Return the F-score of the boundaries of each class, (..., C) for counts (..., 4, C); NaN without boundaries.

    A class whose boundaries are only predicted, only labelled, or never agree, has 0.

    >>> boundary_f(np.array([[4, 2, 0], [2, 0, 0], [2, 0, 0], [2, 0, 0]])).round(3).tolist()
    [0.667, 0.0, nan]
    """
    predicted, hits, labelled, found = (counts[..., row, :].astype(np.float64) for row in range(4))
    precision, recall = np.nan_to_num(quotient(hits, predicted)), np.nan_to_num(quotient(found, labelled))
    score = np.nan_to_num(quotient(2 * precision * recall, precision + recall))
    return np.where(predicted + labelled > 0, score, np.nan)


def boundary_measure(counts: IntArray, units: Units, *, absent: Absent = "omit") -> Measure:
    """Return the mean F-score over classes of N images, counts (N, 4, C), as a function of the images' weights."""
    having = (units.having(np.flatnonzero(of_class)) for of_class in counts[:, 2].T)

    def statistic(weights: FloatArray) -> FloatArray:
        return mean_over_classes(boundary_f(pooled(counts, weights)), absent=absent)[:, None]

    return Measure((BOUNDARY_F,), statistic, class_units=tuple(number for number in having if number))


def _boundaries(values: npt.NDArray[np.integer], counted: BoolArray) -> BoolArray:
    """Return the boundary pixels of all classes, (H, W)."""
    found = np.zeros(values.shape, dtype=np.bool_)
    for one, other in (
        ((slice(None), slice(1, None)), (slice(None), slice(None, -1))),
        ((slice(1, None), slice(None)), (slice(None, -1), slice(None))),
    ):
        differs = (values[one] != values[other]) & counted[one] & counted[other]
        found[one] |= differs
        found[other] |= differs
    return found


def _near(
    outline: BoolArray, classes: IntArray, other_outline: BoolArray, other_classes: IntArray, tolerance: int
) -> BoolArray:
    """Return for each boundary pixel whether the other map has one of its class within the tolerance."""
    width = outline.shape[1] + 2 * tolerance
    padded = np.full((outline.shape[0] + 2 * tolerance, width), -1, dtype=np.int64)
    padded[tolerance:-tolerance, tolerance:-tolerance][other_outline] = other_classes
    rows, columns = np.nonzero(outline)
    places = (rows + tolerance) * width + columns + tolerance
    near = np.zeros(len(places), dtype=np.bool_)
    left = np.arange(len(places))
    steps = np.arange(-tolerance, tolerance + 1)
    distance = steps[:, None] ** 2 + steps**2
    for row, column in np.argwhere(distance <= tolerance**2)[np.argsort(distance[distance <= tolerance**2])]:
        offset = (row - tolerance) * width + column - tolerance
        hit = padded.ravel()[places[left] + offset] == classes[left]
        near[left[hit]] = True
        left = left[~hit]
    return near
