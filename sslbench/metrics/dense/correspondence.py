"""Semantic and geometric correspondence: PCK of keypoints, recall and AUC of matches under a known map.

PCK (percentage of correct keypoints; Yang and Ramanan 2013) has three averages that differ by several points: over
pairs ("per image", the authors of SPair-71k), over all points ("per point", most papers since 2023) and over classes.
All follow from the number of hits per pair, so that an interval resamples pairs: 12,234 pairs of SPair-71k and four
thresholds are 400 kB.
"""

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.dense.pooling import mean_over_classes, means, pooled, quotient
from sslbench.metrics.intervals import Units, Values, ends
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

ALPHAS = (0.01, 0.05, 0.1, 0.15)
"""Thresholds of PCK, as shares of the longer side of the target's box."""
PIXELS = (1, 3, 5, 10)
"""Thresholds of the errors of matches in pixels."""

PCK_PER_IMAGE = tuple(
    Metric(
        f"pck_per_image@{alpha}",
        f"Share of keypoints within {alpha} of the box, mean over pairs",
        "%",
        1,
        RATE,
        needs="keypoints",
        labels=("points",),
    )
    for alpha in ALPHAS
)
PCK_PER_POINT = tuple(
    dataclasses.replace(
        PCK_PER_IMAGE[0],
        name=f"pck_per_point@{alpha}",
        title=f"Share of keypoints within {alpha} of the box, over all points",
    )
    for alpha in ALPHAS
)
PCK_PER_CLASS = tuple(
    dataclasses.replace(
        PCK_PER_IMAGE[0],
        name=f"pck_per_class@{alpha}",
        title=f"Share of keypoints within {alpha} of the box, mean over pairs of a class, then over classes",
    )
    for alpha in ALPHAS
)
SWAPPED = dataclasses.replace(
    PCK_PER_IMAGE[0],
    name="swapped@0.1",
    title="Share of keypoints that are missed and matched to within 0.1 of the box of another keypoint",
    direction=-1,
)
MATCH_RECALL = tuple(
    dataclasses.replace(
        PCK_PER_IMAGE[0],
        name=f"match_recall@{pixels}px",
        title=f"Share of matches within {pixels} pixels",
        needs="matches",
        labels=("homography",),
    )
    for pixels in PIXELS
)
MATCH_AUC = tuple(
    dataclasses.replace(
        MATCH_RECALL[0], name=f"match_auc@{pixels}px", title=f"Area below the recall of matches up to {pixels} pixels"
    )
    for pixels in PIXELS
)

POINT_COLUMNS = (*(f"found@{alpha}" for alpha in ALPHAS), "swapped@0.1", "points")
"""Columns of the scores of a pair of images: numbers of keypoints."""
MATCH_COLUMNS = (*(f"within {pixels} px" for pixels in PIXELS), "matches")
"""Columns of the scores of a pair of images under a homography: numbers of matches."""


def hits(
    predicted: npt.ArrayLike,
    target: npt.ArrayLike,
    side: float,
    alphas: tuple[float, ...] = ALPHAS,
    *,
    strict: bool = False,
) -> npt.NDArray[np.bool_]:
    """Return the keypoints of a pair that are found, (K, A).

    `predicted`: (K, 2) predicted positions in the target image; `target`: (K, 2) true positions, in the same pixels.

    >>> hits([[10, 10], [30, 10]], [[10, 15], [10, 10]], 100.0, (0.05, 0.1)).tolist()
    [[True, True], [False, False]]
    """
    distance = np.linalg.norm(np.subtract(predicted, target, dtype=np.float64), axis=1)[:, None]
    limits = np.asarray(alphas) * side
    return np.asarray(distance < limits if strict else distance <= limits)


