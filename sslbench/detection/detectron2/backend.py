"""Detectron2 backend: trains and runs the same recipe, data and weights with Detectron2."""

import dataclasses
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.data.objects import ObjectSource
from sslbench.data.splits import Parts
from sslbench.detection.detectron2 import train
from sslbench.detection.detectron2.config import Configured, build_model, changed, configured
from sslbench.detection.detectron2.data import Variants, detect, registered
from sslbench.detection.detectron2.library import load, own_log, probe
from sslbench.detection.evaluate import truth_of
from sslbench.detection.models.build import build_detector
from sslbench.detection.models.detector import Detector
from sslbench.detection.recipe import DetectionRecipe
from sslbench.detection.saved import from_detectron2
from sslbench.detection.train import Trained, TrainingRun
from sslbench.distributed.collectives import rank, world_size
from sslbench.errors import WeightsError
from sslbench.metrics.detection import Detections
from sslbench.paths import new_file
from sslbench.runtime.progress import Progress
from sslbench.runtime.seeds import preserved_random_states
from sslbench.weights.fill import fill
from sslbench.weights.formats.tables import load_table, write

_COUNTER = ".num_batches_tracked"
_PYRAMID = "backbone.bottom_up."


def load_weights(model: Any, backbone: Backbone) -> str:
    """Load the backbone of Detectron2's model with its own checkpointer, from a file as `convert` writes it."""
    canonical = {n: t for n, t in backbone.module.state_dict().items() if not n.endswith(_COUNTER)}
    table = load_table("detectron2")
    with tempfile.TemporaryDirectory(prefix="sslbench-") as folder:
        path = Path(folder) / "backbone.pth"
        keys = table.from_canonical(canonical)
        write(
            path, table, keys, heads_beside={}, backbone=backbone.name, note={"tensors_sha256": backbone.weights_sha256}
        )
        load("checkpoint").DetectionCheckpointer(model).load(str(path))
    return check_load(model, canonical)


def check_load(model: Any, canonical: dict[str, Tensor]) -> str:
    """Raise unless the model's tensors equal the given ones bit for bit; Detectron2 itself only warns."""
    state: dict[str, Tensor] = model.state_dict()
    if any(name.startswith(_PYRAMID) for name in state):
        wanted = {_PYRAMID + key: t for key, t in load_table("detectron2").from_canonical(canonical).items()}
    else:
        wanted = load_table("detectron2_c4").from_canonical(canonical)
    wrong = [
        name
        for name, tensor in wanted.items()
        if (loaded := state.get(name)) is None or not torch.equal(loaded.detach().cpu(), tensor.cpu())
    ]
    if wrong:
        listed = ", ".join(f"'{name}'" for name in sorted(wrong)[:3]) + (" ..." if len(wrong) > 3 else "")
        raise WeightsError(
            f"Detectron2 loaded {len(wanted) - len(wrong)} of the {len(wanted)} backbone tensors; missing: {listed}",
            "Its network differs from the backbone: check the d2. keys, or use --backend torchvision.",
        )
    return f"Detectron2 loaded {len(wanted)} of {len(wanted)} backbone tensors, compared bit for bit"


log = logging.getLogger("sslbench")

CONFIGURATION = ".detectron2.yaml"
"""Suffix of the effective configuration beside a record, which Detectron2 can read."""
_LOG = "detectron2.log"
_OF_TRAINING = ("SOLVER.", "DATALOADER.", "TEST.PRECISE_BN.", "INPUT.CROP.", "INPUT.MASK_FORMAT")
"""Keys that change the training, but neither the network nor the choice of its detections."""
DIFFERENCES = (
    "Detectron2 draws order, sizes, flips and regions from other random numbers than the torchvision backend; they "
    "depend on the number of processes, and the order of the images restarts after an interruption.",
    "Precise BatchNorm is fvcore's: over batches of the first process, each weighted by its number of pixels.",
)
"""Known differences from the torchvision backend, listed in every record of this one."""


@dataclasses.dataclass(frozen=True)
class Detectron2Result:
    """Results of a training and of the run over the test part.

    Attributes:
        trained: summary of the training.
        found: detections on the test part, equal on every process.
        seconds: duration of the run over the test part.
        variants: scores of Detectron2's own evaluator, in percent.
        notes: notes on the method, one sentence each.
        state: the trained model's tensors under Detectron2's names.
    """

    trained: Trained
    found: Detections
    seconds: float
    variants: Variants
    notes: tuple[str, ...]
    state: dict[str, torch.Tensor]


