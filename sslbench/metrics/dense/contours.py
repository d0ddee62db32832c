"""Precision and recall of predicted boundaries against several annotators, as the Berkeley benchmark counts them.

Martin, Fowlkes and Malik, 2004 ("Learning to detect natural image boundaries"); Arbelaez et al., 2011 (ODS, OIS, AP).
"""

import dataclasses
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

BOUNDARY_ODS = Metric(
    "boundary_ods", "F of the boundaries at the best threshold of the data set",
    "%", 1, RATE, needs="contours", labels=("boundaries",),
)  # fmt: skip
BOUNDARY_OIS = dataclasses.replace(
    BOUNDARY_ODS, name="boundary_ois", title="F of the boundaries at the best threshold of each image"
)
BOUNDARY_AP = dataclasses.replace(BOUNDARY_ODS, name="boundary_ap", title="Average precision of the boundaries")
CONTOURS = (BOUNDARY_ODS, BOUNDARY_OIS, BOUNDARY_AP)

TOLERANCE = 0.0075
"""Largest distance of matched pixels as a share of the image diagonal."""
THRESHOLDS = np.arange(1, 100) / 100
"""Thresholds of the boundary probability."""
COLUMNS = tuple(
    f"{name} at {threshold:.2f}"
    for threshold in THRESHOLDS
    for name in ("matched in truth", "truth", "matched in prediction", "prediction")
)
"""Counts of an image, see `contour_counts`."""

_AROUND = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""Steps to the neighbours of a pixel, clockwise from the north."""

Pixels = npt.NDArray[np.bool_]
BOUNDARY_F = Metric("boundary_F", "F-score of the boundaries, mean over classes", "%", 1, RATE, needs="boundaries")


def matched_pixels(found: Pixels, truth: Pixels, *, tolerance: float = TOLERANCE) -> tuple[Pixels, Pixels]:
    """Return the pixels of both maps (H, W) that have a partner in a largest one-to-one matching.

    >>> line = np.eye(3, dtype=bool)
    >>> [int(part.sum()) for part in matched_pixels(line, line)]
    [3, 3]
    """
    # Among partners in reach, nearer ones are tried first. The Berkeley code looks for the matching of least distance
    # among the largest, by an approximation; the number of pairs is the same where that finds the largest.
    from scipy import sparse
    from scipy.spatial import cKDTree

    matched = np.zeros_like(found), np.zeros_like(truth)
    places = np.argwhere(found), np.argwhere(truth)
    if not len(places[0]) or not len(places[1]):
        return matched
    radius = tolerance * float(np.hypot(*found.shape))
    near = cKDTree(places[1]).sparse_distance_matrix(cKDTree(places[0]), radius, output_type="ndarray")
    near = near[np.lexsort((near["j"], near["v"], near["i"]))]
    starts = np.searchsorted(near["i"], np.arange(len(places[1]) + 1))
    graph = sparse.csr_matrix(
        (np.ones(len(near), dtype=np.int8), near["j"], starts), shape=(len(places[1]), len(places[0]))
    )
    partner = sparse.csgraph.maximum_bipartite_matching(graph, perm_type="column")
    with_partner = np.flatnonzero(partner >= 0)
    matched[0][tuple(places[0][partner[with_partner]].T)] = True
    matched[1][tuple(places[1][with_partner].T)] = True
    return matched


def thinned(mask: Pixels) -> Pixels:
    """Return a mask (H, W) thinned to lines of one pixel by the two alternating passes of Guo and Hall, 1989.

    >>> bar = np.zeros((7, 9), dtype=bool)
    >>> bar[2:5] = True
    >>> thinned(bar).sum(axis=0).tolist()[2:-2]
    [1, 1, 1, 1, 1]
    """
    # A pass looks again only at pixels beside one that was removed since it last ran: the others stay.
    padded = np.pad(mask.astype(bool), 1)
    flat = padded.reshape(-1)
    around = np.array([y * padded.shape[1] + x for y, x in _AROUND])
    waiting = np.stack([flat, flat])  # for each of the passes
    turn = 0
    while waiting.any():
        places = np.flatnonzero(waiting[turn] & flat)
        waiting[turn] = False
        neighbours = np.packbits(flat[places[:, None] + around], axis=1, bitorder="little")[:, 0]
        dropped = places[_DROPPED[turn][neighbours]]
        flat[dropped] = False
        waiting[:, (dropped[:, None] + around).ravel()] = True
        turn = 1 - turn
    return padded[1:-1, 1:-1].copy()


def _dropped(turn: int) -> Pixels:
    """Return whether a pass removes a pixel, (256,), by its neighbours: a bit for each, in the order of `_AROUND`."""
    n, ne, e, se, s, sw, w, nw = (np.arange(256) >> np.arange(8)[:, None]) & 1 > 0
    lines = np.sum([~n & (ne | e), ~e & (se | s), ~s & (sw | w), ~w & (nw | n)], axis=0)
    neighbours = np.minimum(
        np.sum([nw | n, ne | e, se | s, sw | w], axis=0), np.sum([n | ne, e | se, s | sw, w | nw], axis=0)
    )
    kept = (n | ne | ~se) & e if turn else (s | sw | ~nw) & w
    return np.asarray((lines == 1) & (neighbours >= 2) & (neighbours <= 3) & ~kept)


_DROPPED = _dropped(0), _dropped(1)


def contour_counts(
    probability: FloatArray, annotations: npt.NDArray[np.bool_], *, tolerance: float = TOLERANCE
) -> FloatArray:
    """Return the counts of one image at every threshold, (99, 4).

    Columns: matched pixels of the annotators, pixels of the annotators, matched pixels of the prediction, its pixels.
    A pixel of the prediction is right if it has a partner at any annotator; the annotators' pixels are summed.

    `probability`: (H, W), of a boundary; thresholded, then thinned to lines of one pixel; `annotations`: (A, H, W), one
    map for each annotator, of lines of one pixel.
    """
    counts = np.zeros((len(THRESHOLDS), 4))
    size = -1
    for i, threshold in enumerate(THRESHOLDS):
        mask = probability >= threshold
        above = int(mask.sum())
        if above == size:  # masks shrink, so one of equal size is equal
            counts[i] = counts[i - 1]
            continue
        size = above
        found = thinned(mask)
        right = np.zeros_like(found)
        for truth in annotations:
            in_found, in_truth = matched_pixels(found, truth, tolerance=tolerance)
            right |= in_found
            counts[i, :2] += in_truth.sum(), truth.sum()
        counts[i, 2:] = right.sum(), found.sum()
    return counts


def contour_measure(rows: FloatArray) -> Measure:
    """Return the metrics `CONTOURS` of N images as functions of their weights.

    `rows`: (N, 396), the flattened counts of each image, see `contour_counts`.

    >>> perfect = np.tile([5.0, 5.0, 5.0, 5.0], 99)[None]
    >>> contour_measure(perfect).statistic(np.ones((1, 1))).tolist()
    [[1.0, 1.0, 1.0]]
    """
    # ODS is the largest F at the thresholds themselves; the Berkeley code also interpolates between them. OIS takes the
    # highest of an image's best thresholds, so that an image of which nothing is found adds no wrong pixels. Average
    # precision is the mean over recalls 0, 0.01 to 1 of the largest precision at any threshold with at least that
    # recall, 0 beyond the largest: a threshold that is worse than another one in both changes nothing. The Berkeley
    # code takes every threshold as a point of the curve, linear in between, and 0 below the lowest recall, where a
    # perfect detector with a background above 0 has half the value or less.
    counts = rows.reshape(len(rows), len(THRESHOLDS), 4)
    best = len(THRESHOLDS) - 1 - _f(counts)[:, ::-1].argmax(axis=1)
    best_rows = counts[np.arange(len(counts)), best]

    def statistic(weights: FloatArray) -> FloatArray:
        pooled = (weights @ rows).reshape(len(weights), len(THRESHOLDS), 4)
        average = []
        for recall, precision in zip(*_recall_precision(pooled), strict=True):
            order = np.argsort(recall)
            envelope = np.maximum.accumulate(precision[order][::-1])[::-1]
            at_levels = np.searchsorted(recall[order], np.arange(101) / 100)
            average.append(np.append(envelope, 0.0)[at_levels].mean())
        return np.column_stack([_f(pooled).max(axis=1), _f(weights @ best_rows), average])

    return Measure(CONTOURS, statistic)


def _recall_precision(counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    return _quotient(counts[..., 0], counts[..., 1]), _quotient(counts[..., 2], counts[..., 3])


def _quotient(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Return 0 where the whole is 0."""
    return np.asarray(np.divide(part, whole, out=np.zeros(np.shape(part)), where=whole > 0))


