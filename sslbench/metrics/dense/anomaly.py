"""Anomaly detection: rankings of images and of pixels by their scores, means over categories.

A category is ranked by itself, as its memory of good images is its own. Images: area under the ROC curve, average
precision, largest F1. Pixels of all images of a category together: area under the ROC curve, average precision, and
PRO (Bergmann et al., IJCV 2021, section 5): the share of a defect's pixels above a threshold, mean over the connected
regions of defects, integrated over false-positive rates up to 0.3 and divided by 0.3. Where the data say after how many
pixels a region is found, sPRO as well (Bergmann et al., IJCV 2022, "Beyond dents and scratches"): the same of
min(pixels above / pixels needed, 1), up to 0.05. Equal scores are one step of each curve. Areas are those of the curves
at all thresholds. Intervals take the curves at `BINS` quantiles of the defects' scores.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric
from sslbench.metrics.ranking import Ranked, RankingCounts, auroc, non_interpolated

FALSE_POSITIVES = 0.3
"""False-positive rate up to which PRO is integrated."""
SATURATED_FALSE_POSITIVES = 0.05
"""False-positive rate up to which sPRO is integrated."""
BINS = 256
"""Steps of the curves of which intervals are computed."""
_BLOCK = 1 << 26

IMAGE_AUROC = Metric(
    "image_auroc", "Area under the ROC curve of images, mean over categories",
    "%", 1, RATE, needs="anomaly_scores", labels=("anomalies",), chance=0.5, floor=True,
)  # fmt: skip
IMAGE_AP = dataclasses.replace(
    IMAGE_AUROC, name="image_ap", title="Average precision of images, mean over categories", chance=None, floor=False
)
IMAGE_F1 = dataclasses.replace(IMAGE_AP, name="image_f1_max", title="Largest F1 of images, mean over categories")
ANOMALOUS_IMAGES = (IMAGE_AUROC, IMAGE_AP, IMAGE_F1)
PIXEL_AUROC = dataclasses.replace(
    IMAGE_AUROC, name="pixel_auroc", title="Area under the ROC curve of pixels, mean over categories",
    needs="anomaly_maps", floor=False,
)  # fmt: skip
PIXEL_AP = dataclasses.replace(
    PIXEL_AUROC, name="pixel_ap", title="Average precision of pixels, mean over categories", chance=None
)
PRO = dataclasses.replace(
    PIXEL_AUROC, name="aupro@30", title="Overlap with defects up to 30 % false positives, mean over categories",
    chance=FALSE_POSITIVES / 2,
)  # fmt: skip
SPRO = dataclasses.replace(
    PRO, name="auspro@5", title="Overlap with saturated defects up to 5 % false positives, mean over categories",
    chance=None,
)  # fmt: skip
ANOMALOUS_PIXELS = (PIXEL_AUROC, PIXEL_AP, PRO, SPRO)
"""Metrics in the order of `curve_values`."""
OF_KINDS = (IMAGE_AUROC.name, SPRO.name)
"""Metrics that MVTec LOCO reports of each kind of anomaly."""
SCORE_COLUMNS = ("anomaly score",)


def image_values(counts: RankingCounts) -> FloatArray:
    """Return `ANOMALOUS_IMAGES` (R, 3) of a category; NaN without anomalous or without good images.

    >>> ranked = Ranked(np.array([1, 0, 1]), np.array([0.9, 0.5, 0.4]))
    >>> image_values(ranked.counts(np.ones((1, 3)))).round(3).tolist()
    [[0.5, 0.833, 0.8]]
    """
    hits, positives = counts.hits, counts.hits[:, -1:]
    f1 = np.divide(2 * hits, counts.seen + positives, out=np.zeros_like(hits), where=hits > 0).max(axis=1)
    usable = (positives[:, 0] > 0) & (counts.total > positives[:, 0])
    values = np.column_stack([auroc(counts), non_interpolated(counts), f1])
    return np.where(usable[:, None], values, np.nan)


def image_measures(
    values: IntArray, scores: npt.NDArray[np.floating], units: Units, parts: Sequence[IntArray] | None = None
) -> list[Measure]:
    """Return the metrics of images, means over the categories that have good and anomalous ones.

    `values`: (N, 2) category, and 1 for anomalous images; `scores`: (N, 1); `parts`: rows of the images that are ranked
    together, by default those of each category.
    """
    if parts is None:
        parts = [np.flatnonzero(values[:, 0] == number) for number in np.unique(values[:, 0])]
    rows = [own for own in parts if len(np.unique(values[own, 1])) == 2]
    ranked = [Ranked(values[own, 1], scores[own, 0]) for own in rows]

    def statistic(weights: FloatArray) -> FloatArray:
        each = [image_values(one.counts(weights[:, own])) for one, own in zip(ranked, rows, strict=True)]
        return mean_over_categories(each, (len(weights), len(ANOMALOUS_IMAGES)))

    return [Measure(ANOMALOUS_IMAGES, statistic, class_units=tuple(units.having(own) for own in rows))]


def image_auroc_of_each(values: IntArray, scores: npt.NDArray[np.floating], categories: int) -> list[float]:
    """Return the area under the ROC curve of the images of each category; NaN where there is none."""
    found = []
    for number in range(categories):
        own = values[:, 0] == number
        counts = Ranked(values[own, 1], scores[own, 0]).counts(np.ones((1, int(own.sum()))))
        found.append(float(auroc(counts)[0]) if counts.hits.size else float("nan"))
    return found


def right_sides(values: IntArray, scores: FloatArray) -> FloatArray:
    """Return, of each image, the share of the other images of its category that it scores on the right side of (N,).

    >>> right_sides(np.array([[0, 0], [0, 1], [0, 1]]), np.array([0.5, 0.9, 0.1])).tolist()
    [0.5, 1.0, 0.0]
    """
    found = np.zeros(len(values))
    for row, (category, anomalous) in enumerate(values):
        others = scores[(values[:, 0] == category) & (values[:, 1] != anomalous)]
        found[row] = np.mean(scores[row] > others if anomalous else scores[row] < others) if len(others) else 0.5
    return found


def mean_over_categories(each: Sequence[FloatArray], shape: tuple[int, int]) -> FloatArray:
    """Return the means (R, M) of the values (R, M) of categories that have some; NaN without any."""
    table = np.stack(each) if each else np.full((1, *shape), np.nan)
    known = (~np.isnan(table)).sum(axis=0)
    found = np.full(table.shape[1:], np.nan)
    return np.asarray(np.divide(np.nansum(table, axis=0), known, out=found, where=known > 0))


def region_shares(defects: BoolArray) -> FloatArray:
    """Return the share of its region of each pixel (P,) of a mask (H, W), row by row.

    Regions are connected by sides and corners.

    >>> region_shares(np.array([[True, False, True], [False, False, True]])).tolist()
    [1.0, 0.5, 0.5]
    """
    from scipy.ndimage import label

    own = label(defects, structure=np.ones((3, 3)))[0][defects]
    return np.asarray(1 / np.bincount(own, minlength=1)[own])


def saturated_shares(scores: npt.NDArray[np.floating], regions: Sequence[tuple[BoolArray, int]]) -> FloatArray:
    """Return the shares (H, W) of pixels in the regions that they find: 1 / s for the s highest scores of a region.

    regions: mask (H, W) and the number s of pixels after which it is found, of each; they may overlap.

    >>> saturated_shares(np.array([[3.0, 1.0, 2.0]]), [(np.array([[True, True, True]]), 2)]).tolist()
    [[0.5, 0.0, 0.5]]
    """
    found = np.zeros(scores.size)
    for mask, needed in regions:
        pixels = np.flatnonzero(mask)
        # Of equal scores any may be taken: a step of the curve has all of them.
        found[pixels[np.argsort(-scores.ravel()[pixels], kind="stable")[:needed]]] += 1 / needed
    return found.reshape(scores.shape)


def curve_values(
    normal: npt.NDArray[Any], defect: npt.NDArray[Any], overlaps: FloatArray, regions: FloatArray
) -> FloatArray:
    """Return `ANOMALOUS_PIXELS` (R, 4) of R curves in K steps of falling score; NaN without defects or others.

    Args:
        normal: (R, K) pixels without defect in each step.
        defect: (R, K) pixels of defects.
        overlaps: (2, R, K) sums of the shares that these are of their regions, and of their saturated regions.
        regions: (2, R) numbers of these regions; NaN for the metric of none.

    >>> overlaps = np.array([[[0.5, 0.5]], [[1.0, 0.0]]])
    >>> curve_values(np.array([[0, 10]]), np.array([[1, 1]]), overlaps, np.ones((2, 1))).round(3).tolist()
    [[0.75, 0.583, 0.575, 1.0]]
    """
    false, hits = np.cumsum(normal, axis=1, dtype=np.float64), np.cumsum(defect, axis=1, dtype=np.float64)
    usable = (false[:, -1] > 0) & (hits[:, -1] > 0)
    false, hits = false[usable], hits[usable]
    precision = np.divide(hits, hits + false, out=np.zeros_like(hits), where=hits > 0)
    rate, recall = false / false[:, -1:], hits / hits[:, -1:]
    limits = (FALSE_POSITIVES, SATURATED_FALSE_POSITIVES)
    numbers = np.where(regions > 0, regions, np.nan)[:, usable, None]
    heights = np.cumsum(overlaps[:, usable], axis=2) / numbers
    areas = [_area_up_to(rate, height, limit) for height, limit in zip(heights, limits, strict=True)]
    ahead = np.diff(recall, axis=1, prepend=0)
    area = np.sum(np.diff(rate, axis=1, prepend=0) * (recall - ahead / 2), axis=1)
    values = np.full((len(usable), len(ANOMALOUS_PIXELS)), np.nan)
    values[usable] = np.column_stack([area, np.sum(ahead * precision, axis=1), *areas])
    return values


def _area_up_to(rate: FloatArray, height: FloatArray, limit: float) -> FloatArray:
    """Return the means (R,) of curves from (0, 0) over rates up to a limit, by trapezoids."""
    width, rise = np.diff(rate, axis=1, prepend=0), np.diff(height, axis=1, prepend=0)
    inside = np.clip(limit - (rate - width), 0, width)
    share = np.divide(inside, width, out=np.zeros_like(width), where=width > 0)
    return np.asarray(np.sum(inside * (height - rise + rise * share / 2), axis=1) / limit)


class PixelCurves:
    """Curves of the pixels of a category, whose images come one by one, those of the defects' pixels first.

    Memory: 48 bytes per pixel of a defect and, for N images, 32 N `BINS`; not the pixels of the images.
    """

    def __init__(
        self,
        defects: Sequence[npt.NDArray[np.floating]],
        shares: Sequence[FloatArray],
        saturated: Sequence[FloatArray] | None = None,
    ) -> None:
        """Sort the scores of the defects' pixels.

        Args:
            defects: their scores of each of N images.
            shares: see `region_shares`, likewise.
            saturated: see `saturated_shares`, likewise; None: the data have no saturated regions.
        """
        every = shares, [0 * own for own in shares] if saturated is None else saturated
        scores = np.concatenate(defects)
        self._levels, place = np.unique(scores, return_inverse=True)
        size = len(self._levels)
        self._defects = np.bincount(place, minlength=size)
        self._overlaps = np.stack([np.bincount(place, np.concatenate(own), minlength=size) for own in every])
        self._above, self._from, self._normal = np.zeros(size, np.int64), np.zeros(size, np.int64), 0
        self._waiting: list[npt.NDArray[np.floating]] = []
        inner = np.unique(np.quantile(scores, np.linspace(0, 1, BINS)[:-1])) if len(scores) else scores
        self._edges = inner.astype(scores.dtype)
        bins = len(self._edges) + 1
        self._table = np.zeros((4, len(defects), bins))
        for index, (own, *both) in enumerate(zip(defects, *every, strict=True)):
            place = self._bin(own)
            self._table[1, index] = np.bincount(place, minlength=bins)
            self._table[2:, index] = [np.bincount(place, share, minlength=bins) for share in both]
        # The shares of a region sum to 1.
        self._regions = self._table[2:].sum(axis=2).round()

    def _bin(self, scores: npt.NDArray[np.floating]) -> IntArray:
        """Return the bin of each score, the highest first."""
        return np.asarray(len(self._edges) - np.searchsorted(self._edges, scores, side="right"))

    def add(self, index: int, normal: npt.NDArray[np.floating]) -> None:
        """Count the pixels without defect of an image by their scores."""
        self._table[0, index] = np.bincount(self._bin(normal), minlength=self._table.shape[2])
        self._waiting.append(normal)
        if sum(map(len, self._waiting)) > _BLOCK:
            self._count()

    def _count(self) -> None:
        """Count the waiting pixels above and from each level on: sorted together, they take one search per level."""
        normal = np.sort(np.concatenate([np.zeros(0, np.float32), *self._waiting]))
        self._waiting.clear()
        self._above += len(normal) - np.searchsorted(normal, self._levels, side="right")
        self._from += len(normal) - np.searchsorted(normal, self._levels, side="left")
        self._normal += len(normal)

    def values(self) -> FloatArray:
        """Return `ANOMALOUS_PIXELS` (4,) of all images."""
        self._count()
        steps = 2 * len(self._levels) + 1
        defect, overlaps, normal = np.zeros(steps, np.int64), np.zeros((2, steps)), np.zeros(steps, np.int64)
        defect[1::2], overlaps[:, 1::2] = self._defects[::-1], self._overlaps[:, ::-1]
        normal[:-1:2], normal[1::2], normal[-1] = self._above[::-1], self._from[::-1], self._normal
        normal = np.diff(normal, prepend=0)
        regions = self._regions.sum(axis=1, keepdims=True)
        return np.asarray(curve_values(normal[None], defect[None], overlaps[:, None], regions)[0])

    def constant(self) -> FloatArray:
        """Return the metrics (4,) of equal scores of all pixels."""
        normal, defect, *overlaps = self._table.sum(axis=(1, 2))[:, None, None]
        return np.asarray(curve_values(normal, defect, np.array(overlaps), self._regions.sum(axis=1, keepdims=True))[0])

    def statistic(self, weights: FloatArray) -> FloatArray:
        """Return about the same metrics (R, 4) for R weightings of the images (R, N)."""
        normal, defect, *overlaps = weights @ self._table
        return curve_values(normal, defect, np.array(overlaps), self._regions @ weights.T)


def pixel_metrics(each: Sequence[FloatArray]) -> dict[str, float]:
    """Return the means of the metrics (4,) of categories by name; without those that no category has."""
    values = mean_over_categories([own[None] for own in each], (1, len(ANOMALOUS_PIXELS)))[0].tolist()
    return {metric.name: value for metric, value in zip(ANOMALOUS_PIXELS, values, strict=True) if value == value}


def pixel_measure(curves: Sequence[PixelCurves], parts: Sequence[IntArray], units: Units) -> Measure:
    """Return about the same metrics as functions of the weights of the images.

    `parts`: rows of the images of each category.
    """
    constant = np.array([own.constant() for own in curves])
    with_defects, metrics = (np.flatnonzero(~np.isnan(constant).all(axis=axis)).tolist() for axis in (1, 0))

    def statistic(weights: FloatArray) -> FloatArray:
        each = [curves[i].statistic(weights[:, parts[i]])[:, metrics] for i in with_defects]
        return mean_over_categories(each, (len(weights), len(metrics)))

    return Measure(
        tuple(ANOMALOUS_PIXELS[i] for i in metrics),
        statistic,
        class_units=tuple(units.having(parts[i]) for i in with_defects),
    )
