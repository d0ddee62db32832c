"""Average precision of LVIS (Gupta et al. 2019, section 3.2): classes are scored where they were looked for.

A class counts in the images in which it has objects or is known to be absent; its detections in other images are left
out. Where its objects are not all labelled, a detection that matches none is neither right nor wrong. The 300
detections of highest score of an image count, over all classes. Values are fractions.
"""

from collections.abc import Sequence

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection.matches import AT_75, ClassMatches, Detections, Truth, among, match_coco, places_of

MOST = 300
"""Largest number of detections that count on one image."""
NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf", "AR300")
_FREQUENCIES = ("r", "c", "f")


def match_lvis(truth: Truth, detections: Detections, areas: FloatArray, *, kind: str) -> list[ClassMatches]:
    """Return the matches of each class by the rule of LVIS (lvis-api, `evaluate_img`).

    `areas`: (n,), area of each detection in pixels.
    """
    federated, n_classes = truth.federated, len(truth.classes)
    if federated is None:
        raise ValueError("LVIS's average precision needs the classes that were looked for in each image")
    images, labels = detections.images, detections.labels
    # Of each image the `MOST` of highest score count, of all classes together.
    order = np.argsort(-detections.scores.astype(np.float64), kind="stable")
    kept = np.empty(len(order), dtype=np.bool_)
    kept[order] = places_of(images[order]) < MOST
    there = np.stack([truth.images, truth.labels], axis=1)
    kept &= among(there, images, labels, n_classes) | among(federated.negative, images, labels, n_classes)
    chosen = detections.select(kept)
    lenient = among(federated.not_exhaustive, chosen.images, chosen.labels, n_classes)
    return match_coco(truth, chosen, areas[kept], kind=kind, most=MOST, lenient=lenient)


def values_of(
    matches: Sequence[ClassMatches], curves: precision_recall.Curves, weights: FloatArray, frequencies: Sequence[str]
) -> list[FloatArray]:
    """Return the metrics in the order of `NAMES`, each (R,), for weights of the images (N, R).

    NaN where no class of the kind has an object.
    """
    tables = precision_recall.average_precisions(curves, weights, precision_recall.coco_points)
    overall = tables[:, 0].mean(axis=1)
    found = [_mean(overall), _mean(tables[:, 0, 0]), _mean(tables[:, 0, AT_75])]
    found += [_mean(tables[:, area].mean(axis=1)) for area in (1, 2, 3)]
    of_kind = np.array(frequencies, dtype=object)
    found += [_mean(overall[of_kind == kind]) for kind in _FREQUENCIES]
    return [*found, precision_recall.mean_recall(matches, 0, MOST, weights)]


def _mean(rows: FloatArray) -> FloatArray:
    """Return the means (R,) over the classes (c, R) that have a value."""
    return precision_recall.mean_over(list(rows)) if len(rows) else np.full(rows.shape[1], np.nan)
