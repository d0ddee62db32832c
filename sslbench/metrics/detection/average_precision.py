"""Average precision of boxes, masks or keypoints by any definition: of each class, and the difference of detectors."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection import oks
from sslbench.metrics.detection.lvis import match_lvis
from sslbench.metrics.detection.matches import (
    AT_75,
    COCO_MOST,
    THRESHOLDS,
    ClassMatches,
    Detections,
    Truth,
    areas_of,
    match_coco,
    match_voc,
)
from sslbench.metrics.differences import PairedDifference
from sslbench.metrics.intervals import Interval, Statistic, Units, bootstrap, bootstrapped, over_other_trainings, shrunk

ApDefinition = Literal["coco", "lvis", "11-point", "area"]

RULES = {
    "coco": precision_recall.coco_points,
    "lvis": precision_recall.coco_points,
    "11-point": precision_recall.eleven_points,
    "area": precision_recall.area_below,
}


DEFINITIONS: Mapping[str, ApDefinition] = {"coco": "coco", "lvis": "lvis", "voc07": "11-point", "voc12": "area"}
"""Name of a recipe's metric -> its definition of AP."""
_THRESHOLDS = {"AP": slice(None), "AP50": slice(0, 1), "AP75": slice(AT_75, AT_75 + 1)}
_REGIONS = {
    None: "boxes",
    "mask_": "masks",
    "boundary_": "boundaries",
    "keypoint_": "keypoints",
    "uniform_keypoint_": "keypoints",
}
_FORM = re.compile(r"(mask_|boundary_|keypoint_|uniform_keypoint_)?(AP|AP50|AP75)(?:\((.*)\))?")
CLASS_METRICS = ("AP", "AP50", "AP75", "AR100")
CURVE_OVERLAPS = (0.5, 0.75)


# Whole images (of videos: all frames of one) are drawn with replacement, and in each resample both detectors are scored
# on the same images. Two pseudo-images, one in favour of either (`intervals.shrunk`): a few images that agree by chance
# are no significant difference, which percentiles of resamples would not show. The interval also covers the variance
# between several trainings.
def detector_difference(
    truth: Truth,
    a: Mapping[str, Detections],
    b: Mapping[str, Detections],
    metric: str,
    definition: ApDefinition,
    *,
    seed: int,
    resamples: int = 1000,
) -> PairedDifference:
    """Compare two detectors; the values are fractions.

    Returns the difference, NaN where there are no objects. The two are tied when the interval covers 0.

    >>> zeros = np.zeros(1, np.int64)
    >>> box, no = np.array([[0.0, 0.0, 9.0, 9.0]]), np.zeros(1, np.bool_)
    >>> truth = Truth(1, ("cat",), zeros, box, zeros, no, no, np.array([81.0]))
    >>> right, wrong = (Detections(zeros, box + shift, np.array([0.9]), zeros) for shift in (0, 50))
    >>> found = detector_difference(truth, {"0": right}, {"0": wrong}, "AP50(cat)", "area", seed=0, resamples=20)
    >>> found.difference, found.low, found.high
    (1.0, -1.0, 1.0)
    """
    statistics = [[average_precision(truth, found, definition, metric) for found in each.values()] for each in (a, b)]

    def statistic(counts: FloatArray) -> FloatArray:
        means = [np.mean([one(counts) for one in each], axis=0) for each in statistics]
        return np.asarray(means[0] - means[1])

    once = np.ones((1, truth.n_images))
    of_a, of_b = ([float(one(once)[0, 0]) for one in each] for each in statistics)
    value = float(np.mean(of_a)) - float(np.mean(of_b))
    units = Units.of(truth.n_images, truth.groups)
    error = float(bootstrap(statistic, units, n=resamples, seed=seed).errors[0])
    named = (dict(zip(each, values, strict=True)) for each, values in ((a, of_a), (b, of_b)))
    _, low, high = over_other_trainings(shrunk(value, error, units.number, most=1.0), *named)
    # Of one image there is no interval; max and min make it the whole range.
    return PairedDifference(float(np.mean(of_a)), float(np.mean(of_b)), value, max(-1.0, low), min(1.0, high))


def average_precision(truth: Truth, found: Detections, definition: ApDefinition, metric: str = "AP") -> Statistic:
    """Return the function from weights per image (R, N) to a metric (R, 1); arguments and errors as above."""
    form = _FORM.fullmatch(metric)
    if form is None or (form[3] is not None and form[3] not in truth.classes):
        raise KeyError(metric)
    kind = _REGIONS[form[1]]
    if kind in ("masks", "boundaries") and (truth.masks is None or found.masks is None):
        raise KeyError(metric)
    if kind == "keypoints" and (
        truth.skeleton is None or (found.keypoints is None and len(found)) or form[1] != truth.skeleton.prefix
    ):
        raise KeyError(metric)
    matches = matches_of(truth, found, definition, kind=kind)
    chosen = matches if form[3] is None else [matches[truth.classes.index(form[3])]]
    of_classes = [precision_recall.curves_of_area(match, 0)[_THRESHOLDS[form[2]]] for match in chosen]
    rule = RULES[definition if kind == "boxes" else "coco"]

    def statistic(counts: FloatArray) -> FloatArray:
        weights = np.ascontiguousarray(counts.T)
        tables = [
            np.stack([precision_recall.average_precision(curve, weights, rule) for curve in curves]).mean(axis=0)
            for curves in of_classes
        ]
        return precision_recall.mean_over(tables)[:, None]

    return statistic


def matches_of(truth: Truth, found: Detections, definition: ApDefinition, *, kind: str = "boxes") -> list[ClassMatches]:
    """Return the matches of each class by the rule of the definition; masks, boundaries and keypoints by COCO's."""
    if kind == "keypoints":
        return match_coco(truth, found, areas_of(found, masks=False), kind=kind, most=oks.MOST)
    if definition == "lvis":
        return match_lvis(truth, found, areas_of(found, masks=kind != "boxes"), kind=kind)
    if kind != "boxes" or definition == "coco":
        return match_coco(truth, found, areas_of(found, masks=kind != "boxes"), kind=kind)
    return match_voc(truth, found, as_text=True)


def class_scores(
    truth: Truth, found: Detections, definition: ApDefinition, *, seed: int = 0, resamples: int = 300
) -> dict[str, dict[str, Interval]]:
    """Return AP, AP50, AP75 and AR100 of the boxes of each class, as fractions with 95 % intervals over images.

    Returns Class -> metric -> value, low and high end; NaN for a class without objects.

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
    curves = precision_recall.curves_of_area(match, 0)

    def statistic(counts: FloatArray) -> FloatArray:
        weights = np.ascontiguousarray(counts.T)
        table = np.stack([precision_recall.average_precision(curve, weights, rule) for curve in curves])
        recall = precision_recall.recall(match, 0, COCO_MOST, weights)
        return np.column_stack([table.mean(axis=0), table[0], table[AT_75], recall])

    return statistic


@dataclasses.dataclass(frozen=True)
class ClassCurve:
    """Precision-recall curve of a class at one overlap.

    Attributes:
        scores: (D,), score of each detection that counts, falling.
        precision: (D,), of the detections up to each.
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
