"""Average precision and recall of matched detections, for many weightings of the images at once (a bootstrap)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.metrics.detection.matches import ClassMatches

Rule = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
Curves = Sequence[Sequence[Sequence["PrecisionRecallCurve"]]]
"""Curves of each class, area range and threshold."""

_BLOCK = 2_000_000  # numbers in memory at a time in one array


@dataclasses.dataclass(frozen=True, eq=False)
class PrecisionRecallCurve:
    """Precision-recall curve of one class, area range and threshold at its true positives, where its envelope changes.

    Attributes:
        hit_images: (G,), image of each true positive, in order of falling score.
        steps: sparse (G, N), number of detections of each image between one true positive and the next.
        objects: (N,), number of objects in each image.
    """

    hit_images: npt.NDArray[np.int64]
    steps: Any
    objects: FloatArray


def curves(matches: ClassMatches) -> list[list[PrecisionRecallCurve]]:
    """Return the A x T curves of a class."""
    return [curves_of_area(matches, area) for area in range(len(matches.hits))]


def curves_of_area(matches: ClassMatches, area: int) -> list[PrecisionRecallCurve]:
    """Return the T curves of a class in one area range."""
    from scipy.sparse import csr_array

    row, objects = [], matches.objects[area].astype(np.float64)
    for hit, left_out in zip(matches.hits[area], matches.ignored[area], strict=True):
        right, seen = np.flatnonzero(hit), np.flatnonzero(~left_out)
        step = np.searchsorted(right, seen)
        seen, step = seen[step < len(right)], step[step < len(right)]
        entries = (np.ones(len(seen)), (step, matches.images[seen]))
        steps = csr_array(entries, shape=(len(right), len(objects)))
        row.append(PrecisionRecallCurve(matches.images[right], steps, objects))
    return row


def average_precision(curve: PrecisionRecallCurve, weights: FloatArray, rule: Rule) -> FloatArray:
    """Return the average precisions (R,); NaN where there are no objects.

    `weights`: (N, R), weight of each image, in whole numbers.
    """
    total, size = curve.objects @ weights, weights.shape[1]
    values = np.zeros(size)
    per_block = max(1, _BLOCK // max(1, len(curve.hit_images)))
    for start in range(0, size if len(curve.hit_images) else 0, per_block):
        block = slice(start, start + per_block)
        chosen = np.ascontiguousarray(weights[:, block])
        hits = np.cumsum(chosen[curve.hit_images], axis=0)
        seen = np.cumsum(curve.steps @ chosen, axis=0)
        precision = np.divide(hits, seen, out=np.zeros_like(hits), where=seen > 0)
        envelope = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
        values[block] = rule(hits, envelope, total[block])
    return np.where(total > 0, values, np.nan)


def average_precisions(curves: Curves, weights: FloatArray, rule: Rule) -> FloatArray:
    """Return the average precision of each class, area range and threshold, (C, A, T, R)."""
    return np.array([[[average_precision(one, weights, rule) for one in row] for row in each] for each in curves])


def area_below(hits: FloatArray, envelope: FloatArray, total: FloatArray) -> FloatArray:
    """Return the areas (R,) below the envelopes (Pascal VOC from 2010 on); hits and envelope (G, R), total (R,)."""
    steps = np.diff(hits, axis=0, prepend=0)
    area = (steps * envelope).sum(axis=0)
    return np.asarray(np.divide(area, total, out=np.zeros_like(total), where=total > 0))


def eleven_points(hits: FloatArray, envelope: FloatArray, total: FloatArray) -> FloatArray:
    """Return the means (R,) of the envelopes at recalls 0, .1, ..., 1 (Pascal VOC 2007)."""
    # The levels are np.arange(0, 1.1, .1) as in Detectron2: three of them lie a hair above .3, .6 and .7, so that a
    # recall of exactly .3 does not reach its level.
    return _at_levels(hits, envelope, total, np.arange(0, 1.1, 0.1)[:11])


def coco_points(hits: FloatArray, envelope: FloatArray, total: FloatArray) -> FloatArray:
    """Return the means (R,) of the envelopes at recalls 0, .01, ..., 1 (COCO)."""
    return _at_levels(hits, envelope, total, np.linspace(0, 1, 101))


def _at_levels(hits: FloatArray, envelope: FloatArray, total: FloatArray, levels: FloatArray) -> FloatArray:
    steps, size = hits.shape
    needed = _needed(levels, total)
    # One sorted list for all columns: an offset lifts the counts of each above those of the column before.
    offset = np.arange(size) * (total.max() + hits[-1].max() + 2)
    found = np.searchsorted((hits + offset).T.ravel(), (needed + offset).T.ravel()).reshape(size, len(levels))
    rows = found - np.arange(size)[:, None] * steps
    padded = np.concatenate([envelope, np.zeros((1, size))])
    values: FloatArray = padded[rows, np.arange(size)[:, None]].mean(axis=1)
    return values


def _needed(levels: FloatArray, total: FloatArray) -> FloatArray:
    """Return the fewest hits (L, R) whose share of the total, as a floating-point quotient, is at least the level."""
    number = np.ceil(levels[:, None] * total)
    safe = np.maximum(total, 1)
    number -= (number - 1) / safe >= levels[:, None]
    number += number / safe < levels[:, None]
    return np.maximum(number, 0)


def recall(
    matches: ClassMatches, area: int, most: int, weights: FloatArray, thresholds: slice = slice(None)
) -> FloatArray:
    """Return the recalls (R,) averaged over the thresholds, of the `most` best detections per image.

    NaN without objects.

    `weights`: (N, R), weight of each image.
    """
    total = matches.objects[area] @ weights
    at_thresholds = matches.hits[area, thresholds]
    hits = at_thresholds.sum(axis=0) * (matches.places < most)
    found = np.bincount(matches.images, weights=hits, minlength=len(weights)) @ weights
    share = np.divide(found, total, out=np.full_like(total, np.nan), where=total > 0)
    return np.asarray(share / len(at_thresholds))


def mean_recall(
    matches: Sequence[ClassMatches], area: int, most: int, weights: FloatArray, thresholds: slice = slice(None)
) -> FloatArray:
    """Return the mean recalls (R,) of the classes with objects; arguments as for `recall`."""
    return mean_over([recall(of_class, area, most, weights, thresholds) for of_class in matches])


def mean_over(values: Sequence[FloatArray]) -> FloatArray:
    """Return the means (R,) of arrays (R,), leaving out NaN; NaN where there is nothing else."""
    table = np.stack(values)
    there = ~np.isnan(table)
    number = there.sum(axis=0)
    means = np.divide(np.nan_to_num(table).sum(axis=0), number, out=np.full(table.shape[1], np.nan), where=number > 0)
    return np.asarray(means)
