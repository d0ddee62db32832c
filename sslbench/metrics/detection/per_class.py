"""Metrics of each class with intervals, and precision-recall curves, of detections."""

import dataclasses

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection.difference import RULES, ApDefinition, matches_of
from sslbench.metrics.detection.matches import COCO_MOST, THRESHOLDS, ClassMatches, Detections, Truth
from sslbench.metrics.intervals import Interval, Statistic, Units, bootstrapped

CLASS_METRICS = ("AP", "AP50", "AP75", "AR100")
CURVE_OVERLAPS = (0.5, 0.75)


def class_scores(
    truth: Truth, found: Detections, definition: ApDefinition, *, seed: int = 0, resamples: int = 300
) -> dict[str, dict[str, Interval]]:
    """Return AP, AP50, AP75 and AR100 of the boxes of each class, as fractions with 95 % intervals over images.

    Args:
        truth: labelled objects.
        found: detections.
        definition: of average precision, see `difference.ApDefinition`.
        seed: seed of the bootstrap.
        resamples: number of its resamples.

    Returns:
        Class -> metric -> value, low and high end; NaN for a class without objects.

    >>> zeros = np.zeros(1, np.int64)
    >>> box, no = np.array([[0.0, 0.0, 9.0, 9.0]]), np.zeros(1, np.bool_)
    >>> truth = Truth(1, ("cat",), zeros, box, zeros, no, no, np.array([81.0]))
    >>> scores = class_scores(truth, Detections(zeros, box, np.array([0.9]), zeros), "coco", resamples=10)
    >>> scores["cat"]["AR100"][0]
    1.0
    """
    matches = matches_of(truth, found, definition)
    units = Units.of(truth.n_images, truth.groups)
    scores = {}
    for name, match in zip(truth.classes, matches, strict=True):
        statistic = _of_class(match, RULES[definition])
        values = statistic(np.ones((1, truth.n_images)))[0].tolist()
        scores[name] = bootstrapped(CLASS_METRICS, values, statistic, units, seed, resamples)
    return scores


def _of_class(match: ClassMatches, rule: precision_recall.Rule) -> Statistic:
    """Return the function from weights per image (R, N) to the metrics of a class (R, 4)."""
    curves, at_75 = precision_recall.curves(match)[0], _place(0.75)

    def statistic(counts: FloatArray) -> FloatArray:
        weights = np.ascontiguousarray(counts.T)
        table = np.stack([precision_recall.average_precision(curve, weights, rule) for curve in curves])
        recall = precision_recall.recall(match, 0, COCO_MOST, weights)
        return np.column_stack([table.mean(axis=0), table[0], table[at_75], recall])

    return statistic


@dataclasses.dataclass(frozen=True)
class ClassCurve:
    """Precision-recall curve of a class at one overlap.

    Attributes:
        name: of the class.
        overlap: intersection over union.
        scores: (D,), score of each detection that counts, falling.
        precision: (D,), of the detections up to each.
        recall: (D,), likewise.
    """

    name: str
    overlap: float
    scores: FloatArray
    precision: FloatArray
    recall: FloatArray


def class_curves(truth: Truth, found: Detections, definition: ApDefinition) -> list[ClassCurve]:
    """Return the curve of each class with objects at overlaps of .5 and .75; arguments as for `class_scores`."""
    curves = []
    for label, match in enumerate(matches_of(truth, found, definition)):
        number = int(match.objects[0].sum())
        if not number:
            continue
        for overlap in CURVE_OVERLAPS:
            counted = ~match.ignored[0, _place(overlap)]
            hits = np.cumsum(match.hits[0, _place(overlap)][counted])
            precision, scores = hits / np.arange(1, len(hits) + 1), match.scores[counted]
            curves.append(ClassCurve(truth.classes[label], overlap, scores, precision, hits / number))
    return curves


def _place(overlap: float) -> int:
    return int(np.flatnonzero(np.isclose(THRESHOLDS, overlap))[0])
