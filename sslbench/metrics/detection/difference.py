"""Difference in AP of two detectors on the same test images, by a paired bootstrap over the images.

Whole images (of videos: all frames of one) are drawn with replacement, and in each resample both detectors are scored
on the same images. The standard error of the difference gives the interval of `metrics.differences`, with two
pseudo-images, one in favour of either detector: a few images that agree by chance are no significant difference, which
percentiles of resamples would not show. It covers the variance over test images, not over trainings.
"""

from typing import Literal

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection.lvis import match_lvis
from sslbench.metrics.detection.matches import Detections, Truth, corner_and_size, match_coco, match_voc
from sslbench.metrics.differences import shrunk
from sslbench.metrics.intervals import Interval, Statistic, Units, bootstrap

ApDefinition = Literal["coco", "lvis", "11-point", "area"]

_RULES = {
    "coco": precision_recall.coco_points,
    "lvis": precision_recall.coco_points,
    "11-point": precision_recall.eleven_points,
    "area": precision_recall.area_below,
}


def ap_difference(
    truth: Truth, first: Detections, second: Detections, metric: ApDefinition, *, seed: int, resamples: int = 1000
) -> Interval:
    """Return the box AP of the first less that of the second, as fractions, with its 95 % interval.

    Args:
        truth: labelled objects.
        first: detections of one detector.
        second: detections of the other one on the same images.
        metric: 'coco', 'lvis', or Pascal VOC's '11-point' (2007) or 'area' (2012), each averaged over the ten overlaps.
        seed: seed of the bootstrap.
        resamples: number of bootstrap resamples.

    Returns:
        Difference, low and high end; NaN where there are no objects. The two are tied when the interval covers 0.

    >>> zeros = np.zeros(1, np.int64)
    >>> box, no = np.array([[0.0, 0.0, 9.0, 9.0]]), np.zeros(1, np.bool_)
    >>> truth = Truth(1, ("cat",), zeros, box, zeros, no, no, np.array([81.0]))
    >>> right = Detections(zeros, box, np.array([0.9]), zeros)
    >>> ap_difference(truth, right, Detections(zeros, box + 50, np.array([0.9]), zeros), "area", seed=0, resamples=20)
    (1.0, -1.0, 1.0)
    """
    of_first, of_second = (average_precision(truth, found, metric) for found in (first, second))

    def statistic(counts: FloatArray) -> FloatArray:
        return of_first(counts) - of_second(counts)

    value = float(statistic(np.ones((1, truth.n_images)))[0, 0])
    units = Units.of(truth.n_images, truth.groups)
    error = float(bootstrap(statistic, units, n=resamples, seed=seed).errors[0])
    return shrunk(value, error, units.number, most=1.0)


def average_precision(truth: Truth, found: Detections, metric: ApDefinition) -> Statistic:
    """Return the function from weights per image (R, N) to AP (R, 1), the mean over classes and overlaps."""
    if metric in ("coco", "lvis"):
        sizes = np.asarray(corner_and_size(found.boxes)[:, 2:].prod(axis=1))
        matches = (match_lvis if metric == "lvis" else match_coco)(truth, found, sizes, kind="boxes")
    else:
        matches = match_voc(truth, found, as_text=True)
    of_classes = [precision_recall.curves(match)[0] for match in matches]
    rule = _RULES[metric]

    def statistic(counts: FloatArray) -> FloatArray:
        weights = np.ascontiguousarray(counts.T)
        tables = [
            np.stack([precision_recall.average_precision(curve, weights, rule) for curve in curves]).mean(axis=0)
            for curves in of_classes
        ]
        return precision_recall.mean_over(tables)[:, None]

    return statistic
