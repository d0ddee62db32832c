"""Average precision of object detection: Pascal VOC (2007, 2012), COCO and LVIS, with 95 % intervals.

The intervals are basic (reverse percentile) bootstraps over images (Davison and Hinkley 1997, section 5.2): whole
images (of videos: all frames of one) are drawn with replacement, so that the detections of one image stay together, and
the interval of a value v is 2 v - high .. 2 v - low, where low and high are the 2.5 and 97.5 % points of the resampled
values. These points themselves are biased: AP rises when there are fewer distinct objects of a class, in the sample
against all images as in a resample against the sample, so that they lie too high by twice that. Detections are matched
once; a resample only changes the weights of the images. Where no resample differs (an AP of 0, or everything found on
few images) the interval is Wilson's for a share of as many images. It covers the variance over test images, not over
trainings. All values are fractions.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection import lvis, oks
from sslbench.metrics.detection.average_precision import RULES
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
from sslbench.metrics.intervals import Units, Values, bootstrapped
from sslbench.metrics.metric import RATE, Metric

__all__ = [
    "BOUNDARY_METRICS",
    "BOX_METRICS",
    "KEYPOINT_METRICS",
    "MASK_METRICS",
    "THRESHOLDS",
    "DetectionScores",
    "Detections",
    "Truth",
    "coco_ap",
    "keypoint_ap",
    "lvis_ap",
    "voc_ap",
]

VocMetric = Literal["11-point", "area"]
Region = Literal["boxes", "masks", "boundaries"]

_COCO_MOST = (1, 10, COCO_MOST)
_COCO_TITLES = {
    "AP": "Average precision, mean over overlaps of .5 to .95",
    "APs": "Average precision of small objects",
    "APm": "Average precision of medium objects",
    "APl": "Average precision of large objects",
    "AP50": "Average precision at an overlap of .5",
    "AP75": "Average precision at an overlap of .75",
    "AR1": "Average recall of 1 detection per image",
    "AR10": "Average recall of 10 detections per image",
    "AR100": "Average recall of 100 detections per image",
    "ARs": "Average recall of small objects",
    "ARm": "Average recall of medium objects",
    "ARl": "Average recall of large objects",
}
_COCO_NAMES = tuple(_COCO_TITLES)
_LVIS_TITLES = {
    "APr": "Average precision of rare classes (LVIS)",
    "APc": "Average precision of common classes (LVIS)",
    "APf": "Average precision of frequent classes (LVIS)",
    "AR300": "Average recall of 300 detections per image (LVIS)",
}

BOX_METRICS = tuple(
    Metric(name, title, "%", 1, RATE, needs="boxes") for name, title in (_COCO_TITLES | _LVIS_TITLES).items()
)
MASK_METRICS = tuple(
    dataclasses.replace(metric, name=f"mask_{metric.name}", title=f"{metric.title}, of masks", needs="masks")
    for metric in BOX_METRICS
)
"""Metrics of masks; records name them so beside those of the boxes."""
BOUNDARY_METRICS = tuple(
    dataclasses.replace(
        metric, name=f"boundary_{metric.name}", title=f"{metric.title}, of masks and boundaries", needs="masks"
    )
    for metric in BOX_METRICS
    if metric.name.startswith("AP")
)
"""Metrics of masks whose boundaries have to overlap too (Cheng et al. 2021); records name them so."""

KEYPOINT_METRICS = tuple(
    Metric(f"{prefix}{name}", title + end, "%", 1, RATE, needs="skeletons")
    for prefix, end in (("keypoint_", ""), ("uniform_keypoint_", ", of one sigma for all keypoints"))
    for name, title in oks.TITLES.items()
)
"""Metrics of keypoints; records name them so beside those of the boxes, see `keypoints.Skeleton.prefix`."""


@dataclasses.dataclass(frozen=True)
class DetectionScores:
    """Average precision and recall of detections.

    Attributes:
        metrics: name -> value, low and high end of the 95 % interval; NaN where there is nothing to measure.
        per_class: class -> AP, the mean over the ten thresholds; NaN for a class without objects.
        per_class_50: class -> AP at an overlap of .5.
    """

    metrics: Values
    per_class: dict[str, float]
    per_class_50: dict[str, float]


def voc_ap(
    truth: Truth,
    detections: Detections,
    metric: VocMetric,
    *,
    as_text: bool = True,
    seed: int = 0,
    resamples: int = 1000,
) -> DetectionScores:
    """Return AP, AP50 and AP75 as Detectron2's PascalVOCDetectionEvaluator computes them: means over classes.

    `resamples`: number of bootstrap resamples; 0 leaves the intervals NaN.

    >>> zeros = np.zeros(1, np.int64)
    >>> box, no = np.array([[0.0, 0.0, 9.0, 9.0]]), np.zeros(1, np.bool_)
    >>> truth = Truth(1, ("cat",), zeros, box, zeros, no, no, np.array([81.0]))
    >>> found = Detections(zeros, box, np.array([0.9]), zeros)
    >>> voc_ap(truth, found, "area", resamples=0).metrics["AP50"][0]
    1.0
    """
    # Everingham et al. 2010, section 4.2.
    # AP is the mean over the overlaps .5, .55, ..., .95. Of equal scores the earlier image comes first; Detectron2
    # leaves their order to an unstable sort, so that with many ties its number differs between machines. A class
    # without a counted object is left out of the means (here Detectron2 counts 0); on VOC itself there is none.
    matches = match_voc(truth, detections, as_text=as_text)
    rule = RULES[metric]

    def values_of(_: object, curves: precision_recall.Curves, weights: FloatArray) -> list[FloatArray]:
        return _three(precision_recall.average_precisions(curves, weights, rule)[:, 0])

    return _scores(truth, matches, ("AP", "AP50", "AP75"), values_of, rule, seed, resamples)


def coco_ap(
    truth: Truth, detections: Detections, *, kind: Region = "boxes", seed: int = 0, resamples: int = 1000
) -> DetectionScores:
    """Return the twelve metrics of COCO: AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl.

    `resamples`: number of bootstrap resamples; 0 leaves the intervals NaN.

    >>> zeros = np.zeros(1, np.int64)
    >>> box, no = np.array([[0.0, 0.0, 9.0, 9.0]]), np.zeros(1, np.bool_)
    >>> truth = Truth(1, ("cat",), zeros, box, zeros, no, no, np.array([81.0]))
    >>> found = coco_ap(truth, Detections(zeros, box, np.array([0.9]), zeros), resamples=0)
    >>> round(found.metrics["AP"][0], 6), found.metrics["APl"][0]
    (1.0, nan)
    """
    # The values are those of pycocotools, except that difficult objects, which COCO does not have, are left out
    # together with their detections.
    matches = match_coco(truth, detections, _areas(truth, detections, kind), kind=kind)
    return _scores(truth, matches, _COCO_NAMES, _coco_values, precision_recall.coco_points, seed, resamples)


def lvis_ap(
    truth: Truth, detections: Detections, *, kind: Region = "boxes", seed: int = 0, resamples: int = 1000
) -> DetectionScores:
    """Return the metrics of LVIS: AP, AP50, AP75, APs, APm, APl, APr, APc, APf, AR300; see `lvis`.

    `resamples`: number of bootstrap resamples; 0 leaves the intervals NaN.

    >>> zeros = np.zeros(1, np.int64)
    >>> box, no = np.array([[0.0, 0.0, 9.0, 9.0]]), np.zeros(1, np.bool_)
    >>> from sslbench.metrics.detection.matches import Federated
    >>> no_pairs = np.zeros((0, 2), np.int64)
    >>> looked_for = Federated(no_pairs, no_pairs, ("r",))
    >>> truth = Truth(1, ("cat",), zeros, box, zeros, no, no, np.array([81.0]), federated=looked_for)
    >>> found = lvis_ap(truth, Detections(zeros, box, np.array([0.9]), zeros), resamples=0)
    >>> round(found.metrics["APr"][0], 6), found.metrics["APf"][0]
    (1.0, nan)
    """
    matches = lvis.match_lvis(truth, detections, _areas(truth, detections, kind), kind=kind)
    frequencies = () if truth.federated is None else truth.federated.frequencies
    values_of = functools.partial(lvis.values_of, frequencies=frequencies)
    return _scores(truth, matches, lvis.NAMES, values_of, precision_recall.coco_points, seed, resamples)


def keypoint_ap(truth: Truth, detections: Detections, *, seed: int = 0, resamples: int = 1000) -> DetectionScores:
    """Return the ten metrics of COCO's keypoints: AP, AP50, AP75, APm, APl, AR, AR50, AR75, ARm, ARl; see `oks`.

    `resamples`: number of bootstrap resamples; 0 leaves the intervals NaN.

    >>> from sslbench.metrics.detection.keypoints import Skeleton
    >>> zeros = np.zeros(1, np.int64)
    >>> box, no, at = np.array([[0.0, 0.0, 9.0, 9.0]]), np.zeros(1, np.bool_), np.array([[[4.0, 5.0, 2.0]]])
    >>> skeleton = Skeleton(("nose",), sigmas=(0.05,))
    >>> truth = Truth(1, ("cat",), zeros, box, zeros, no, no, np.array([81.0]), keypoints=at, skeleton=skeleton)
    >>> found = Detections(zeros, box, np.array([0.9]), zeros, keypoints=at + [0.5, 0, 0])
    >>> round(keypoint_ap(truth, found, resamples=0).metrics["AP"][0], 6)
    0.8
    """
    # The values are those of pycocotools, except that difficult objects, which COCO does not have, are left out
    # together with their detections. Whether a detection that matches nothing is medium or large depends on its box, as
    # for results with `bbox` in pycocotools.
    there = truth.keypoints is not None and truth.skeleton is not None and bool(truth.skeleton.sigmas)
    if not there or (detections.keypoints is None and len(detections)):
        raise ValueError("keypoints are to be scored, but the objects or the detections have none, or no sigmas")
    matches = match_coco(truth, detections, areas_of(detections, masks=False), kind="keypoints", most=oks.MOST)
    return _scores(truth, matches, tuple(oks.TITLES), oks.values_of, precision_recall.coco_points, seed, resamples)


def _areas(truth: Truth, detections: Detections, kind: Region) -> FloatArray:
    """Return the areas of the detections' boxes or masks, in pixels."""
    if kind != "boxes" and (truth.masks is None or detections.masks is None):
        raise ValueError("masks are to be scored, but the objects or the detections have none")
    return areas_of(detections, masks=kind != "boxes")


