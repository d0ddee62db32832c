"""A training that dies in the middle ends with the same weights, bit for bit, under each setting that draws."""

import dataclasses

import pytest
import torch
from helpers.detector_samples import VIT
from helpers.drawn_rectangles import recipe, source

from sslbench.backbones.build import build
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, check, resolved
from sslbench.detection.train import TrainingRun, train

BASIC = "resnet_basic_1-1-1-1w0.125"
ANCHORS = ((8.0, 10.0), (16.0, 20.0), (32.0, 40.0), (64.0, 80.0), (128.0, 160.0))
DETR = {"queries": 10, "encoder_layers": 1, "decoder_layers": 2, "transformer_width": 64, "refine_boxes": True}
DETR |= {"freeze_at": 0, "optimizer": "adamw", "clip_gradients": 0.1, "backbone_rate": 0.1, "offset_rate": 0.1}
CROP = {"crop": 0.5, "crop_sizes": (40, 50), "crop_sides": (20, 40), "group_aspect_ratios": False}
MASKS = {"masks": True, "head_channels": 8, "mask_convs": 1}
ONE_STAGE = {"pyramid_channels": 64, "freeze_at": 0, "norm": "batch"}
COMMON = ("min_sizes_train", "max_size_train", "min_size_test", "max_size_test", "batch_size", "iterations", "steps")


def changed(architecture, **changes):
    """The small recipe of another architecture, without the settings that only regions have."""
    if architecture == "fpn":
        return recipe(**changes)
    kept = {name: getattr(recipe(), name) for name in (*COMMON, "warmup_iterations", "lr")}
    used = DetectionRecipe(architecture=architecture, **{**kept, **changes})
    check(used)
    return resolved(used)


class KilledError(BaseException):
    """Death of the process, as far as the loop can see."""


def weights(folder, used, backbone, *, dies, noise):
    """Return the trained weights; `noise` seeds torch's global generator, which a new process has in another state."""
    for attempt in range(2 if dies else 1):
        torch.manual_seed(noise + attempt)
        model = build_detector(build(backbone, seed=0), used, 2)

        def watch(line, attempt=attempt):
            if dies and attempt == 0 and line.iteration == 3:
                raise KilledError

        run = TrainingRun(0, torch.device("cpu"), 0, folder, save_every=2, watch=watch)
        try:
            trained = train(model, data(used), run)
        except KilledError:
            continue
        assert trained.resumed_from == (2 if dies else None)
    return model.state_dict()


def data(used):
    """Six images; with repetition the second class is rare, and one image has no object."""
    whole = source(6, empty=(5,))
    if not used.repeat_threshold:
        return whole
    objects = [
        part if i == 0 or not len(part.classes) else dataclasses.replace(part, classes=part.classes * 0)
        for i, part in enumerate(whole.target.objects)
    ]
    return dataclasses.replace(whole, target=whole.target.changed(objects=tuple(objects)))


@pytest.mark.parametrize(
    ("architecture", "backbone", "changes"),
    [
        ("fpn", BASIC, {"accumulate": 2, "precision": "bf16", "repeat_threshold": 0.9, "skip_empty": False}),
        ("fpn", BASIC, {**MASKS, "scale_jitter": (0.5, 2.0), "min_sizes_train": (800,), "max_size_train": 64}),
        ("retinanet", BASIC, {**ONE_STAGE, "anchor_sizes": ANCHORS, "accumulate": 2, "precision": "bf16"}),
        ("fcos", BASIC, {**ONE_STAGE, "accumulate": 2, "precision": "bf16", "skip_empty": False}),
        ("deformable_detr", BASIC, {**DETR, "accumulate": 2, "precision": "bf16", "skip_empty": False}),
        ("deformable_detr", BASIC, {**DETR, "two_stage": True, **CROP}),
        ("vit_fpn", VIT, {"freeze_at": 0, "drop_path": 0.5, "vit_window": 2, "vit_relative": True, "accumulate": 2}),
    ],
    ids=["parts", "jitter", "retinanet", "fcos", "deformable_detr", "two_stage_and_crop", "drop_path"],
)
def test_the_same_weights_as_without_interruption(tmp_path, architecture, backbone, changes):
    if architecture == "deformable_detr":
        pytest.importorskip("transformers", reason="pip install 'sslbench[detr]'")
    used = changed(architecture, **changes)
    used = dataclasses.replace(used, iterations=4, steps=(3,), lr=0.002)
    if architecture == "vit_fpn":
        backbone = backbone.replace("depth=1", "depth=2")
        used = dataclasses.replace(used, pyramid_channels=8, head_channels=8, box_channels=8)
    whole = weights(tmp_path / "whole", used, backbone, dies=False, noise=1)
    resumed = weights(tmp_path / "resumed", used, backbone, dies=True, noise=7)
    assert [name for name, tensor in whole.items() if not torch.equal(tensor, resumed[name])] == []
