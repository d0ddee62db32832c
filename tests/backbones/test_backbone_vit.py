"""Vision transformers from files: which one it is, how its images are made, and what is refused."""

import logging

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed

from sslbench.backbones.build import build, laid_out
from sslbench.backbones.load import load_backbone
from sslbench.backbones.sizes import accept_sizes, feature_dim, fit_positions
from sslbench.backbones.timm_recognise import recognise_convnext, recognise_regnet, recognise_swin
from sslbench.backbones.vit_recognise import grid_side, recognise_vit
from sslbench.errors import BackboneError, UsageError, WeightsError
from sslbench.preprocessing import IMAGENET_MEAN

SHALLOW = {"embed_dim": 32, "depth": 2, "num_heads": 2}


def saved(path, content):
    torch.save(content, path)
    return str(path)


def shapes(tensors):
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def prefixed(prefix, tensors):
    return {prefix + key: tensor for key, tensor in tensors.items()}


def random_vit(name, **options):
    torch.manual_seed(3)
    with laid_out():  # without timm's own initialisation
        module = timm.create_model(name, num_classes=0, **options).eval()
    module.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return module


def tensors_of(name, *random, **options):
    """A network's tensors: random those asked for, the others views of one zero in 16 bits, hardly a file's content."""
    with laid_out():
        wanted = shapes(timm.create_model(name, num_classes=0, **options).state_dict())
    return {
        key: torch.randn(shape) if key in random else torch.zeros(1, dtype=torch.half).expand(shape)
        for key, shape in wanted.items()
    }


QKV = "blocks.3.attn.qkv.weight"


@pytest.fixture(scope="module")
def dinov2():
    return tensors_of("vit_small_patch14_dinov2", "pos_embed", QKV) | {"mask_token": torch.zeros(1, 384)}


def test_dinov2_needs_no_name_and_is_evaluated_at_224(dinov2, tmp_path):
    backbone = load_backbone(saved(tmp_path / "dinov2_vits14.pth", dinov2))
    assert (backbone.name, backbone.format) == ("timm:vit_small_patch14_dinov2,img_size=224", "dinov2")
    assert "resized from 37x37 to 16x16 patches" in backbone.report.line()
    assert "ignored: mask_token" in backbone.report.line()
    ours = backbone.preprocessing
    assert (ours.resize, ours.crop, ours.interpolation, ours.mean) == (256, (224, 224), "bicubic", IMAGENET_MEAN)
    assert "dinov2" in ours.origin
    # As the authors do for models without registers: no antialiasing, the scale 0.1 patches too large.
    grid = dinov2["pos_embed"][:, 1:].unflatten(1, (37, 37)).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, scale_factor=16.1 / 37, mode="bicubic")
    wanted = torch.cat([dinov2["pos_embed"][:, :1], grid.flatten(2).transpose(1, 2)], dim=1)
    torch.testing.assert_close(backbone.module.pos_embed, wanted)
    assert torch.equal(backbone.module.get_parameter(QKV), dinov2[QKV])


def test_dinov2_at_its_own_size_is_not_touched(dinov2, tmp_path):
    backbone = load_backbone(saved(tmp_path / "w.pth", dinov2), backbone="timm:vit_small_patch14_dinov2")
    assert torch.equal(backbone.module.pos_embed, dinov2["pos_embed"])
    assert "resized" not in backbone.report.line()
    assert backbone.preprocessing.crop == (518, 518)


def test_dinov2_weights_in_a_vit_without_layerscale_are_refused(dinov2, tmp_path):
    path = saved(tmp_path / "w.pth", dinov2)
    name = "timm:vit_small_patch16_224,patch_size=14,img_size=224"
    with pytest.raises(WeightsError, match=r"24 unexpected: 'blocks\.0\.ls1\.gamma'.*LayerScale"):
        load_backbone(path, backbone=name)
    with pytest.raises(WeightsError, match=r"of another shape: .*'patch_embed\.proj\.weight'"):
        load_backbone(path, backbone="timm:vit_small_patch16_224")
    partial = load_backbone(path, backbone=name, allow_partial=True)
    assert partial.report.partial