def _f(counts: FloatArray) -> FloatArray:
    recall, precision = _recall_precision(counts)
    return _quotient(2 * recall * precision, recall + precision)


def tolerance_pixels(height: int, width: int, share: float = 0.0075) -> int:
    """Return a tolerance in pixels, at least 1: a share of the image's diagonal, rounded up.

    >>> tolerance_pixels(512, 683)
    7
    """
    return max(1, math.ceil(share * math.hypot(height, width)))


# Boundary F-score of semantic segmentation: agreement of the outlines of classes within a tolerance in pixels (Csurka
# et al., BMVC 2013). Counts of images are stacked, (..., 4, C), and summed before they are divided, or divided image by
# image.
def boundary_counts(
    prediction: npt.NDArray[np.integer],
    label: npt.NDArray[np.integer],
    n_classes: int,
    *,
    ignore: Sequence[int],
    tolerance: int,
) -> IntArray:
    """Return the boundary pixels of each class in one image, (4, C).

    `prediction`: (H, W), 0 to C - 1; any value where the label is ignored; `label`: (H, W), 0 to C - 1 or an ignored
    value.

    >>> label = np.array([[0, 0, 0, 1, 1, 1]])
    >>> boundary_counts(np.array([[0, 0, 1, 1, 1, 1]]), label, 2, ignore=(), tolerance=1).tolist()
    [[1, 1], [1, 1], [1, 1], [1, 1]]
    """
    # A boundary pixel of a class has a pixel of another class to its left, right, above or below, and neither is
    # ignored: edges of ignored regions are no boundaries. Where boundaries themselves are ignored, as in Pascal VOC,
    # little is left to score.
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

    def statistic(weights: FloatArray) -> FloatArray:
        return mean_over_classes(boundary_f(pooled(counts, weights)), absent=absent)[:, None]

    return Measure((BOUNDARY_F,), statistic, class_units=units.having_each(counts[:, 2]))


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
