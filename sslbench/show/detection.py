"""Best, median and worst test images of a record of detection, with predicted and true boxes."""

import dataclasses
from pathlib import Path

import numpy as np

from sslbench.arrays import BoolArray, FloatArray
from sslbench.data.objects.types import ObjectSource
from sslbench.data.splits.objects import split_objects
from sslbench.detection.batches import read
from sslbench.detection.pictures import draw_pair
from sslbench.errors import DataError, ResultError, UsageError
from sslbench.evaluation.scored import PROTOCOL, parts_to_score
from sslbench.metrics.detection import Detections, Truth
from sslbench.metrics.detection.files import read_results
from sslbench.results import Result, records
from sslbench.show.page import Section
from sslbench.show.pictures import Panel
from sslbench.show.record import AsTyped, choose, locations, reading, split_seed

_SCORE, _OVERLAP = 0.5, 0.5
_SIDE = 640  # of both pictures together


def show_detection(result: Result, typed: AsTyped, test_fraction: float, each: int) -> list[Section]:
    """Return the worst, median and best test images with true (left) and predicted boxes (right).

    Args:
        result: record of detection, with its file of predictions.
        typed: location of the data.
        test_fraction: share of the test part in a seeded split.
        each: number of images per group.

    Raises:
        SslbenchError: data or predictions are gone, or are not those of the record.
    """
    test = _test_part(result, typed, test_fraction)
    found = read_results(_predictions_path(result), test.numbers, test.class_numbers, test.sizes)
    masks = found.masks is not None and test.has_masks
    truth = test.truth(masks=masks, skeleton=None if found.keypoints is None else test.skeleton)
    sections = []
    for group in reversed(choose(image_f1(truth, found), each)):  # the worst images first
        rows = []
        for row in group.rows:
            image = np.ascontiguousarray(read(test, row).permute(1, 2, 0).numpy())
            pair = draw_pair(image, row, test.ids[row], truth, found, _SCORE)
            rows.append(("", [Panel(pair)]))
        text = (
            f"Ordered by the F-score of the boxes of an image, of scores from {_SCORE:g} on, matched at an overlap of "
            f"{_OVERLAP:g}. Left the truth, dashed where it does not count; right the predictions."
        )
        sections.append(Section(group.title, text, rows, _SIDE))
    return sections


def _predictions_path(result: Result) -> Path:
    """Return the file of detections of a record; of several trainings that of the first."""
    paths = list(records.predictions_paths(result).values())
    if not paths:
        raise ResultError("a record that was not read from a file has no predictions beside it")
    return paths[0]


def _test_part(result: Result, typed: AsTyped, test_fraction: float) -> ObjectSource:
    data, test_data = locations(result, typed)
    total = max(1, result.data.train.n + result.data.test.n)
    for fraction in dict.fromkeys((test_fraction, result.data.test.n / total)):
        try:
            if result.protocol.name == PROTOCOL:
                _, part = parts_to_score(data, test_data)
            else:
                part = split_objects(data, test_data, seed=split_seed(result), test_fraction=fraction).test
        except (DataError, UsageError) as error:
            raise type(error)(
                f"the data of {result.file} cannot be used: {error.message}",
                "Give their location with --data and --test-data.",
            ) from error
        if part.fingerprint() == result.data.test.fingerprint:
            return dataclasses.replace(part, reading=reading(result, typed))
    raise ResultError(
        f"{data} is not the data of {result.file}: images or objects have changed, or it is another set",
        f"Give its data with --data and --test-data. The record was made by: {result.command}",
    )


def image_f1(truth: Truth, found: Detections) -> FloatArray:
    """Return the F-score of the boxes of each image, (N,): 2 TP / (2 TP + FP + FN); 1 where there is nothing to find.

    Detections with scores from 0.5 on are matched in falling order of score, each to the object of its class that it
    overlaps most, by 0.5 or more. Crowds and difficult objects count neither as found nor as missed.

    Args:
        truth: N images.
        found: their detections.
    """
    values = np.ones(truth.n_images)
    ignored = truth.crowd | truth.difficult
    for image in range(truth.n_images):
        there = np.flatnonzero(truth.images == image)
        here = np.flatnonzero((found.images == image) & (found.scores >= _SCORE))
        here = here[np.argsort(-found.scores[here], kind="stable")]
        overlap = _overlaps(found.boxes[here], truth.boxes[there])
        overlap[found.labels[here][:, None] != truth.labels[there][None]] = 0
        right, wrong = _matches(overlap, ignored[there])
        missed = int((~ignored[there]).sum()) - right
        total = 2 * right + wrong + missed
        values[image] = 2 * right / total if total else 1.0
    return values


def _matches(overlap: FloatArray, ignored: BoolArray) -> tuple[int, int]:
    """Return the numbers of right and wrong detections, for overlaps (D, T) in falling order of score."""
    taken, right, wrong = np.zeros(len(ignored), dtype=np.bool_), 0, 0
    for row in overlap:
        free = np.where(taken | ignored, 0, row)
        if len(free) and free.max() >= _OVERLAP:
            taken[free.argmax()] = True
            right += 1
        elif not (len(row) and np.where(ignored, row, 0).max() >= _OVERLAP):
            wrong += 1
    return right, wrong


def _overlaps(a: np.ndarray, b: np.ndarray) -> FloatArray:
    """Return intersection over union of boxes (D, 4) and (T, 4), as (D, T)."""
    corners = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    both = np.clip(corners[1] - corners[0], 0, None).prod(axis=2, dtype=np.float64)
    areas = [np.clip(x[:, 2:] - x[:, :2], 0, None).prod(axis=1, dtype=np.float64) for x in (a, b)]
    return np.asarray(both / np.maximum(areas[0][:, None] + areas[1][None] - both, 1e-12))
