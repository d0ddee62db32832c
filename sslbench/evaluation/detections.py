"""Records of detections: scores, the files beside them, and comparisons of detectors on the same test images."""

import dataclasses
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.objects import ObjectSource
from sslbench.detection.evaluate import per_keypoint, score, truth_of
from sslbench.detection.floors import constant_boxes, mean_pose, with_pose
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import ResultError
from sslbench.evaluation.settings import RunSettings
from sslbench.evaluation.trainings import together
from sslbench.identity import digest, record_id
from sslbench.metrics.detection import Detections, Truth, keypoint_ap
from sslbench.metrics.detection.average_precision import DEFINITIONS, detector_difference
from sslbench.metrics.detection.files import TestObjects, read_results, write_objects, write_results
from sslbench.metrics.differences import PairedDifference
from sslbench.results import DataPart, MetricValue, Result, percent, records

log = logging.getLogger("sslbench")

CONSTANT_BOX = "constant box"
"""Name of the floor that predicts the median box of each class."""
MEAN_POSE = "mean pose"
"""Name of the floor that puts the same keypoints into every detected box of a class."""


@dataclasses.dataclass(frozen=True, eq=False)
class DetectorResult:
    """Record of a detector, and the detections of each of its trainings on the test part: 'seed 0' -> detections."""

    result: Result
    found: Mapping[str, Detections]


def mean_of_trainings(each: Sequence[DetectorResult], command: str, **changes: Any) -> DetectorResult:
    """Return the mean of several trainings, not yet written; `changes`: of the record of the first."""
    results = [dataclasses.replace(each[0].result, **changes), *(one.result for one in each[1:])]
    found = {name: detections for one in each for name, detections in one.found.items()}
    return DetectorResult(dataclasses.replace(together(results, seeds=len(results)), command=command), found)


def data_part(source: ObjectSource) -> DataPart:
    """Return a part of the data as records hold it."""
    n = len(source)
    return DataPart(
        name=source.name, fingerprint=source.objects_fingerprint(), n=n, n_used=n, classes=source.target.classes
    )


_FEW = 20  # test objects of the rarest class; the coverage below it is measured in docs/intervals.md


def few_objects(test: ObjectSource) -> tuple[str, ...]:
    """Return a note if a class has so few test objects that the intervals are too narrow; else nothing."""
    present = [(n, name) for n, name in zip(test.target.counts().tolist(), test.target.classes, strict=True) if n]
    number, name = min(present, default=(_FEW, ""))
    if number >= _FEW:
        return ()
    return (
        f"The intervals are too narrow: class {name} has {number} test object{'s' if number > 1 else ''}. With fewer "
        f"than {_FEW} of the rarest class, 95 % intervals covered 77 to 86 % in simulations, and AP was too high.",
    )


def scored(
    blank: Result, found: Detections, test: ObjectSource, truth: Truth, recipe: DetectionRecipe, out: Path
) -> Result:
    """Return the record with the scores of boxes, masks and keypoints; detections and objects lie beside its place."""
    began = time.perf_counter()
    scores, of_regions = score(truth, found, recipe, seed=blank.seed)
    of_keypoints = per_keypoint(truth, found)
    variants = {"per class, AP50": scores.per_class_50}
    variants |= {"per keypoint, AP": of_keypoints} if of_keypoints else {}
    # Written before the record, which names them: a record never lacks its detections and objects. The objects of a
    # test part are written once for all records on it; OKS depends on the sigmas.
    target, numbers = test.target, [test.target.numbers, test.target.class_numbers, truth.masks is not None]
    sigmas = [] if truth.skeleton is None else [truth.skeleton.sigmas]
    stem = records.path_of(blank, out).with_suffix("")
    objects = stem.parent / f"test-{digest([test.objects_fingerprint(), [*numbers, *sigmas]])}{records.OBJECTS}"
    if not objects.is_file():
        write_objects(objects, TestObjects(truth, test.ids, target.numbers, target.class_numbers, target.sizes))
    write_results(stem.with_name(stem.name + records.PREDICTIONS), found, target.numbers, target.class_numbers)
    return dataclasses.replace(
        blank,
        metrics={
            name: MetricValue(value=percent(value), low=percent(low), high=percent(high), n=len(test))
            for name, (value, low, high) in (scores.metrics | of_regions).items()
        },
        per_class={name: percent(value) for name, value in scores.per_class.items()},
        variants={key: {name: percent(value) for name, value in values.items()} for key, values in variants.items()},
        objects_file=objects.name,
        timings={**blank.timings, "score": round(time.perf_counter() - began, 3)},
    )


def finished(blank: Result, out: Path) -> Result | None:
    """Return the record of a finished measurement whose files are all there and not edited; else None."""
    path = records.path_of(blank, out)
    if not path.is_file():
        return None
    try:
        result = records.read_intact(path)
    except ResultError as error:
        log.warning(f"computed again: {error.message}")
        return None
    beside = [*records.predictions_paths(result).values(), path.with_name(result.objects_file or "")]
    whole = result.objects_file is not None and all(file.is_file() for file in beside)
    return result if whole and result.id == record_id(result) == blank.id else None


def detections_of(result: Result, test: ObjectSource) -> dict[str, Detections]:
    """Return the detections of a record, of each of its trainings."""
    paths = records.predictions_paths(result)
    return {
        name: read_results(path, test.target.numbers, test.target.class_numbers, test.target.sizes)
        for name, path in paths.items()
    }


