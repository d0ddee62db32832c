"""Difference in AP of two detectors on the same test images, by a paired bootstrap over the images.

Whole images (of videos: all frames of one) are drawn with replacement, and in each resample both detectors are scored
on the same images. The standard error of the difference gives the interval of `intervals.shrunk`, with two
pseudo-images, one in favour of either detector: a few images that agree by chance are no significant difference, which
percentiles of resamples would not show. With several trainings of a detector the difference is that of the means, and
the interval also covers the variance between trainings.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection import oks
from sslbench.metrics.detection.lvis import match_lvis
from sslbench.metrics.detection.matches import ClassMatches, Detections, Truth, areas_of, match_coco, match_voc
from sslbench.metrics.differences import PairedDifference
from sslbench.metrics.intervals import Statistic, Units, bootstrap, over_other_trainings, shrunk

ApDefinition = Literal["coco", "lvis", "11-point", "area"]

RULES = {
    "coco": precision_recall.coco_points,
    "lvis": precision_recall.coco_points,
    "11-point": precision_recall.eleven_points,
    "area": precision_recall.area_below,
}


DEFINITIONS: Mapping[str, ApDefinition] = {"coco": "coco", "lvis": "lvis", "voc07": "11-point", "voc12": "area"}
"""Name of a recipe's metric -> its definition of AP."""
_THRESHOLDS = {"AP": slice(None), "AP50": slice(0, 1), "AP75": slice(5, 6)}
_REGIONS = {
    None: "boxes",
    "mask_": "masks",
    "boundary_": "boundaries",
    "keypoint_": "keypoints",
    "uniform_keypoint_": "keypoints",
}
_FORM = re.compile(r"(mask_|boundary_|keypoint_|uniform_keypoint_)?(AP|AP50|AP75)(?:\((.*)\))?")


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

    Args:
        truth: labelled objects, with masks for a metric of masks.
        a: name of each training of one detector -> its detections.
        b: the same of the other one on the same images; two detectors' trainings with one seed have one name.
        metric: AP, AP50 or AP75, as mask_AP of masks, boundary_AP of their boundaries, keypoint_AP of keypoints, as
            AP(cat) of one class.
        definition: 'coco', 'lvis', or Pascal VOC's '11-point' (2007) or 'area' (2012), of masks COCO's.
        seed: seed of the bootstrap.
        resamples: number of bootstrap resamples.

    Returns:
        The difference, NaN where there are no objects. The two are tied when the interval covers 0.

    Raises:
        KeyError: there is no such metric or class, or there are no masks or keypoints.

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
    of_classes = [precision_recall.curves(match)[0][_THRESHOLDS[form[2]]] for match in chosen]
    return _mean_over_classes(of_classes, RULES[definition if kind == "boxes" else "coco"])


def matches_of(truth: Truth, found: Detections, definition: ApDefinition, *, kind: str = "boxes") -> list[ClassMatches]:
    """Return the matches of each class by the rule of the definition; masks, boundaries and keypoints by COCO's."""
    if kind == "keypoints":
        return match_coco(truth, found, areas_of(found, masks=False), kind=kind, most=oks.MOST)
    if definition == "lvis":
        return match_lvis(truth, found, areas_of(found, masks=kind != "boxes"), kind=kind)
    if kind != "boxes" or definition == "coco":
        return match_coco(truth, found, areas_of(found, masks=kind != "boxes"), kind=kind)
    return match_voc(truth, found, as_text=True)


def _mean_over_classes(
    of_classes: Sequence[Sequence[precision_recall.PrecisionRecallCurve]], rule: precision_recall.Rule
) -> Statistic:
    """Return the function from weights per image (R, N) to the mean over classes of the mean over curves (R, 1)."""

    def statistic(counts: FloatArray) -> FloatArray:
        weights = np.ascontiguousarray(counts.T)
        tables = [
            np.stack([precision_recall.average_precision(curve, weights, rule) for curve in curves]).mean(axis=0)
            for curves in of_classes
        ]
        return precision_recall.mean_over(tables)[:, None]

    return statistic