@dataclasses.dataclass(frozen=True)
class PairHits:
    """Number of keypoints found per pair of images, from which every average of PCK follows.

    Attributes:
        found: (N, A) keypoints of each pair found at each threshold; expected numbers for a random answer.
        points: (N,) scored keypoints of each pair; pairs without any are left out of all averages.
        classes: (N,) class of each pair, from 0 on.
        swapped: (N,) keypoints of each pair that are missed and matched to another one; None where not counted.
    """

    found: IntArray | FloatArray
    points: IntArray
    classes: IntArray
    swapped: IntArray | FloatArray | None = None

    @classmethod
    def of_rows(cls, rows: npt.NDArray[np.floating], classes: npt.NDArray[np.integer]) -> "PairHits":
        """Return the hits in rows (N, A + 2) with the columns `POINT_COLUMNS`, and the class of each pair (N,)."""
        each = rows.astype(np.float64)
        swapped = None if np.isnan(each[:, -2]).any() else each[:, -2]
        return cls(each[:, : len(ALPHAS)], each[:, -1].astype(np.int64), classes.astype(np.int64), swapped)

    def per_image(self, weights: FloatArray) -> FloatArray:
        """Return PCK as the mean over pairs, (R, A).

        `weights`: (R, N) R weightings of the pairs.

        >>> pairs = PairHits(np.array([[1], [8]]), np.array([2, 8]), np.array([0, 1]))
        >>> pairs.per_image(np.ones((1, 2))).tolist(), pairs.per_point(np.ones((1, 2))).tolist()
        ([[0.75]], [[0.9]])
        """
        return means(_shares(self.found.astype(np.float64), self.points[:, None]), weights)

    def per_point(self, weights: FloatArray) -> FloatArray:
        """Return PCK over all points, (R, A)."""
        return _shares(pooled(self.found, weights), pooled(self.points, weights)[:, None])

    def of_classes(self, weights: FloatArray, average: Literal["image", "point"] = "image") -> FloatArray:
        """Return the PCK of each class, (R, C, A); NaN for a class without a pair.

        `weights`: (R, N) R weightings of the pairs.
        """
        number = int(self.classes.max(initial=-1)) + 1
        function = self.per_image if average == "image" else self.per_point
        parts = [function(weights * (self.classes == c)) for c in range(number)]
        return np.stack(parts, axis=1) if parts else np.zeros((len(weights), 0, self.found.shape[1]))

    def per_class(self, weights: FloatArray, average: Literal["image", "point"] = "image") -> FloatArray:
        """Return the mean over the classes that have a pair, (R, A); arguments as for `of_classes`."""
        return mean_over_classes(np.swapaxes(self.of_classes(weights, average), 1, 2))


def pck_measures(pairs: PairHits, units: Units) -> list[Measure]:
    """Return PCK at the thresholds `ALPHAS`, per image, point and class, as functions of the weights of the pairs.

    >>> from sslbench.metrics.summary import with_intervals
    >>> found = np.random.default_rng(0).integers(0, 9, (60, 4))
    >>> pairs = PairHits(np.sort(found, axis=1), np.full(60, 8), np.arange(60) % 3)
    >>> units = Units.of(60, None)
    >>> (per_image, *_) = pck_measures(pairs, units)
    >>> [round(value, 2) for value in with_intervals(per_image, units, 0, 200)["pck_per_image@0.1"]]
    [0.65, 0.58, 0.71]
    """
    classes = np.arange(int(pairs.classes.max(initial=-1)) + 1)
    of_class = (pairs.classes[:, None] == classes) & (pairs.points > 0)[:, None]
    measures = [
        Measure(PCK_PER_IMAGE, pairs.per_image),
        Measure(PCK_PER_POINT, pairs.per_point),
        Measure(PCK_PER_CLASS, pairs.per_class, class_units=units.having_each(of_class)),
    ]
    if pairs.swapped is None:
        return measures
    swapped = dataclasses.replace(pairs, found=pairs.swapped[:, None], swapped=None)
    return [*measures, Measure((SWAPPED,), swapped.per_point)]


def dyadic_errors(influence: FloatArray, images: IntArray) -> FloatArray:
    """Return the standard errors (M,) of means over pairs of images, where pairs that share an image are dependent.

    `influence`: (N, M) influence of each pair on the mean: for a mean of values, (value - mean) / N; `images`: (N, 2)
    numbers of the two images of each pair; the order does not matter.

    >>> apart = dyadic_errors(np.array([[0.1], [-0.1]]), np.array([[0, 1], [2, 3]]))
    >>> shared = dyadic_errors(np.array([[0.1], [0.1], [-0.2]]), np.array([[0, 1], [0, 2], [3, 4]]))
    >>> apart.round(3).tolist(), shared.round(3).tolist()
    ([0.163], [0.316])
    """
    # The variance is the sum of the products of the influences of all pairs of pairs that share an image (Fafchamps and
    # Gubert 2007; Aronow, Samii and Assenova 2015), at least that of independent pairs, with the factor n / (n - 1) for
    # n images.
    numbers = np.unique(images)
    dyads, place = np.unique(np.sort(np.searchsorted(numbers, images), axis=1), axis=0, return_inverse=True)
    of_dyads = np.zeros((len(dyads), influence.shape[1]))
    np.add.at(of_dyads, place.ravel(), influence)
    of_images = np.zeros((len(numbers), influence.shape[1]))
    for column in (0, 1):
        np.add.at(of_images, dyads[:, column], of_dyads)
    independent = (of_dyads**2).sum(axis=0)
    variance = np.maximum((of_images**2).sum(axis=0) - independent, independent)
    return np.asarray(np.sqrt(variance * len(numbers) / max(1, len(numbers) - 1)))