def compared(
    own: DetectorResult,
    baselines: list[DetectorResult],
    train: ObjectSource,
    test: ObjectSource,
    recipe: DetectionRecipe,
    run: RunSettings,
) -> Result:
    """Return the record with baselines and floors beside it: differences of AP, their intervals, and ties."""
    result, variants, notes = own.result, dict(own.result.variants), list(own.result.notes)
    # Only boxes and keypoints are compared.
    recipe = dataclasses.replace(recipe, masks=False)
    truth, definition, floors = truth_of(test, recipe), DEFINITIONS[recipe.metric], dict(result.floors)
    if run.floors:
        boxes = constant_boxes(train, test)
        poses = mean_pose(train) if recipe.keypoints else None
        boxes = boxes if poses is None else with_pose(boxes, poses)
        scores, of_keypoints = score(truth, boxes, recipe, seed=run.seed, resamples=0)
        values = scores.metrics | of_keypoints
        floors[CONSTANT_BOX] = {name: percent(value) for name, (value, _, _) in values.items()}
        # The same boxes beside each training: only the detector varies.
        beside = dict.fromkeys(own.found, boxes)
        found = detector_difference(truth, own.found, beside, "AP", definition, seed=run.seed)
        notes += not_above(result, _BOX_WORDS, "AP", floors[CONSTANT_BOX]["AP"], found)
        if poses is not None:
            floors[MEAN_POSE], said = _at_mean_pose(own, truth, poses, run)
            notes += said
    compared_by = ["AP", *([f"{truth.skeleton.prefix}AP"] if truth.skeleton is not None else [])]
    for other in baselines:
        weights = other.result.weights
        for metric in compared_by:
            found = detector_difference(truth, own.found, other.found, metric, definition, seed=run.seed)
            variants[f"{metric}{_LESS}{weights.name}"] = {
                name: percent(getattr(found, name)) for name in ("difference", "low", "high")
            }
            notes.append(verdict(result, other.result, found, truth.n_images, metric))
        if weights.untrained:
            floors["untrained"] = {name: metric.value for name, metric in other.result.metrics.items()}
    return dataclasses.replace(result, variants=variants, notes=tuple(notes), floors=floors)


_LESS = " less that of "
_BOX_WORDS = "the constant box, the median of the training boxes of each class, without pixels"


def _at_mean_pose(
    own: DetectorResult, truth: Truth, poses: FloatArray, run: RunSettings
) -> tuple[dict[str, float | None], list[str]]:
    """Return the scores of the mean pose in the detected boxes, and a warning if the keypoints are not above it."""
    prefix = "" if truth.skeleton is None else truth.skeleton.prefix
    beside = {name: with_pose(found, poses) for name, found in own.found.items()}
    each = [keypoint_ap(truth, found, resamples=0).metrics for found in beside.values()]
    means = {f"{prefix}{name}": percent(float(np.mean([one[name][0] for one in each]))) for name in each[0]}
    found = detector_difference(truth, own.found, beside, f"{prefix}AP", "coco", seed=run.seed)
    metric, words = f"{prefix}AP", "the mean pose, the same keypoints in every detected box"
    return means, not_above(own.result, words, metric, means[metric], found)


def without_comparisons(result: Result) -> Result:
    """Return a record as it is before `compared`, to be compared with others."""
    name = result.weights.name
    # Comparisons are known by the first words of the notes that `verdict` and the warnings write.
    verdicts = (f"{name}: {prefix}AP " for prefix in ("", "keypoint_", "uniform_keypoint_"))
    said = (*verdicts, f"{name} is not clearly above", f"{name} and ", "no comparison with ")
    return dataclasses.replace(
        result,
        variants={key: values for key, values in result.variants.items() if _LESS not in key},
        notes=tuple(note for note in result.notes if not note.startswith(said)),
        floors={},
        missing_floors={},
    )


def not_above(own: Result, floor: str, metric: str, value: float | None, found: PairedDifference) -> list[str]:
    """Return a warning if a detector is not clearly above a floor of this value by a paired bootstrap; else nothing."""
    if value is None or not found.low <= 0:  # NaN says nothing
        return []
    difference, low, high = 100 * found.difference, 100 * found.low, 100 * found.high
    return [
        f"{own.weights.name} is not clearly above {floor}: {metric} {value:.1f} ({difference:+.1f}, 95 % interval "
        f"{low:+.1f} .. {high:+.1f})"
    ]


def verdict(own: Result, other: Result, found: PairedDifference, images: int, metric: str = "AP") -> str:
    """'w.torch: AP 34.2, clearly above the 21.0 of resnet18 untrained (+13.2, 95 % interval +5.1 .. +20.9 ...)'."""
    first, second = (result.metrics[metric].value for result in (own, other))
    difference, low, high = 100 * found.difference, 100 * found.low, 100 * found.high
    names = own.weights.name, other.weights.name
    if first is None or second is None or math.isnan(difference + low + high):
        return f"{names[0]} and {names[1]} cannot be compared: {metric} is not defined."
    if low > 0:
        words = f"clearly above the {second:.1f} of {names[1]}"
    elif high < 0:
        words = f"clearly below the {second:.1f} of {names[1]}"
    else:
        words = f"tied with the {second:.1f} of {names[1]}"
    numbers = own.seeds or 1, other.seeds or 1
    trainings = f"means of {numbers[0]} and {numbers[1]} trainings, whose variance the interval covers"
    if numbers == (1, 1):
        trainings = "one training each, so the variance between trainings is unknown"
    return (
        f"{names[0]}: {metric} {first:.1f}, {words}, trained alike ({difference:+.1f}, 95 % interval {low:+.1f} .. "
        f"{high:+.1f}: paired bootstrap over {images} test images; {trainings})"
    )
