"""Panoptic quality: agreement of segments, instances of things and regions of stuff (Kirillov et al., CVPR 2019).

`panoptic_counts` matches the segments of one image; its counts are stacked, (..., 4, C), and summed over images before
they are divided.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.dense.pooling import mean_over_classes, pooled, quotient
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

PANOPTIC_QUALITY = Metric("PQ", "Panoptic quality, mean over classes", "%", 1, RATE, needs="segments")
SEGMENTATION_QUALITY = dataclasses.replace(
    PANOPTIC_QUALITY, name="SQ", title="IoU of matched segments, mean over classes"
)
RECOGNITION_QUALITY = dataclasses.replace(PANOPTIC_QUALITY, name="RQ", title="F-score of segments, mean over classes")
PANOPTIC = (PANOPTIC_QUALITY, SEGMENTATION_QUALITY, RECOGNITION_QUALITY)
"""Metrics in the order of `panoptic_values`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Segments:
    """Segments of one image.

    Attributes:
        map: (H, W), the id of each pixel's segment; 0: void, no segment.
        ids: (K,), the ids, distinct.
        classes: (K,), the class of each, 0 to C - 1.
        crowd: (K,), True for labelled regions of many instances, which are neither found nor missed.
    """

    map: IntArray
    ids: IntArray
    classes: IntArray
    crowd: BoolArray


def segments_of(
    semantic: npt.NDArray[np.integer], instances: npt.NDArray[np.integer] | None, things: BoolArray
) -> Segments:
    """Return the segments of a map of classes: one per instance of a thing, one per class of stuff.

    `semantic`: (H, W), 0 to C - 1; negative: void; `instances`: (H, W), a number per instance, 0 for pixels of none;
    None: no thing is told from another; `things`: (C,), True for classes with instances. Pixels of a thing without an
    instance are one segment.

    >>> segments = segments_of(np.array([[0, 0, 1, -1]]), np.array([[1, 2, 3, 0]]), np.array([True, False]))
    >>> segments.map.tolist(), segments.classes.tolist()
    ([[1, 2, 3, 0]], [0, 0, 1])
    """
    classes = semantic.astype(np.int64)
    number = np.zeros_like(classes) if instances is None else instances.astype(np.int64)
    number = np.where((classes >= 0) & things[np.maximum(classes, 0)], number, 0)
    keys = np.where(classes < 0, -1, classes * (int(number.max(initial=0)) + 1) + number)
    found, place = np.unique(keys, return_inverse=True)
    ids = place.reshape(classes.shape) + (0 if (found < 0).any() else 1)
    of_segments = found[found >= 0] // (int(number.max(initial=0)) + 1)
    count = len(of_segments)
    return Segments(ids.astype(np.int64), np.arange(1, count + 1), of_segments, np.zeros(count, dtype=np.bool_))


def panoptic_counts(prediction: Segments, label: Segments, n_classes: int) -> FloatArray:
    """Return the sum of IoU, the matched, the surplus and the missed segments of each class in one image, (4, C)."""
    # A predicted and a labelled segment of one class match if their IoU is above 0.5; predicted pixels on void are left
    # out of the union. An unmatched prediction with more than half of its pixels on void or on crowds of its class does
    # not count (panopticapi looks at one crowd per class alone). Areas are those of the maps: panopticapi believes the
    # areas in its JSON file, which are wrong once maps were resized.
    if prediction.map.shape != label.map.shape:
        raise ValueError(f"predicted segments of {prediction.map.shape} for a label map of {label.map.shape}")
    overlaps = _overlaps(prediction, label)
    predicted_area, labelled_area = overlaps.sum(axis=1)[1:], overlaps.sum(axis=0)[1:]
    if not predicted_area.all():
        raise ValueError(f"the predicted segment {prediction.ids[predicted_area == 0][0]} has no pixel")
    shared = overlaps[1:, 1:]
    union = predicted_area[:, None] + labelled_area - shared - overlaps[1:, :1]
    same_class = prediction.classes[:, None] == label.classes
    ratio = np.where(same_class & ~label.crowd, quotient(shared.astype(np.float64), union), 0.0)
    rows, columns = np.nonzero(ratio > 0.5)  # at most one per row and column
    excused = overlaps[1:, 0] + np.where(same_class & label.crowd, shared, 0).sum(axis=1)
    surplus = excused / predicted_area <= 0.5
    surplus[rows] = False
    missed = ~label.crowd
    missed[columns] = False
    matched = prediction.classes[rows]
    return np.stack(
        [
            np.bincount(matched, ratio[rows, columns], n_classes),
            np.bincount(matched, minlength=n_classes).astype(np.float64),
            np.bincount(prediction.classes[surplus], minlength=n_classes).astype(np.float64),
            np.bincount(label.classes[missed], minlength=n_classes).astype(np.float64),
        ]
    )


def panoptic_quality(counts: FloatArray) -> FloatArray:
    """Return PQ, SQ and RQ of each class, (..., 3, C) for counts (..., 4, C).

    >>> panoptic_quality(np.array([[0.8, 0.0], [1.0, 0.0], [0.0, 0.0], [2.0, 0.0]])).round(3).tolist()
    [[0.4, nan], [0.8, nan], [0.5, nan]]
    """
    # NaN for a class without segments; SQ is 0 for a class without a match, as in panopticapi.
    overlap, matched, surplus, missed = (counts[..., row, :] for row in range(4))
    number = matched + surplus / 2 + missed / 2
    quality = np.where(number > 0, np.nan_to_num(quotient(overlap, matched)), np.nan)
    return np.stack([quotient(overlap, number), quality, quotient(matched, number)], axis=-2)


def panoptic_values(counts: FloatArray, classes: BoolArray | None = None) -> FloatArray:
    """Return the means of PQ, SQ and RQ over the classes that have segments, (..., 3), in the order of `PANOPTIC`.

    `classes`: (C,), True for the classes to average, for instance those of things; None for all. NaN if none of them
    has segments, where panopticapi divides by 0.
    """
    values = panoptic_quality(counts)
    return mean_over_classes(values if classes is None else values[..., classes])


def panoptic_measure(counts: FloatArray, units: Units) -> Measure:
    """Return PQ, SQ and RQ of N images, counts (N, 4, C), as functions of the weights of the images."""
    class_units = units.having_each(counts[:, 1] + counts[:, 3])
    return Measure(PANOPTIC, lambda weights: panoptic_values(pooled(counts, weights)), class_units=class_units)


def _overlaps(prediction: Segments, label: Segments) -> IntArray:
    """Return the pixels of each pair of segments, (1 + K, 1 + L); row and column 0 are void."""
    places = []
    for name, segments in (("predicted", prediction), ("labelled", label)):
        known = np.concatenate([[0], segments.ids])
        order = np.argsort(known, kind="stable")
        spots = np.clip(np.searchsorted(known, segments.map, sorter=order), 0, len(known) - 1)
        place = order[spots]
        if (wrong := segments.map[known[place] != segments.map]).size:
            raise ValueError(f"the {name} map has the segment {wrong[0]}, which is not listed")
        places.append(place)
    shape = (1 + len(prediction.ids), 1 + len(label.ids))
    pairs = places[0] * shape[1] + places[1]
    return np.bincount(pairs.ravel(), minlength=shape[0] * shape[1]).reshape(shape).astype(np.int64)
