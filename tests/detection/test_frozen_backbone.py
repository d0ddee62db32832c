"""freeze_at=5: the backbone is what it was, to the last bit, and the rest of the detector is trained."""

import pytest
import torch
from helpers.drawn_rectangles import SMALL, recipe, source

from sslbench.backbones.build import build
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import what_is_trained
from sslbench.detection.train import TrainingRun, train

VIT = "timm:vit_tiny_patch16_224,depth=1,img_size=32"
CASES = {
    "fpn": ("resnet_basic_1-1-1-1w0.125", {}, "the pyramid, "),
    "fpn_sync": ("resnet_basic_1-1-1-1w0.125", {"norm": "sync"}, "the pyramid, "),
    "c4": (
        "resnet_bottleneck_1-1-1-1w0.125",
        {"architecture": "c4", "anchor_sizes": ((16.0, 32.0),), "extra_norm": True, "box_pool": 4},
        "the fifth stage (on the regions, in the head), ",
    ),
    "vit_fpn": (VIT, {"architecture": "vit_fpn", "pyramid_norm": "layer", "head_norm": "layer"}, "the pyramid, "),
}


@pytest.mark.parametrize("case", CASES)
def test_a_frozen_backbone_does_not_change(tmp_path, case):
    name, changes, said = CASES[case]
    backbone = build(name)
    used = recipe(**{**SMALL, "iterations": 2, "freeze_at": 5, "precise_bn": 1, **changes})
    model = build_detector(backbone, used, 2)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    train(model, source(), TrainingRun(0, torch.device("cpu"), 0, tmp_path, save_every=2))
    changed = {key for key, tensor in model.state_dict().items() if not torch.equal(tensor, before[key])}
    of_backbone = {"fpn": "backbone.bottom_up.", "c4": "backbone.", "vit": "backbone.net."}[case.split("_")[0]]
    assert not any(key.startswith(of_backbone) for key in changed)
    assert any("rpn_head" in key for key in changed) and any("box_predictor" in key for key in changed)
    assert what_is_trained(used).startswith(said)
    if case == "c4":
        assert {"roi_heads.res5.0.conv1.weight", "roi_heads.res5.0.bn1.running_mean"} <= changed
    else:
        assert any("fpn_" in key or "simfp_" in key for key in changed)
    # What the detector has of the backbone is what was given, statistics of BatchNorm included.
    given = backbone.module.state_dict()
    for key, tensor in model.state_dict().items():
        if key.startswith(of_backbone) and key.removeprefix(of_backbone) in given:
            assert torch.equal(tensor, given[key.removeprefix(of_backbone)]), key


def test_without_freezing_the_same_training_changes_every_stage(tmp_path):
    model = build_detector(build(CASES["fpn"][0]), recipe(iterations=2), 2)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    train(model, source(), TrainingRun(0, torch.device("cpu"), 0, tmp_path, save_every=2))
    for part in ("conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer4.0.conv2.weight"):
        key = f"backbone.bottom_up.{part}"
        assert not torch.equal(model.state_dict()[key], before[key]), key
