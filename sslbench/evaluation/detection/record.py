"""Record of a detection: its description before training, and its results."""

import dataclasses
import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sslbench import detection, protocols
from sslbench.backbones.backbone import Backbone
from sslbench.data.objects.types import ObjectSource
from sslbench.detection import VERSION
from sslbench.detection.evaluate import detect
from sslbench.detection.models.detector import Detector
from sslbench.detection.recipe import DetectionRecipe, what_is_trained
from sslbench.detection.saved import SUFFIX, DetectorDescription, read_detector, save_detector
from sslbench.detection.train import Trained, TrainingRun
from sslbench.distributed.collectives import from_first, rank
from sslbench.distributed.parallel import module_state
from sslbench.evaluation.detection.backends import DetectorRun
from sslbench.evaluation.detection.request import PreparedDetection
from sslbench.evaluation.record import benchmark_used, hardware, weights_used
from sslbench.evaluation.trainings import ONE_TRAINING
from sslbench.identity import Measurement, record_id
from sslbench.metrics.detection import DetectionScores
from sslbench.results import DataPart, DataUsed, MetricValue, ProtocolUsed, Result, percent, plain, records
from sslbench.runtime.progress import Progress

_HEADLINE = "AP"
PER_KEYPOINT = "per keypoint, AP"
"""Name of the variant with the AP of each keypoint, as if it alone were labelled."""
_FEW = 20  # test objects of the rarest class; the coverage below it is measured in docs/intervals.md


def blank_result(prepared: PreparedDetection, backbone: Backbone, given: str, command: str) -> Result:
    """Return the record without results; its id is known before training, for the checkpoints."""
    request, run, data, task = prepared.request, prepared.run, prepared.data, prepared.task
    weights = weights_used(backbone, given, request.name if backbone is prepared.backbone else None)
    preprocessing = _statistics(backbone, prepared.recipe)
    settings = plain(protocols.find("detection").recorded(task.settings))
    protocol = ProtocolUsed(name="detection", version=detection.VERSION, settings=settings)
    used = DataUsed(
        train=data_part(data.train),
        test=data_part(data.test),
        how=data.how,
        labels="none",
        split_seed=prepared.split_seed,
    )
    benchmark, layer = task.benchmark, prepared.recipe.architecture
    named: dict[str, Any] = {"weights": weights, "layer": layer, "preprocessing": preprocessing, "precision": "fp32"}
    named |= {
        "protocol": protocol,
        "data": used,
        "seed": run.seed,
        "seeds": run.seeds,
        "feature_dtype": "float32",
        "preset": None,
    }
    named |= {"benchmark": None if benchmark is None else benchmark_used(benchmark)}
    return Result(
        **named,
        id=record_id(Measurement(**named)),
        created=records.now(),
        command=command,
        headline=_HEADLINE,
        metrics={},
        versions=records.versions(),
        hardware=hardware(run),
        working_folder=records.working_folder(),
        notes=(
            *dict.fromkeys((*data.train.notes, *data.test.notes, *data.notes)),
            *_frozen(prepared.recipe),
            *few_objects(data.test),
            *([ONE_TRAINING] if run.seeds == 1 else []),
        ),
    )


def few_objects(test: ObjectSource) -> tuple[str, ...]:
    """Return a note if a class has so few test objects that the intervals are too narrow; else nothing."""
    present = [(n, name) for n, name in zip(test.counts().tolist(), test.classes, strict=True) if n]
    number, name = min(present, default=(_FEW, ""))
    if number >= _FEW:
        return ()
    return (
        f"The intervals are too narrow: class {name} has {number} test object{'s' if number > 1 else ''}. With fewer "
        f"than {_FEW} of the rarest class, 95 % intervals covered 77 to 86 % in simulations, and AP was too high.",
    )


def _frozen(recipe: DetectionRecipe) -> tuple[str, ...]:
    if recipe.freeze_at < 5:
        return ()
    return (f"The backbone was frozen (freeze_at=5); what was trained: {what_is_trained(recipe)}.",)


def _statistics(backbone: Backbone, recipe: DetectionRecipe) -> dict[str, Any]:
    """Return the parts of the backbone's preprocessing that a detector uses; the sizes stand in its recipe."""
    preprocessing = backbone.preprocessing
    reading = {key: value for key, value in preprocessing.values().items() if key in ("decoder", "max_pixels")}
    if recipe.pixel_mean:
        return {**reading, "mean": recipe.pixel_mean, "std": recipe.pixel_std, "origin": "recipe"}
    return {**reading, "mean": preprocessing.mean, "std": preprocessing.std, "origin": preprocessing.origin}


def data_part(source: ObjectSource) -> DataPart:
    """Return a part of the data as records hold it."""
    n = len(source)
    return DataPart(name=source.name, fingerprint=source.fingerprint(), n=n, n_used=n, classes=source.classes)


