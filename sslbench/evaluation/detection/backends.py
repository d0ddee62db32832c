"""Backends that train and run a detector: torchvision's parts, or Detectron2, with the same kind of result."""

import dataclasses
import time
from pathlib import Path

from sslbench.backbones.backbone import Backbone
from sslbench.detection.detectron2 import backend
from sslbench.detection.detectron2.backend import check_configuration
from sslbench.detection.detectron2.library import require
from sslbench.detection.evaluate import detect
from sslbench.detection.log import Watch
from sslbench.detection.models.build import build_detector
from sslbench.detection.models.detector import Detector
from sslbench.detection.settings import DetectionSettings
from sslbench.detection.train import Trained, TrainingRun, make_optimizer, train
from sslbench.distributed import this_process
from sslbench.evaluation.detection.request import PreparedDetection
from sslbench.evaluation.request import RunSettings
from sslbench.metrics.detection import Detections
from sslbench.results import plain
from sslbench.runtime.progress import Progress


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


def try_backend(settings: DetectionSettings, run: RunSettings, backbone: Backbone) -> DetectionSettings:
    """Build the detector once, to find what does not fit; return the settings with the keys as Detectron2 takes them.

    Raises:
        SslbenchError: recipe, keys and backbone do not go together.
    """
    if settings.backend == "torchvision":
        make_optimizer(build_detector(backbone, settings.recipe, 1, keypoints=1), settings.recipe)
        return settings

    device, processes = run.torch_device(), this_process().world
    checked = check_configuration(backbone, settings.recipe, settings.d2 or {}, device=device, processes=processes)
    return dataclasses.replace(settings, d2=plain(checked.given))


def run_backend(
    prepared: PreparedDetection,
    backbone: Backbone,
    training: TrainingRun,
    *,
    stem: Path,
    watch: Watch | None = None,
    progress: Progress | None = None,
) -> DetectorRun:
    """Train a detector around the backbone and run it on the test part; every process calls this.

    Args:
        prepared: recipe and data.
        backbone: the one of the request, or the untrained one.
        training: seed, device, workers, folder of the checkpoints.
        stem: of the record's files.
        watch: told of every line of the training's log, on the first process.
        progress: of the run over the test part.

    Raises:
        SslbenchError: an image cannot be read, the loss is not finite, a signal came.
    """
    settings, recipe, data = prepared.task.settings, prepared.recipe, prepared.data
    classes = len(data.train.classes)
    keypoints = 0 if data.train.skeleton is None else len(data.train.skeleton)
    detector = None
    if settings.backend == "torchvision":
        detector = build_detector(
            backbone,
            recipe,
            classes,
            keypoints=keypoints,
            device=training.device,
            seed=training.seed,
        )
        trained = train(detector, data.train, training, watch)
        began = time.perf_counter()
        found = detect(detector, data.test, workers=training.workers, progress=progress)
        return DetectorRun(detector, trained, found, time.perf_counter() - began)

    d2 = settings.d2 or {}
    ran = backend.run(backbone, recipe, d2, data, training, stem=stem, watch=watch, progress=progress)
    detector = backend.as_detector(backbone, recipe, classes, ran, d2, keypoints)
    versions = {"detectron2": require().version or ""}
    return DetectorRun(detector, ran.trained, ran.found, ran.seconds, ran.variants, versions, ran.notes)