def test_a_vit_with_missing_tensors_is_recognised_and_then_refused_naming_them(dinov2, tmp_path):
    kept = {key: tensor for number, (key, tensor) in enumerate(dinov2.items()) if number % 10 != 7}
    assert "pos_embed" in kept
    with pytest.raises(WeightsError, match=r"tensors missing: 'blocks\."):
        load_backbone(saved(tmp_path / "w.pth", kept))


def test_weights_for_384_pixels_go_into_a_backbone_for_224_when_the_user_says_so(tmp_path):
    tensors = tensors_of("vit_tiny_patch16_384", "pos_embed")
    path = saved(tmp_path / "w.pth", tensors)
    own = load_backbone(path)
    assert own.name == "timm:vit_tiny_patch16_384"
    assert torch.equal(own.module.pos_embed, tensors["pos_embed"])
    assert own.preprocessing.crop == (384, 384)
    smaller = load_backbone(path, backbone="timm:vit_tiny_patch16_224")
    assert "position embeddings resized from 24x24 to 14x14 patches (bicubic)" in smaller.report.line()
    assert not smaller.report.partial
    wanted = resample_abs_pos_embed(tensors["pos_embed"], [14, 14], [24, 24], num_prefix_tokens=1)
    torch.testing.assert_close(smaller.module.pos_embed, wanted)


@pytest.mark.parametrize(("place", "prefix"), [("", ""), ("state_dict", "module."), ("model", "")])
def test_a_bare_vit_gets_imagenets_values_and_not_those_of_timms_augreg(place, prefix, tmp_path):
    tensors = prefixed(prefix, tensors_of("vit_tiny_patch16_224"))
    path = saved(tmp_path / "w.pth", {place: tensors} if place else tensors)
    found = load_backbone(path).preprocessing
    assert (found.resize, found.crop, found.interpolation, found.mean) == (256, (224, 224), "bicubic", IMAGENET_MEAN)
    assert "does not say" in found.origin
    assert load_backbone(path, backbone="timm:vit_tiny_patch16_224").preprocessing.mean == (0.5, 0.5, 0.5)


def test_the_format_decides_the_preprocessing_unless_a_tag_does(tmp_path):
    tensors = prefixed("backbone.", tensors_of("vit_small_patch16_224"))
    head = {"head.last_layer.weight_g": torch.ones(5, 1), "head.last_layer.weight_v": torch.ones(5, 4)}
    path = saved(tmp_path / "dino.pth", {"teacher": tensors | head})
    assert load_backbone(path).name == "timm:vit_small_patch16_224.dino"
    for name in (None, "timm:vit_small_patch16_224"):
        found = load_backbone(path, backbone=name).preprocessing
        assert (found.resize, found.mean, found.origin) == (256, IMAGENET_MEAN, "dino: its evaluation transform")
    tagged = load_backbone(path, backbone="timm:vit_small_patch16_224.augreg_in21k").preprocessing
    assert tagged.mean == (0.5, 0.5, 0.5)


def test_moco_v3_small_has_twelve_heads(tmp_path, caplog):
    theirs = random_vit("vit_small_patch16_224", num_heads=12, img_size=32)
    content = prefixed("module.base_encoder.", theirs.state_dict())
    backbone = load_backbone(saved(tmp_path / "w.pth", {"state_dict": content}))
    assert backbone.module.blocks[0].attn.num_heads == 12
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone.module(images), theirs(images))
        with laid_out():
            six = timm.create_model("vit_small_patch16_224", num_classes=0, img_size=32).eval()
        six.load_state_dict(theirs.state_dict(), assign=True)
        assert not torch.allclose(six(images), theirs(images), atol=1e-3)
    with caplog.at_level(logging.INFO, logger="sslbench"):
        bare = load_backbone(saved(tmp_path / "w.pth", theirs.state_dict()))
    assert bare.module.blocks[0].attn.num_heads == 6
    assert "MoCo v3's ViT-S has 12" in caplog.text


