"""Groups of parameters: decay and rate of each, against those of ViTDet."""

import pytest
import torch
from helpers.detection_recipes import load_recipe

from sslbench.backbones.build import build
from sslbench.detection.models.build import build_detector
from sslbench.detection.train import make_optimizer

TINY = {"pyramid_channels": 8, "head_channels": 8, "box_channels": 8}


@pytest.fixture(scope="module")
def vit():
    """Three blocks, with the recipe for vision transformers: weight decay 0.1, rates times 0.7 from block to block."""
    import dataclasses

    recipe = dataclasses.replace(load_recipe("detection/voc07_12_vit"), **TINY)
    model = build_detector(build("timm:vit_tiny_patch16_224,depth=3,img_size=32"), recipe, 2)
    optimizer = make_optimizer(model, model.recipe)
    groups = {id(p): (g["weight_decay"], g["lr_factor"]) for g in optimizer.param_groups for p in g["params"]}
    return optimizer, {name: groups[id(p)] for name, p in model.named_parameters()}


def test_rates_fall_from_block_to_block_as_in_vitdet(vit):
    """Layer i of n has 0.7^(n + 1 - i): patches and positions are layer 0, block k is layer k + 1, the rest n + 1."""
    optimizer, groups = vit
    assert isinstance(optimizer, torch.optim.AdamW)
    assert {g["betas"] for g in optimizer.param_groups} == {(0.9, 0.999)}
    for name, (_, factor) in groups.items():
        layer = 4
        if name.startswith("backbone.net."):
            part = name.removeprefix("backbone.net.")
            layer = int(part.split(".")[1]) + 1 if part.startswith("blocks.") else 0
        assert factor == pytest.approx(0.7 ** (4 - layer)), name


def test_neither_positions_nor_norms_decay_and_everything_else_does(vit):
    _, groups = vit
    without = {name for name, (decay, _) in groups.items() if decay == 0}
    assert {"backbone.net.pos_embed", "backbone.net.cls_token"} <= without
    others = without - {"backbone.net.pos_embed", "backbone.net.cls_token"}
    assert others and all("norm" in name or ".simfp_" in name for name in others), others
    assert groups["backbone.net.blocks.0.norm1.weight"][0] == 0
    assert {groups[n][0] for n in ("backbone.net.blocks.0.attn.qkv.weight", "backbone.net.blocks.0.attn.qkv.bias")} == {
        0.1
    }
    assert groups["backbone.net.patch_embed.proj.weight"][0] == 0.1