def pck_with_intervals(pairs: PairHits, images: IntArray) -> Values:
    """Return PCK per image, point and class and the swapped keypoints with 95 % intervals: name -> value, low, high.

    Pairs that share an image are dependent, see `dyadic_errors`; the units of the interval are the images.

    `images`: (N, 2) numbers of the source and the target image of each pair.

    >>> pairs = PairHits(np.tile([1, 2, 3, 4], (50, 1)), np.full(50, 8), np.zeros(50, int), np.ones(50))
    >>> found = pck_with_intervals(pairs, np.arange(100).reshape(50, 2))
    >>> [round(value, 3) for value in found["pck_per_image@0.1"]]
    [0.375, 0.285, 0.474]
    """
    scored = pairs.points > 0
    points = pairs.points[scored].astype(np.float64)[:, None]
    found, classes = np.asarray(pairs.found, dtype=np.float64)[scored], pairs.classes[scored]
    swapped = np.zeros((len(points), 1)) if pairs.swapped is None else np.asarray(pairs.swapped)[scored, None]
    share, number = found / points, np.bincount(classes, minlength=1)
    by_class = np.stack([share[classes == c].mean(axis=0) for c in np.flatnonzero(number)])
    own = by_class[np.searchsorted(np.flatnonzero(number), classes)]
    # Residuals of a class lack the variance of its mean: of pairs of all m images of it, where each adds to its pairs,
    # the variance by `dyadic_errors` is (m - 2) (m - 3) / (m (m - 1)) of the true one.
    sizes = np.array([max(4, len(np.unique(images[scored][classes == c]))) for c in range(len(number))])
    lacking = np.sqrt(sizes * (sizes - 1) / ((sizes - 2) * (sizes - 3)))[classes][:, None]
    each = np.column_stack([found, swapped])
    ratio = each.sum(axis=0) / points.sum()
    pooled_influence = (each - ratio * points) / points.sum()
    values = np.concatenate([share.mean(axis=0), ratio[:-1], by_class.mean(axis=0), ratio[-1:]])
    influence = np.column_stack(
        [
            (share - share.mean(axis=0)) / len(share),
            pooled_influence[:, :-1],
            lacking * (share - own) / (number[classes][:, None] * len(by_class)),
            pooled_influence[:, -1:],
        ]
    )
    errors = dyadic_errors(influence, images[scored])
    size = len(np.unique(images[scored]))
    metrics = (*PCK_PER_IMAGE, *PCK_PER_POINT, *PCK_PER_CLASS, SWAPPED)
    return {
        metric.name: (value, *ends(value, error, size=size))
        for metric, value, error in zip(metrics, values.tolist(), errors.tolist(), strict=True)
        if metric is not SWAPPED or pairs.swapped is not None
    }


def swaps(
    predicted: npt.ArrayLike, target: npt.ArrayLike, parts: IntArray, visible: npt.NDArray[np.bool_], limit: float
) -> npt.NDArray[np.bool_]:
    """Return the visible keypoints that are missed and whose prediction hits another one of the same part, (K,).

    `predicted`: (K, 2) predicted positions; `target`: (K, 2) true positions; `parts`: (K,) number of the semantic part
    of each keypoint; negative for none; `visible`: (K,) keypoints that are visible in the target.

    >>> ears = np.array([[0.0, 0.0], [10.0, 0.0]])
    >>> swaps(ears[::-1], ears, np.array([3, 3]), np.array([True, True]), 1.0).tolist()
    [True, True]
    """
    found, true = np.asarray(predicted, dtype=np.float64), np.asarray(target, dtype=np.float64)
    near = np.linalg.norm(found[:, None] - true, axis=2) <= limit
    other = (parts[:, None] == parts) & (parts[:, None] >= 0) & visible
    np.fill_diagonal(other, False)
    return np.asarray(visible & ~np.diagonal(near) & (near & other).any(axis=1))