def test_a_size_nobody_else_has_needs_the_number_of_heads(tmp_path):
    theirs = random_vit("vit_small_patch16_224", **SHALLOW, img_size=32, patch_size=8)
    path = saved(tmp_path / "w.pth", theirs.state_dict())
    with pytest.raises(BackboneError, match="number of heads is not visible") as caught:
        load_backbone(path)
    name = caught.value.remedy.partition("--backbone ")[2]
    assert "num_heads=NUMBER," in name
    with pytest.raises(UsageError, match="NUMBER"):
        load_backbone(path, backbone=name)
    backbone = load_backbone(path, backbone=name.replace("NUMBER", "2"))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone.module(images), theirs(images))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_small_patch16_224", {}),
        ("vit_small_patch16_224", {"qkv_bias": False, "img_size": 64, "patch_size": 4}),
        ("vit_small_patch16_224", {"class_token": False, "global_pool": "avg"}),
        ("vit_base_patch16_224", {"global_pool": "avg"}),
        ("vit_base_patch32_clip_224", {}),
        ("vit_large_patch14_clip_336", {}),
        ("vit_small_patch14_reg4_dinov2", {"reg_tokens": 7}),
        ("vit_huge_patch14_224", {}),
        ("deit3_small_patch16_384", {}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("beit_base_patch16_224", {}),
        ("vit_giant_patch14_reg4_dinov2", {}),
        ("vit_7b_patch16_dinov3", {}),
        ("vit_small_plus_patch16_dinov3_qkvb", {"num_reg_tokens": 2}),
        ("vit_so400m_patch14_siglip_384", {"act_layer": "gelu_tanh"}),
        ("vit_giantopt_patch16_siglip_256", {}),
        ("aimv2_huge_patch14_336", {}),
        ("vit_pe_core_gigantic_patch14_448", {}),
        ("vit_pe_lang_large_patch14_448", {}),
        ("vit_pe_spatial_small_patch16_512", {"img_size": 96}),
    ],
)
def test_every_kind_is_recognised_from_its_shapes(name, options):
    with laid_out():
        wanted = shapes(timm.create_model(name, num_classes=0, **options).state_dict())
        vit = recognise_vit(wanted)
        module = build(vit.name).module
        tensors = {key: torch.empty(shape) for key, shape in wanted.items()}
        assert shapes(fit_positions(tensors, module)[0]) == shapes(module.state_dict())
    assert vit.heads
    assert f"{vit.depth} blocks" in vit.describe() and f"width {vit.width}" in vit.describe()


def test_other_networks_are_none():
    assert recognise_vit({"conv1.weight": (64, 3, 7, 7)}) is None
    for name in ("vit_small_r26_s32_224", "vit_relpos_small_patch16_224", "swin_tiny_patch4_window7_224"):
        with laid_out():
            assert recognise_vit(shapes(timm.create_model(name, num_classes=0).state_dict())) is None


def test_thirteen_channels_are_seen_and_loaded(tmp_path):
    projection = "patch_embed.proj.weight"
    tensors = tensors_of("vit_tiny_patch16_224", projection, in_chans=13)
    vit = recognise_vit(shapes(tensors))
    assert vit.channels == 13 and vit.name == "timm:vit_tiny_patch16_224,in_chans=13"
    backbone = load_backbone(saved(tmp_path / "w.pth", tensors))
    assert torch.equal(backbone.module.get_parameter(projection), tensors[projection])
    assert backbone.preprocessing.channels == 13


