"""Backends that train and run a detector: torchvision's parts, or Detectron2, with the same kind of result."""

import dataclasses
import logging
import shutil
import time
from pathlib import Path

import torch

from sslbench.backbones.backbone import Backbone
from sslbench.data.objects import ObjectSource
from sslbench.data.splits import Parts
from sslbench.detection.detectron2 import backend
from sslbench.detection.detectron2.backend import check_configuration
from sslbench.detection.detectron2.library import require
from sslbench.detection.evaluate import detect
from sslbench.detection.models.build import build_detector
from sslbench.detection.models.detector import Detector
from sslbench.detection.recipe import DetectionSettings
from sslbench.detection.saved import SUFFIX, DetectorDescription, read_detector, save_detector
from sslbench.detection.train import Trained, TrainingRun, check_processes, make_optimizer, train
from sslbench.distributed import this_process
from sslbench.distributed.collectives import from_first, rank
from sslbench.distributed.parallel import module_state
from sslbench.metrics.detection import Detections
from sslbench.results import plain, records
from sslbench.runtime.progress import Progress

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class DetectorRun:
    """Detector that was trained and run on the test part.

    Attributes:
        detector: trained, with sslbench's own modules; None when Detectron2 trained one that those cannot express.
        trained: summary of the training.
        found: on the test part.
        seconds: of the run over it.
        variants: metrics by the backend's own evaluator, in percent.
        versions: of the backend's package.
        notes: on how it was made, one sentence each.
    """

    detector: Detector | None
    trained: Trained
    found: Detections
    seconds: float
    variants: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def try_backend(settings: DetectionSettings, backbone: Backbone, device: torch.device) -> DetectionSettings:
    """Build the detector once, to find what does not fit; return its keys as Detectron2 takes them."""
    processes = this_process().world
    check_processes(settings.recipe, processes)
    if settings.program == "torchvision":
        make_optimizer(build_detector(backbone, settings.recipe, 1, keypoints=1), settings.recipe)
        return settings
    checked = check_configuration(backbone, settings.recipe, settings.d2 or {}, device=device, processes=processes)
    return dataclasses.replace(settings, d2=plain(checked.given))


def run_backend(
    settings: DetectionSettings,
    backbone: Backbone,
    data: Parts[ObjectSource],
    training: TrainingRun,
    *,
    stem: Path,
    progress: Progress | None = None,
) -> DetectorRun:
    """Train a detector around the backbone and run it on the test part; every process calls this."""
    recipe, classes, skeleton = settings.recipe, len(data.train.target.classes), data.train.target.skeleton
    keypoints = 0 if skeleton is None else len(skeleton)
    if settings.program == "torchvision":
        detector = build_detector(
            backbone, recipe, classes, keypoints=keypoints, device=training.device, seed=training.seed
        )
        trained = train(detector, data.train, training)
        began = time.perf_counter()
        found = detect(detector, data.test, workers=training.workers, progress=progress)
        return DetectorRun(detector, trained, found, time.perf_counter() - began)

    d2 = settings.d2 or {}
    ran = backend.run(backbone, recipe, d2, data, training, stem=stem, progress=progress)
    # From here on both programs are scored alike: the detector has our names, its detections are arrays.
    as_ours = backend.as_detector(backbone, recipe, classes, ran, d2, keypoints)
    versions = {"detectron2": require().version or ""}
    return DetectorRun(as_ours, ran.trained, ran.found, ran.seconds, ran.variants, versions, ran.notes)


def run_exported(
    settings: DetectionSettings, test: ObjectSource, training: TrainingRun, stem: Path, progress: Progress | None
) -> DetectorRun | None:
    """Run the detector that an earlier run wrote beside `stem`; None if there is none, or for Detectron2."""
    path = stem.with_name(stem.name + SUFFIX)
    if settings.program != "torchvision" or not from_first(path.is_file):
        return None
    detector, about = read_detector(path, training.device)
    log.info(f"already trained: {path}")
    began = time.perf_counter()
    found = detect(detector, test, workers=training.workers, progress=progress)
    notes = ("The detector was trained in an earlier run; this run only scored it.",)
    record = stem.with_name(f"{stem.name}.json")
    # A record that is there tells the time of the training; without one the run ended before the scores.
    timings = records.read(record).timings if record.is_file() else {}
    done = int(timings.get("train iterations", 0))
    trained = Trained(timings.get("train", 0.0), done, about.recipe.iterations - done or None)
    return DetectorRun(detector, trained, found, time.perf_counter() - began, notes=notes)


def export(
    settings: DetectionSettings,
    detector: Detector,
    about: DetectorDescription,
    training: TrainingRun,
    stem: Path,
    command: str,
) -> None:
    """Write the detector and remove its checkpoints; every process calls this."""
    state = module_state(detector)
    if rank() != 0:
        return
    save_detector(stem.with_name(stem.name + SUFFIX), state, about, command=command)
    if settings.program == "torchvision":
        shutil.rmtree(training.folder, ignore_errors=True)