def check_configuration(
    backbone: Backbone, recipe: DetectionRecipe, given: Mapping[str, Any], *, device: torch.device, processes: int
) -> Configured:
    """Build the model once on the CPU and load its backbone, to find incompatible settings."""
    configuration = configured(backbone, recipe, 1, given, device=device, processes=processes)
    on_cpu = dataclasses.replace(configuration, cfg=changed(configuration.cfg, {"MODEL.DEVICE": "cpu"}))
    with preserved_random_states(), own_log(None):
        load_weights(build_model(on_cpu), backbone)
    return configuration


def run(
    backbone: Backbone,
    recipe: DetectionRecipe,
    given: Mapping[str, Any],
    data: Parts[ObjectSource],
    training: TrainingRun,
    *,
    stem: Path,
    progress: Progress | None = None,
) -> Detectron2Result:
    """Train and detect; every process calls this. The global random states are restored."""
    device, classes = training.device, len(data.train.target.classes)
    skeleton = truth_of(data.test, dataclasses.replace(recipe, masks=False)).skeleton
    configuration = configured(
        backbone, recipe, classes, given, device=device, processes=world_size(), skeleton=skeleton
    )
    folder = training.folder
    with (
        preserved_random_states(device),
        tempfile.TemporaryDirectory(prefix="sslbench-") as scratch,
        own_log(folder / _LOG if rank() == 0 else None),
        registered(data, configuration.cfg, Path(scratch), recipe.mirrored_keypoints) as cfg,
    ):
        comm = load("utils.comm")  # its process groups are those of an earlier run, and may have ended
        comm._get_global_gloo_group.cache_clear()
        comm.create_local_process_group.cache_clear()
        comm._LOCAL_PROCESS_GROUP = None
        if world_size() > 1:
            comm.create_local_process_group(int(os.environ.get("LOCAL_WORLD_SIZE", world_size())))
        whole = dataclasses.replace(configuration, cfg=cfg)
        load("utils.env").seed_all_rng(training.seed)  # every process starts with the same heads
        model = build_model(whole)
        taken = load_weights(model, backbone)
        log.info(taken)
        if rank() == 0:
            path = stem.with_name(stem.name + CONFIGURATION)
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(path) as temporary:
                temporary.write_text(configuration.cfg.dump(), encoding="utf-8")
        trained = train.train(model, whole, recipe, data.train, training)
        began = time.perf_counter()
        found, variants = detect(model, cfg, data.test, workers=training.workers, progress=progress)
        seconds = time.perf_counter() - began
        notes = _notes(configuration, data, stem, taken)
        state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
        return Detectron2Result(trained, found, seconds, variants, notes, state)


def as_detector(
    backbone: Backbone,
    recipe: DetectionRecipe,
    classes: int,
    ran: Detectron2Result,
    given: Mapping[str, Any],
    keypoints: int = 0,
) -> Detector | None:
    """Return the trained model as an equivalent `Detector`; None if the user's keys changed its architecture."""
    if any(not key.startswith(_OF_TRAINING) for key in given):
        return None
    detector = build_detector(backbone, recipe, classes, keypoints=keypoints)
    fill(detector, from_detectron2(ran.state), what="the detector trained by Detectron2")
    return detector.eval()


def _notes(configuration: Configured, data: Parts[ObjectSource], stem: Path, taken: str) -> tuple[str, ...]:
    notes = [
        f"Trained and run by Detectron2 {probe().version}; its whole configuration is in {stem.name}{CONFIGURATION}.",
        f"{taken}.",
        "The metrics are sslbench's on Detectron2's detections, as for the torchvision backend; those of its own "
        "COCOEvaluator are beside them.",
        *configuration.notes,
        *DIFFERENCES,
    ]
    difficult = sum(int(objects.difficult.sum()) for objects in data.test.target.objects)
    if difficult:
        notes.append(f"Its COCOEvaluator ignores the flag 'difficult' and counts the {difficult} such objects of test.")
    return tuple(notes)
