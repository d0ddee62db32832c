"""Training by two processes: each with one image does what one process does with both."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.drawn_rectangles import SMALL, source

from sslbench.backbones.build import build
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe
from sslbench.detection.train import TrainingRun, train

FEW = {"queries": 10, "encoder_layers": 1, "decoder_layers": 2, "transformer_width": 64, "refine_boxes": True}
CASES = {
    "retinanet": {"pyramid_channels": 64, "anchor_sizes": ((8.0,), (16.0,), (32.0,), (64.0,), (128.0,))},
    "fcos": {"pyramid_channels": 64},
    "deformable_detr": {**FEW, "two_stage": True, "dropout": 0.0},
}
NAMES = ("min_sizes_train", "max_size_train", "min_size_test", "max_size_test", "batch_size")


def trained(rank, kind, folder, accumulate, iterations=2):
    """Weights after the updates, and the logged losses; every second image has no object."""
    recipe = DetectionRecipe(
        architecture=kind,
        **{**CASES[kind], **{name: SMALL[name] for name in NAMES}},
        **{"norm": "frozen", "freeze_at": 0, "skip_empty": False, "lr": 0.001, "warmup_iterations": 0},
        **{"iterations": max(iterations, 1), "steps": (), "accumulate": accumulate},
    )
    model = build_detector(build("resnet_basic_1-1-1-1w0.25", seed=0), recipe, 2)
    lines = []
    if not iterations:
        return {n: p.detach().numpy() for n, p in model.named_parameters()}, lines
    run = TrainingRun(0, torch.device("cpu"), 0, Path(folder), save_every=2, watch=lines.append)
    train(model, source(4, empty=(1, 3)), run)
    return {n: p.detach().numpy() for n, p in model.named_parameters()}, [line.parts for line in lines]


@pytest.mark.parametrize("kind", CASES)
def test_two_processes_and_two_parts_do_what_one_does(tmp_path, kind):
    if kind == "deformable_detr":
        pytest.importorskip("transformers", reason="pip install 'sslbench[detr]'")
    whole, parts = trained(0, kind, tmp_path / "one", 1)
    halves = [trained(0, kind, tmp_path / "parts", 2)]
    halves += two_processes.run(trained, kind, str(tmp_path / "two"), 1)
    start, _ = trained(0, kind, tmp_path, 1, iterations=0)
    for weights, logged in halves:
        for name, wanted in whole.items():
            moved = np.abs(wanted - start[name]).max()
            assert np.abs(weights[name] - wanted).max() <= 1e-3 * moved + 1e-7, name
        for line, wanted in zip(logged, parts if logged else (), strict=True):
            assert line == pytest.approx(dict(wanted), rel=1e-4)
    assert halves[0][1] and halves[1][1] and not halves[2][1], "the first process logs"