class MatchErrors:
    """Errors of all matches of all pairs, sorted once, from which recall and AUC follow for any weights of the pairs.

    >>> errors = MatchErrors(np.array([0.5, 3.0, 9.0, 1.0]), np.array([0, 0, 1, 1]))
    >>> errors.recall(np.ones((1, 2)), (1, 5)).tolist(), errors.auc(np.ones((1, 2)), (5,)).round(3).tolist()
    ([[0.5, 0.75]], [[0.6]])
    """

    def __init__(self, errors: FloatArray, pairs: IntArray) -> None:
        """Sort the errors.

        `errors`: (M,) distance of each match from its true position; inf for a match without one; `pairs`: (M,) number
        of the pair of each match, from 0 on.
        """
        order = np.argsort(errors, kind="stable")
        self._errors, self._pairs = errors[order], pairs[order]

    def recall(self, weights: FloatArray, limits: tuple[float, ...] = PIXELS) -> FloatArray:
        """Return the share of matches with an error of at most each limit, (R, L); NaN without matches.

        `weights`: (R, N) R weightings of the pairs.
        """
        each = weights[:, self._pairs]
        total = np.concatenate([np.zeros((len(each), 1)), np.cumsum(each, axis=1)], axis=1)
        return _shares(total[:, np.searchsorted(self._errors, limits, side="right")], total[:, -1:])

    def auc(self, weights: FloatArray, limits: tuple[float, ...] = PIXELS) -> FloatArray:
        """Return the area below the recall up to each limit, divided by the limit, (R, L); NaN without matches."""
        # By trapezoids between the errors, from (0, 0) on, and flat from the last error below the limit (Sarlin et al.,
        # CVPR 2020). Arguments as for `recall`.
        found = np.full((len(weights), len(limits)), np.nan)
        for row, weight in enumerate(weights):
            own = weight[self._pairs]
            if own.sum() <= 0:
                continue
            x, y = np.r_[0.0, self._errors[own > 0]], np.r_[0.0, np.cumsum(own[own > 0]) / own.sum()]
            for column, limit in enumerate(limits):
                last = int(np.searchsorted(x, limit))
                flat = np.r_[x[:last], limit], np.r_[y[:last], y[last - 1]]
                found[row, column] = np.trapezoid(flat[1], flat[0]) / limit
        return found


def recall_measure(rows: npt.NDArray[np.floating]) -> Measure:
    """Return the recall of matches as a function of the weights of the pairs.

    `rows`: (N, L + 1), columns `MATCH_COLUMNS`.
    """
    each = rows.astype(np.float64)
    return Measure(MATCH_RECALL, lambda weights: _shares(pooled(each[:, :-1], weights), pooled(each[:, -1:], weights)))


def match_measure(errors: MatchErrors) -> Measure:
    """Return recall and AUC of matches at the limits `PIXELS` as a function of the weights of the pairs."""
    return Measure(
        (*MATCH_RECALL, *MATCH_AUC), lambda weights: np.column_stack([errors.recall(weights), errors.auc(weights)])
    )


def apply_homography(homography: FloatArray, points: FloatArray) -> FloatArray:
    """Return points (K, 2) mapped by a homography (3, 3); infinite behind its horizon.

    >>> apply_homography(np.array([[2.0, 0, 1], [0, 2, 0], [0, 0, 1]]), np.array([[3.0, 4.0]])).tolist()
    [[7.0, 8.0]]
    """
    mapped = np.column_stack([points, np.ones(len(points))]) @ homography.T
    depth = mapped[:, 2:]
    return np.where(depth > 0, mapped[:, :2] / np.where(depth > 0, depth, 1), np.inf)


def _shares(part: FloatArray, whole: npt.NDArray[np.number]) -> FloatArray:
    """Return the quotients (N, A) of values (N, A) and (N, 1); NaN where the denominator is 0."""
    return quotient(part, np.broadcast_to(whole, part.shape))
