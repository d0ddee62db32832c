"""The trained detector as a file beside its record, which stands in for the checkpoints and for training it again."""

import logging
import shutil
import time
from pathlib import Path

from sslbench.detection.evaluate import Progress, detect
from sslbench.detection.models.detector import Detector
from sslbench.detection.saved import SUFFIX, About, read_detector, save_detector
from sslbench.detection.train import Trained, TrainingRun
from sslbench.distributed.collectives import from_first, rank
from sslbench.distributed.parallel import module_state
from sslbench.evaluation.detection_backends import Ran
from sslbench.evaluation.detection_request import PreparedDetection

log = logging.getLogger("sslbench")

METRICS = ".metrics.jsonl"
"""How the name of the training's log beside a record ends."""


def exported(stem: Path) -> Path:
    """Where the detector of a record lies; `stem` is the record's path without .json."""
    return stem.with_name(stem.name + SUFFIX)


def run_exported(
    prepared: PreparedDetection, training: TrainingRun, stem: Path, progress: Progress | None
) -> Ran | None:
    """What the detector of an earlier run finds; None if there is none. Detectron2 runs its own again.

    Raises:
        WeightsError: the file is damaged.
    """
    path = exported(stem)
    if prepared.request.backend != "torchvision" or not from_first(path.is_file):
        return None
    detector, about = read_detector(path, training.device)
    log.info(f"trained already: {path}")
    began = time.perf_counter()
    found = detect(detector, prepared.data.test, workers=training.workers, progress=progress)
    notes = ("The detector was trained in an earlier run; this one only scored it.",)
    return Ran(detector, Trained(0.0, 0, about.recipe.iterations), found, time.perf_counter() - began, notes=notes)


def export(
    prepared: PreparedDetection, detector: Detector, about: About, training: TrainingRun, stem: Path, command: str
) -> None:
    """Writes the file; every process calls this. The checkpoints go, except Detectron2's, which it continues from.

    Raises:
        UsageError: it cannot be written.
    """
    state = module_state(detector)
    if rank() != 0:
        return
    save_detector(exported(stem), state, about, command=command)
    if prepared.request.backend == "torchvision":
        shutil.rmtree(training.folder, ignore_errors=True)
