"""The contract every timm family keeps, on the smallest model of each; timm's own transforms are the reference."""

import pytest
import timm
import torch
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torch import nn

from sslbench.backbones.backbone import probe_images
from sslbench.backbones.build import build
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.speed import prepare

TINY = sorted(timm.list_models("test_*"))
FAMILIES = ["mobilenetv3_small_050", "regnetx_002", "swin_tiny_patch4_window7_224", "xcit_nano_12_p16_224"]


def test_there_are_tiny_models_to_test():
    assert len(TINY) >= 10
    assert {"test_resnet", "test_vit", "test_convnext", "test_efficientnet"} <= set(TINY)


@pytest.mark.parametrize("name", TINY + FAMILIES)
def test_every_layer_of_every_family_gives_the_same_vectors_prepared_or_not_and_in_any_batch(name):
    backbone = build(f"timm:{name}")
    for part in backbone.module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
    assert {"features", "last", "features.0", "features.1"} <= set(backbone.aliases)
    layers = resolve_layers(backbone, list(backbone.aliases))
    batch = 2 if name in FAMILIES else 8
    images = probe_images(backbone.preprocessing, batch)
    with torch.inference_mode():
        wanted = forward_layers(backbone.module, images, layers)
        reference = backbone.module(images)
    torch.testing.assert_close(wanted["features"], reference)
    encode = prepare(backbone, layers, device=torch.device("cpu"))
    got, single = encode(images), encode(images[:1])
    for text, value in wanted.items():
        scale = float(value.abs().max())
        assert value.shape[0] == batch
        assert value.ndim == 2
        assert torch.isfinite(value).all()
        assert value.std() > 0
        torch.testing.assert_close(got[text], value, rtol=0, atol=1e-4 * scale)
        torch.testing.assert_close(single[text], got[text][:1], rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize(("name", "channels"), [("swin_tiny_patch4_window7_224", 96), ("test_mambaout", 16)])
def test_channels_last_maps_are_pooled_over_space(name, channels):
    backbone = build(f"timm:{name}")
    layers = resolve_layers(backbone, ["features.0"])
    with torch.no_grad():
        images = probe_images(backbone.preprocessing)
        [got] = forward_layers(backbone.module, images, layers).values()
        expected = backbone.module.forward_intermediates(images, indices=[0], intermediates_only=True)[0].mean((2, 3))
    assert got.shape == (1, channels)
    torch.testing.assert_close(got, expected)


def test_a_vision_transformer_gives_class_token_and_mean_of_patches():
    backbone = build("timm:vit_tiny_patch16_224")
    assert backbone.module.num_prefix_tokens == 1
    images = probe_images(backbone.preprocessing)
    layers = resolve_layers(backbone, ["features", "last", "last:mean", "blocks.3:cls+mean"])
    with torch.no_grad():
        got = forward_layers(backbone.module, images, layers)
        tokens = backbone.module.forward_features(images)
    torch.testing.assert_close(got["features"], tokens[:, 0])
    torch.testing.assert_close(got["last"], tokens[:, 0])
    torch.testing.assert_close(got["last:mean"], tokens[:, 1:].mean(1))
    assert got["blocks.3:cls+mean"].shape == (1, 384)


def test_blocks_before_the_class_token_joins_are_averaged():
    """XCiT appends its class token after the last block: before, the first token is a patch like any other."""
    backbone = build("timm:xcit_nano_12_p16_224")
    taken = {}
    backbone.module.blocks[3].register_forward_hook(lambda module, args, output: taken.update(tokens=output))
    layers = resolve_layers(backbone, ["features.3", "last", "last:mean"])
    with torch.no_grad():
        images = probe_images(backbone.preprocessing)
        got = forward_layers(backbone.module, images, layers)
        tokens = backbone.module.forward_features(images)
    torch.testing.assert_close(got["features.3"], taken["tokens"].mean(1))
    torch.testing.assert_close(got["last"], tokens[:, 0])
    torch.testing.assert_close(got["last:mean"], tokens[:, 1:].mean(1))


@pytest.mark.parametrize(
    "name",
    [
        "resnet18.a1_in1k",
        "vit_small_patch16_224.dino",
        "convnext_tiny.fb_in22k_ft_in1k_384",
        "convnext_tiny.fb_in22k",
        "test_vit",
        "regnety_016",
    ],
)
def test_preprocessing_is_that_of_timm(name):
    with torch.device("meta"):
        backbone = build(f"timm:{name}")
        cfg = resolve_model_data_config(timm.create_model(name, pretrained=False))
    resize, crop, *_, normalise = create_transform(**cfg, is_training=False).transforms
    ours = backbone.preprocessing
    wanted = resize.size if isinstance(resize.size, int) or len(resize.size) == 1 else tuple(resize.size)
    assert ours.resize == wanted
    assert ours.crop == tuple(crop.size)
    assert ours.interpolation == resize.interpolation.value
    assert ours.mean == pytest.approx(normalise.mean.tolist())
    assert ours.std == pytest.approx(normalise.std.tolist())
    assert ours.origin.startswith(f"timm {name.partition('.')[0]}")
    assert (name in ours.origin) or "." not in name


def test_a_crop_mode_that_cannot_be_had_is_said(caplog):
    with torch.device("meta"):
        backbone = build("timm:" + next(n for n in timm.list_models() if "deepseek_vit" in n))
    assert "squashed" in backbone.preprocessing.origin
    assert "crop mode 'border'" in caplog.text


def test_stages_of_hrnets_are_the_maps_of_timms_feature_info():
    backbone = build("timm:hrnet_w18_small")
    layers = resolve_layers(backbone, [f"features.{i}:flatten" for i in range(5)] + ["last"])
    with torch.inference_mode():
        found = forward_layers(backbone.module, torch.zeros(1, 3, 64, 64), layers)
    sizes = [found[f"features.{i}:flatten"].shape[1] for i in range(5)]
    info = backbone.module.feature_info
    assert sizes == [one["num_chs"] * (64 // one["reduction"]) ** 2 for one in info]
    assert found["last"].shape == (1, backbone.module.num_features)
