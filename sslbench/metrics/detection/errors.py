"""Causes of lost average precision: the six kinds of error of TIDE.

Bolya et al. 2020, "TIDE: A General Toolbox for Identifying Object Detection Errors", sections 2 and 3.

A detection that is wrong at an overlap of .5 is of one kind, in this order: `localisation` (overlap of .1 to .5 with
an object of its class), `classification` (of .5 or more with one of another class), `duplicate` (of .5 or more with one
of its class that a better detection has), `background` (at most .1 with any object), `both` (the rest: wrong class and
place). `missed` is an object that no detection has, not even with a localisation or classification error. The cost of a
kind is the gain in AP50 if its errors were mended: of those of localisation and classification the best one for
each object that is not found becomes right, and the others are removed.

Crowds and difficult objects do not count, and neither do their detections.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection.matches import COCO_MOST, ClassMatches, Detections, Truth, coco_overlap
from sslbench.metrics.intervals import Interval, Units, bootstrap

KINDS = ("classification", "localisation", "both", "duplicate", "background", "missed")
_RIGHT, _IGNORED = -1, -2
_POSITIVE, _BACKGROUND = 0.5, 0.1


@dataclasses.dataclass(frozen=True)
class ErrorAnalysis:
    """Errors of a detector at an overlap of .5.

    Attributes:
        ap50: AP50 as COCO computes it, a fraction.
        counts: kind -> number of errors.
        costs: kind -> gain in AP50 if they were mended, a fraction, with its 95 % interval over test images.
        kinds: (n,), kind of each detection, a position in `KINDS`; -1 right, -2 not counted.
        missed: (m,), objects that are missed.
    """

    ap50: float
    counts: Mapping[str, int]
    costs: Mapping[str, Interval]
    kinds: IntArray
    missed: BoolArray


def error_analysis(truth: Truth, found: Detections, *, seed: int = 0, resamples: int = 300) -> ErrorAnalysis:
    """Return the errors of the boxes of a detector, and their costs.

    `resamples`: number of its resamples; 0 leaves the intervals NaN.

    >>> zeros, ones = np.zeros(2, np.int64), np.ones(2, np.int64)
    >>> boxes, no = np.array([[0.0, 0, 9, 9], [20, 20, 30, 30]]), np.zeros(2, np.bool_)
    >>> truth = Truth(1, ("cat", "dog"), zeros, boxes, np.array([0, 1]), no, no, np.array([81.0, 100.0]))
    >>> found = Detections(zeros, boxes, np.array([0.9, 0.8]), np.array([0, 0]))
    >>> errors = error_analysis(truth, found, resamples=0)
    >>> errors.counts["classification"], round(errors.ap50, 3), round(errors.costs["classification"][0], 3)
    (1, 0.5, 0.5)
    """
    # The costs are those of the package tidecv, except that classes without an object do not enter the mean (there a
    # class with detections alone counts as 0), and that the 100 best detections of a class on an image count, as in
    # AP50.
    sorted_ = _Sorted(truth, found)
    once = np.ones((truth.n_images, 1))
    versions = {kind: sorted_.curves(kind) for kind in ("", *KINDS)}

    def ap(kind: str, weights: FloatArray) -> FloatArray:
        rule = precision_recall.coco_points
        return precision_recall.mean_over(
            [precision_recall.average_precision(curve, weights, rule) for curve in versions[kind]]
        )

    def statistic(counts: FloatArray) -> FloatArray:
        weights = np.ascontiguousarray(counts.T)
        return np.column_stack([ap(kind, weights) - own for own in [ap("", weights)] for kind in KINDS])

    base = float(ap("", once)[0])
    values = {kind: float(ap(kind, once)[0]) - base for kind in KINDS}
    low, high = np.full((2, len(KINDS)), np.nan)
    if resamples:
        points = bootstrap(statistic, Units.of(truth.n_images, truth.groups), n=resamples, seed=seed)
        own = np.array(list(values.values()))  # reflected at the value, as the intervals of AP
        low, high = 2 * own - points.high, 2 * own - points.low
    counts = {kind: int((sorted_.kinds == place).sum()) for place, kind in enumerate(KINDS)}
    return ErrorAnalysis(
        base,
        counts | {"missed": int(sorted_.missed.sum())},
        {kind: (values[kind], float(low[i]), float(high[i])) for i, kind in enumerate(KINDS)},
        sorted_.kinds,
        sorted_.missed,
    )


class _Sorted:
    """Detections sorted into right ones and kinds of error."""

    def __init__(self, truth: Truth, found: Detections) -> None:
        self.truth, self.found = truth, found
        self.counted = ~(truth.crowd | truth.difficult)
        self.kinds = np.full(len(found), _IGNORED, dtype=np.int64)
        self.mended = np.full(len(found), -1, dtype=np.int64)  # the object that a mended detection would find
        self.missed = self.counted.copy()
        by_image = np.argsort(found.images, kind="stable")
        starts = np.searchsorted(found.images[by_image], np.arange(truth.n_images + 1))
        of_truth = np.argsort(truth.images, kind="stable")
        first = np.searchsorted(truth.images[of_truth], np.arange(truth.n_images + 1))
        for image in np.unique(found.images):
            rows = by_image[starts[image] : starts[image + 1]]
            self._sort_image(_best(found, rows), of_truth[first[image] : first[image + 1]])

    def _sort_image(self, rows: IntArray, objects: IntArray) -> None:
        """Sort the detections of an image, in order of falling score."""
        table = coco_overlap(self.truth, self.found, rows, objects, "boxes")
        same = self.found.labels[rows][:, None] == self.truth.labels[objects][None]
        counted = self.counted[objects]
        used = self._match(rows, objects, np.where(same, table, -1.0))
        alike = np.where(same & counted, table, 0.0)
        others = np.where(~same & counted, table, 0.0)
        usable = np.zeros(len(objects), dtype=np.bool_)
        best: dict[int, int] = {}
        for place, row in enumerate(rows):
            if self.kinds[row] == _RIGHT or self.kinds[row] == _IGNORED:
                continue
            kind, target = _kind(alike[place], others[place]) if counted.any() else ("background", -1)
            self.kinds[row] = KINDS.index(kind)
            if target >= 0 and not used[target]:
                usable[target] = True
                if target not in best:  # the rows fall in score
                    best[target] = row
                    self.mended[row] = objects[target]
        self.missed[objects[used | usable]] = False

    def _match(self, rows: IntArray, objects: IntArray, overlaps: FloatArray) -> BoolArray:
        """Match as COCO does at .5; mark the detections as right, wrong (0) or not counted, return the used objects."""
        counted, crowd = self.counted[objects], self.truth.crowd[objects]
        free = np.ones(len(objects), dtype=np.bool_)
        size = len(objects)
        for place, row in enumerate(rows):
            able = (overlaps[place] >= _POSITIVE) & free
            able = able & counted if (able & counted).any() else able
            if not able.any():
                self.kinds[row] = 0
                continue
            taken = size - 1 - int(np.where(able, overlaps[place], -1.0)[::-1].argmax())
            self.kinds[row] = _RIGHT if counted[taken] else _IGNORED
            free[taken] = crowd[taken]
        return ~free & counted

    def curves(self, kind: str) -> list[precision_recall.PrecisionRecallCurve]:
        """Return the curve of each class with one kind of error mended; '' for none."""
        place = KINDS.index(kind) if kind else None
        labels, right = self.found.labels.copy(), self.kinds == _RIGHT
        kept = self.kinds != _IGNORED
        if place is not None and kind != "missed":
            wrong = self.kinds == place
            mended = wrong & (self.mended >= 0)
            labels[mended] = self.truth.labels[self.mended[mended]]
            right, kept = right | mended, kept & (~wrong | mended)
        objects = self.counted & ~self.missed if kind == "missed" else self.counted
        curves = []
        for label in range(len(self.truth.classes)):
            rows = np.flatnonzero((labels == label) & kept)
            scores = self.found.scores[rows].astype(np.float64)
            order = np.lexsort((self.found.images[rows], -scores))
            rows, scores = rows[order], scores[order]
            of_class = self.truth.images[objects & (self.truth.labels == label)]
            number, hits = np.bincount(of_class, minlength=self.truth.n_images), right[rows][None, None]
            fields = (self.found.images[rows], np.zeros(len(rows), np.int64), hits, np.zeros_like(hits), number[None])
            curves.append(precision_recall.curves(ClassMatches(*fields, scores))[0][0])
        return curves


def _best(found: Detections, rows: IntArray) -> IntArray:
    """Return the best detections of each class on an image, in order of falling score."""
    rows = rows[np.argsort(-found.scores[rows].astype(np.float64), kind="stable")]
    kept = np.ones(len(rows), dtype=np.bool_)
    if len(rows) > COCO_MOST:
        for label in np.unique(found.labels[rows]):
            kept[np.flatnonzero(found.labels[rows] == label)[COCO_MOST:]] = False
    return rows[kept]


def _kind(alike: FloatArray, others: FloatArray) -> tuple[str, int]:
    """Return the kind of a wrong detection, and the object that it would find if it were mended; -1 for none.

    `alike`: (g,), overlap with the counted objects of its class, 0 for those of others; `others`: (g,), overlap with
    those of other classes.
    """
    nearest, other = int(alike.argmax()), int(others.argmax())
    if _BACKGROUND <= alike[nearest] <= _POSITIVE:
        return "localisation", nearest
    if others[other] >= _POSITIVE:
        return "classification", other
    if alike[nearest] >= _POSITIVE:
        return "duplicate", -1
    return ("background", -1) if max(alike[nearest], others[other]) <= _BACKGROUND else ("both", -1)
