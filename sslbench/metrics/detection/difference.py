"""How much better one detector is than another on the same test images, by a paired bootstrap over them.

The interval is of the same kind as that of an AP (`metrics.detection`): basic, whole images drawn with replacement, and
in each resample both detectors are scored on the same images. It says how far the difference depends on the images that
happen to be tested, not on how the two trainings happened to go.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection.matches import Detections, Truth, corner_and_size, match_coco, match_voc
from sslbench.metrics.intervals import Statistic, Units, bootstrap

Floats = npt.NDArray[np.float64]
Metric = Literal["coco", "11-point", "area"]

_RULES = {
    "coco": precision_recall.coco_points,
    "11-point": precision_recall.eleven_points,
    "area": precision_recall.area_below,
}


def ap_difference(
    truth: Truth, first: Detections, second: Detections, metric: Metric, *, seed: int, resamples: int = 1000
) -> tuple[float, float, float]:
    """AP of the first less that of the second, and its 95 % interval, as fractions; NaN where there are no objects.

    Args:
        truth: what is there; of boxes.
        first: what one detector found.
        second: what the other found on the same images.
        metric: 'coco', or Pascal VOC's '11-point' (2007) or 'area' (2012), each averaged over the ten overlaps.
        seed: of the bootstrap.
        resamples: of the bootstrap.

    Returns:
        Difference, low and high end. The two are tied when the interval covers 0.
    """
    of_first, of_second = (average_precision(truth, found, metric) for found in (first, second))

    def statistic(counts: Floats) -> Floats:
        return of_first(counts) - of_second(counts)

    value = float(statistic(np.ones((1, truth.n_images)))[0, 0])
    low, high = bootstrap(statistic, Units.of(truth.n_images, truth.groups), n=resamples, seed=seed)
    ends = 2 * value - float(high[0]), 2 * value - float(low[0])
    return value, float(np.clip(ends[0], -1.0, value)), float(np.clip(ends[1], value, 1.0))


def average_precision(truth: Truth, found: Detections, metric: Metric) -> Statistic:
    """A function from counts per image (r, n_images) to AP (r, 1), the mean over classes and overlaps."""
    if metric == "coco":
        sizes = np.asarray(corner_and_size(found.boxes)[:, 2:].prod(axis=1))
        matches = match_coco(truth, found, sizes, kind="boxes")
    else:
        matches = match_voc(truth, found, as_text=True)
    of_classes = [precision_recall.curves(match)[0] for match in matches]
    rule = _RULES[metric]

    def statistic(counts: Floats) -> Floats:
        weights = np.ascontiguousarray(counts.T)
        tables = [
            np.stack([precision_recall.average_precision(curve, weights, rule) for curve in curves]).mean(axis=0)
            for curves in of_classes
        ]
        return precision_recall.mean_over(tables)[:, None]

    return statistic