def _scores(
    truth: Truth,
    matches: Sequence[ClassMatches],
    names: tuple[str, ...],
    values_of: Callable[[Sequence[ClassMatches], precision_recall.Curves, FloatArray], list[FloatArray]],
    rule: precision_recall.Rule,
    seed: int,
    resamples: int,
) -> DetectionScores:
    """Return the metrics with these names, whose values (R,) follow from weights of the images (N, R)."""
    curves = [precision_recall.curves(match) for match in matches]

    def statistic(counts: FloatArray) -> FloatArray:
        return np.column_stack(values_of(matches, curves, np.ascontiguousarray(counts.T)))

    once = np.ones((1, truth.n_images))
    values, units = statistic(once)[0].tolist(), Units.of(truth.n_images, truth.groups)
    table = precision_recall.average_precisions(curves, once.T, rule)[:, 0, :, 0]
    metrics = bootstrapped(names, values, statistic, units, seed, resamples)
    return DetectionScores(metrics, _named(truth, table.mean(axis=1)), _named(truth, table[:, 0]))


def _three(tables: FloatArray) -> list[FloatArray]:
    """Return AP, AP50 and AP75, each (R,), from the tables (C, T, R)."""
    picks = [[table.mean(axis=0) for table in tables], [table[0] for table in tables], [t[AT_75] for t in tables]]
    return [precision_recall.mean_over(pick) for pick in picks]


def _coco_values(
    matches: Sequence[ClassMatches], curves: precision_recall.Curves, weights: FloatArray
) -> list[FloatArray]:
    tables = precision_recall.average_precisions(curves, weights, precision_recall.coco_points)
    of_all, *of_sizes = (_three(tables[:, area]) for area in range(4))
    recalls = [(0, most) for most in _COCO_MOST] + [(area, COCO_MOST) for area in (1, 2, 3)]
    return [
        of_all[0],
        *(values[0] for values in of_sizes),
        *of_all[1:],
        *(precision_recall.mean_recall(matches, area, most, weights) for area, most in recalls),
    ]


def _named(truth: Truth, values: FloatArray) -> dict[str, float]:
    return dict(zip(truth.classes, map(float, values), strict=True))