def describe(prepared: PreparedDetection, backbone: Backbone, weights: str, measurement: str) -> DetectorDescription:
    """Return the provenance of a detector, for its file and its checkpoints."""
    recipe, benchmark, data = prepared.recipe, prepared.task.benchmark, prepared.data
    skeleton = data.train.skeleton
    return DetectorDescription(
        recipe=recipe,
        classes=data.train.classes,
        backbone=backbone.name,
        preprocessing=backbone.preprocessing,
        weights=weights,
        data=data.train.name,
        benchmark="" if benchmark is None else benchmark.name,
        measurement=measurement,
        keypoints=() if skeleton is None or not recipe.keypoints else skeleton.names,
        version=VERSION,
    )


def finished(
    blank: Result,
    ran: DetectorRun,
    scores: DetectionScores,
    of_masks: Mapping[str, tuple[float, float, float]],
    of_keypoints: Mapping[str, float],
    *,
    n: int,
    seconds: float,
) -> Result:
    """Return the record with its results; fractions become percent.

    Args:
        blank: the record without it.
        ran: training and detection.
        scores: of the boxes.
        of_masks: of the masks and of the keypoints together.
        of_keypoints: AP of each keypoint.
        n: test images.
        seconds: that scoring took.
    """
    trained, notes = ran.trained, [*blank.notes, *ran.notes]
    if trained.resumed_from is not None and trained.iterations:
        notes.append(f"Training was resumed after iteration {trained.resumed_from}; the time covers the rest only.")
    scored = with_scores(blank, scores, of_masks, of_keypoints, n=n)
    return dataclasses.replace(
        scored,
        variants=scored.variants | ran.variants,
        timings={
            "train": round(trained.seconds, 3),
            "train iterations": float(trained.iterations),
            "detect": round(ran.seconds, 3),
            "score": round(seconds, 3),
        },
        versions=blank.versions | ran.versions,
        notes=tuple(notes),
    )


def with_scores(
    blank: Result,
    scores: DetectionScores,
    of_masks: Mapping[str, tuple[float, float, float]],
    of_keypoints: Mapping[str, float],
    *,
    n: int,
) -> Result:
    """Return the record with the scores of boxes, masks and keypoints, in percent; `n` is the number of test images."""
    variants = {"per class, AP50": scores.per_class_50}
    variants |= {PER_KEYPOINT: dict(of_keypoints)} if of_keypoints else {}
    return dataclasses.replace(
        blank,
        metrics={
            name: MetricValue(value=percent(value), low=percent(low), high=percent(high), n=n)
            for name, (value, low, high) in (scores.metrics | dict(of_masks)).items()
        },
        per_class={name: percent(value) for name, value in scores.per_class.items()},
        variants={key: {name: percent(value) for name, value in values.items()} for key, values in variants.items()},
    )


log = logging.getLogger("sslbench")

METRICS = ".metrics.jsonl"
"""Suffix of the training's log beside a record."""


def exported(stem: Path) -> Path:
    """Return the path of a record's detector; `stem` is the record's path without .json."""
    return stem.with_name(stem.name + SUFFIX)


def run_exported(
    prepared: PreparedDetection, training: TrainingRun, stem: Path, progress: Progress | None
) -> DetectorRun | None:
    """Run the detector of an earlier run; None if there is none. Detectron2 runs its own again.

    Raises:
        WeightsError: the file is damaged.
    """
    path = exported(stem)
    if prepared.task.settings.backend != "torchvision" or not from_first(path.is_file):
        return None
    detector, about = read_detector(path, training.device)
    log.info(f"already trained: {path}")
    began = time.perf_counter()
    found = detect(detector, prepared.data.test, workers=training.workers, progress=progress)
    notes = ("The detector was trained in an earlier run; this run only scored it.",)
    trained = _trained_before(stem, about.recipe.iterations)
    return DetectorRun(detector, trained, found, time.perf_counter() - began, notes=notes)


def _trained_before(stem: Path, iterations: int) -> Trained:
    """Return the training as the earlier record has it; no time and iterations without one."""
    path = stem.with_name(f"{stem.name}.json")
    timings = records.read(path).timings if path.is_file() else {}
    done = int(timings.get("train iterations", 0))
    return Trained(timings.get("train", 0.0), done, iterations - done or None)


def export(
    prepared: PreparedDetection,
    detector: Detector,
    about: DetectorDescription,
    training: TrainingRun,
    stem: Path,
    command: str,
) -> None:
    """Write the detector; every process calls this. The checkpoints are removed, except Detectron2's, which it resumes.

    Raises:
        UsageError: the detector cannot be written.
    """
    state = module_state(detector)
    if rank() != 0:
        return
    save_detector(exported(stem), state, about, command=command)
    if prepared.task.settings.backend == "torchvision":
        shutil.rmtree(training.folder, ignore_errors=True)
