"""Precision and recall of predicted boundaries against several annotators, as the Berkeley benchmark counts them.

Martin, Fowlkes and Malik, 2004 ("Learning to detect natural image boundaries"); Arbelaez et al., 2011 (ODS, OIS, AP).
"""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray

TOLERANCE = 0.0075
"""Largest distance of matched pixels as a share of the image diagonal."""
THRESHOLDS = np.arange(1, 100) / 100
"""Thresholds of the boundary probability."""
_UNMATCHED = 100.0
"""Cost of a pixel without a partner, in units of the largest distance."""

_AROUND = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""Steps to the neighbours of a pixel, clockwise from the north."""

Pixels = npt.NDArray[np.bool_]


def matched_pixels(found: Pixels, truth: Pixels, *, tolerance: float = TOLERANCE) -> tuple[Pixels, Pixels]:
    """Return the pixels of both maps (H, W) that have a partner in the one-to-one matching of least cost.

    The cost of a pair is its distance. A pixel without a partner costs 100 times the largest distance, so the number of
    pairs comes first. The Berkeley code has the same costs, and an approximation in place of this exact solution.

    >>> line = np.eye(3, dtype=bool)
    >>> [int(part.sum()) for part in matched_pixels(line, line)]
    [3, 3]

    Args:
        found: thinned boundaries of a prediction.
        truth: boundaries by one annotator.
        tolerance: largest distance of a pair as a share of the diagonal.
    """
    from scipy import sparse
    from scipy.spatial import cKDTree

    matched = np.zeros_like(found), np.zeros_like(truth)
    places = np.argwhere(found), np.argwhere(truth)
    rows, columns = len(places[0]), len(places[1])
    if not rows or not columns:
        return matched
    radius = tolerance * float(np.hypot(*found.shape))
    near = cKDTree(places[0]).sparse_distance_matrix(cKDTree(places[1]), radius, output_type="coo_matrix")
    if not near.nnz:
        return matched
    # Every pixel has a place of its own to stay alone. Places of matched pixels are paired with each other, and cost 0.
    # All costs grow by 1, as a cost of 0 is no edge; the sum grows by the same for every solution.
    pairs = sparse.coo_matrix((near.data + 1, (near.row, near.col)), shape=(rows, columns))
    unused = sparse.coo_matrix((np.ones(near.nnz), (near.col, near.row)), shape=(columns, rows))
    alone = _UNMATCHED * radius + 1
    costs = sparse.bmat([[pairs, alone * sparse.identity(rows)], [alone * sparse.identity(columns), unused]]).tocsr()
    left, right = sparse.csgraph.min_weight_full_bipartite_matching(costs)
    real = (left < rows) & (right < columns)
    for part, place, index in zip(matched, places, (left[real], right[real]), strict=True):
        part[tuple(place[index].T)] = True
    return matched


def thinned(mask: Pixels) -> Pixels:
    """Return a mask (H, W) thinned to lines of one pixel by the two alternating passes of Guo and Hall, 1989.

    >>> bar = np.zeros((7, 9), dtype=bool)
    >>> bar[2:5] = True
    >>> thinned(bar).sum(axis=0).tolist()[2:-2]
    [1, 1, 1, 1, 1]
    """
    current = mask.astype(bool)
    removed = True
    while removed:
        removed = False
        for first in (True, False):
            padded = np.pad(current, 1)
            n, ne, e, se, s, sw, w, nw = (
                padded[1 + y : padded.shape[0] - 1 + y, 1 + x : padded.shape[1] - 1 + x] for y, x in _AROUND
            )
            lines = np.sum([~n & (ne | e), ~e & (se | s), ~s & (sw | w), ~w & (nw | n)], axis=0)
            neighbours = np.minimum(
                np.sum([nw | n, ne | e, se | s, sw | w], axis=0), np.sum([n | ne, e | se, s | sw, w | nw], axis=0)
            )
            kept = (s | sw | ~nw) & w if first else (n | ne | ~se) & e
            drop = current & (lines == 1) & (neighbours >= 2) & (neighbours <= 3) & ~kept
            removed |= bool(drop.any())
            current = current & ~drop
    return current


def contour_counts(
    probability: FloatArray, annotations: npt.NDArray[np.bool_], *, tolerance: float = TOLERANCE
) -> FloatArray:
    """Return the counts of one image at every threshold, (99, 4).

    Columns: matched pixels of the annotators, pixels of the annotators, matched pixels of the prediction, its pixels.
    A pixel of the prediction is right if it has a partner at any annotator; the annotators' pixels are summed.

    Args:
        probability: (H, W), of a boundary; thresholded, then thinned to lines of one pixel.
        annotations: (A, H, W), one map for each annotator, of lines of one pixel.
        tolerance: see `matched_pixels`.
    """
    counts = np.zeros((len(THRESHOLDS), 4))
    for row, threshold in zip(counts, THRESHOLDS, strict=True):
        found = thinned(probability >= threshold)
        right = np.zeros_like(found)
        for truth in annotations:
            in_found, in_truth = matched_pixels(found, truth, tolerance=tolerance)
            right |= in_found
            row[:2] += in_truth.sum(), truth.sum()
        row[2:] = right.sum(), found.sum()
    return counts


def contour_scores(counts: FloatArray) -> tuple[float, float, float]:
    """Return F at the best threshold of the data set (ODS), F at the best of each image (OIS) and average precision.

    ODS is the largest F at the thresholds themselves; the Berkeley code also interpolates between them. Average
    precision is the mean of the precision at recalls 0, 0.01 to 1, linear between thresholds and 0 outside of them.

    Args:
        counts: (N, 99, 4), see `contour_counts`.
    """
    pooled = counts.sum(axis=0)
    best = _f(counts).argmax(axis=1)
    chosen = counts[np.arange(len(counts)), best].sum(axis=0)
    recall, precision = _recall_precision(pooled)
    order = np.lexsort((-precision, recall))
    recalls, first = np.unique(recall[order], return_index=True)
    points = np.interp(np.arange(101) / 100, recalls, precision[order][first], left=0.0, right=0.0)
    return float(_f(pooled).max()), float(_f(chosen)), float(points.mean())


def _recall_precision(counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    return counts[..., 0] / np.maximum(counts[..., 1], 1), counts[..., 2] / np.maximum(counts[..., 3], 1)


def _f(counts: FloatArray) -> FloatArray:
    recall, precision = _recall_precision(counts)
    return np.asarray(2 * recall * precision / np.maximum(recall + precision, 1e-12))