def test_options_follow_a_timm_name_after_commas():
    backbone = build("timm:vit_tiny_patch16_224,img_size=64,num_heads=6")
    assert backbone.name == "timm:vit_tiny_patch16_224,img_size=64,num_heads=6"
    assert backbone.module.pos_embed.shape[1] == 17 and backbone.module.blocks[0].attn.num_heads == 6
    assert backbone.preprocessing.crop == (64, 64)
    assert build("vit_tiny_patch16_224,img_size=64").name == "timm:vit_tiny_patch16_224,img_size=64"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("img_size", "is not an option"),
        ("img_size=", "is not an option"),
        ("=3", "is not an option"),
        ("img_size=64,img_size=32", "is not an option"),
        ("imgsize=64", "cannot build"),
        ("img_size=word", "cannot build"),
        ("num_heads=5", "cannot build"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        build(f"timm:vit_tiny_patch16_224,{options}")


def test_positions_of_no_square_are_left_alone_and_refused(tmp_path):
    tensors = tensors_of("vit_tiny_patch16_224") | {"pos_embed": torch.zeros(1, 1 + 12 * 14, 192)}
    path = saved(tmp_path / "w.pth", tensors)
    with pytest.raises(WeightsError, match=r"'pos_embed' \(1, 169, 192\) in the file"):
        load_backbone(path, backbone="timm:vit_tiny_patch16_224,embed_dim=192")
    assert grid_side(1 + 12 * 14, (0, 2)) == 13
    assert grid_side(5, (0, 1)) == 2 and grid_side(6, (0, 1)) is None and grid_side(0, (0, 1)) is None


def test_networks_with_rotary_positions_of_other_kinds_are_none():
    names = (
        "eva02_tiny_patch14_224 eva_giant_patch14_224 vit_small_patch16_rope_224 vit_medium_patch16_rope_reg1_gap_256"
    )
    for name in names.split():
        with laid_out():
            assert recognise_vit(shapes(timm.create_model(name, num_classes=0).state_dict())) is None, name


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("convnext_tiny", {}),
        ("convnext_nano", {}),
        ("convnextv2_atto", {"conv_mlp": False}),
        ("convnextv2_pico", {"in_chans": 4}),
        ("convnext_xxlarge", {}),
        ("convnext_base", {"depths": (1, 2, 3, 1), "dims": (8, 16, 24, 32)}),
    ],
)
def test_a_convnext_is_recognised_from_its_shapes(name, options):
    with laid_out():
        wanted = shapes(timm.create_model(name, num_classes=0, **options).state_dict())
        found = recognise_convnext(wanted)
        assert shapes(build(found).module.state_dict()) == wanted
    assert found.startswith(f"timm:{name}") or "depths=1-2-3-1,dims=8-16-24-32" in found


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("swin_tiny_patch4_window7_224", {}),
        ("swin_large_patch4_window12_384", {}),
        ("swin_small_patch4_window7_224", {"num_heads": (6, 12, 24, 48), "in_chans": 4}),
        ("swin_base_patch4_window7_224", {"depths": (1, 2), "embed_dim": 16, "num_heads": (2, 4)}),
        ("regnety_002", {}),
        ("regnetx_004_tv", {"in_chans": 1}),
        ("regnety_2560", {}),
        ("regnety_1280", {"w0": 1744, "wa": 620.83, "wm": 2.52, "group_size": 1010}),
    ],
)
def test_a_swin_or_regnet_is_recognised_from_its_shapes(name, options):
    recognise = recognise_swin if name.startswith("swin") else recognise_regnet
    with laid_out():
        wanted = shapes(timm.create_model(name, num_classes=0, **options).state_dict())
        assert shapes(build(recognise(wanted)).module.state_dict()) == wanted
    assert options or recognise(wanted).startswith(f"timm:{name.partition('_patch4')[0]}")


def test_convnexts_with_other_norms_heads_or_activations_are_none():
    for name in ("convnext_tiny_hnf", "convnext_zepto_rms", "test_convnext"):
        with laid_out():
            assert recognise_convnext(shapes(timm.create_model(name, num_classes=0).state_dict())) is None, name


SWIN = "timm:swin_tiny_patch4_window7_224,img_size=56"
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


def test_a_vit_takes_other_sizes_and_answers_as_before_to_its_own():
    module = build(VIT).module
    images, wanted = torch.randn(2, 3, 32, 32), {name: p.shape for name, p in module.named_parameters()}
    before = module(images)
    accept_sizes(module, (32, 16), name=VIT)
    torch.testing.assert_close(module(images), before)
    assert module(images[..., :16, :16]).shape == before.shape
    assert {name: p.shape for name, p in module.named_parameters()} == wanted


@pytest.mark.parametrize(
    ("name", "sizes", "message"), [("timm:test_vit", (160, 90), "90 x 90"), (SWIN, (56, 28), "28")]
)
def test_sizes_that_a_backbone_cannot_take_are_refused(name, sizes, message):
    with pytest.raises(UsageError, match=f"cannot take views of {message}"):
        accept_sizes(build(name, to_be_filled=True).module, sizes, name=name)


def test_the_length_of_the_vectors():
    module = build("resnet18w0.125").module.train()
    assert feature_dim(module, 32) == 64 and module.training
    with pytest.raises(ValueError, match="one vector per image"):
        feature_dim(torch.nn.Conv2d(3, 4, 3), 32)
