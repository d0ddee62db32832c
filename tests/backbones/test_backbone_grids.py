"""Grids of features, dense encoders, and stems for images of other channels."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torchvision.models.resnet import BasicBlock

from sslbench.backbones.backbone import probe_images
from sslbench.backbones.build import build
from sslbench.backbones.dense import DenseEncoder, block_inputs, layer_inputs, number_of_blocks
from sslbench.backbones.describe import describe
from sslbench.backbones.grids import grid_of_tokens, resolve_grids
from sslbench.backbones.layer_spec import parse_stem
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.backbones.speed import prepare
from sslbench.backbones.stems import map_stem, with_channels
from sslbench.data.decode.transforms import normalise
from sslbench.errors import BackboneError, SslbenchError, UsageError, WeightsError
from sslbench.preprocessing import Preprocessing
from sslbench.weights.reading.files import read
from sslbench.weights.save import save

RESNET = "resnet_basic_1-1-1-1w0.125"
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=24,num_heads=2,dynamic_img_size=True"


def test_cells_of_a_map_stand_row_by_row():
    backbone = build(RESNET, seed=0)
    images = torch.rand(2, 3, 64, 96)
    (layer,) = resolve_grids(backbone, ["res3"], (64, 96))
    assert layer.text == "res3:grid(8,12)" and (layer.grid, layer.regions) == ((8, 12), 96)
    seen = []
    handle = backbone.module.layer2.register_forward_hook(lambda _m, _i, output: seen.append(output))
    with torch.inference_mode():
        found = forward_layers(backbone.module, images, [layer])[layer.text].numpy()
    handle.remove()
    maps = seen[-1].numpy()
    assert (found.reshape(2, 8, 12, -1)[1, 5, 7] == maps[1, :, 5, 7]).all()


@pytest.mark.parametrize("options", ["", ",class_token=False,global_pool='avg'", ",reg_tokens=4"])
def test_patches_of_a_transformer_come_without_its_other_tokens(options):
    backbone = build(VIT + options, seed=0)
    (layer,) = resolve_grids(backbone, [], (32, 48))
    assert layer.text == "last:grid(4,6)"
    with torch.inference_mode():
        images = torch.rand(1, 3, 32, 48)
        found = forward_layers(backbone.module, images, [layer])[layer.text].numpy()
        tokens = backbone.module.forward_features(images).numpy()
    np.testing.assert_array_equal(found.reshape(24, -1), tokens[0, -24:])


def test_joined_layers_join_each_cell():
    backbone = build(VIT, seed=0)
    joined, one, two = resolve_grids(backbone, ["concat(blocks.0,blocks.1)", "blocks.0", "blocks.1"], (32, 48))
    assert joined.grid == (4, 6) and joined.text == "concat(blocks.0:grid(4,6),blocks.1:grid(4,6))"
    with torch.inference_mode():
        found = forward_layers(backbone.module, torch.rand(1, 3, 32, 48), [joined, one, two])
    cells = [found[layer.text].reshape(24, -1).numpy() for layer in (joined, one, two)]
    np.testing.assert_array_equal(cells[0], np.concatenate(cells[1:], axis=1))


def test_what_has_no_grid_is_one_message():
    backbone = build(RESNET, seed=0)
    with pytest.raises(UsageError, match="need images of one size"):
        resolve_grids(backbone, [], None)
    with pytest.raises(UsageError, match="the pool of a grid is grid"):
        resolve_grids(backbone, ["res3:avg"], (32, 32))
    with pytest.raises(BackboneError, match="one vector per image"):
        resolve_grids(backbone, ["output"], (32, 32))
    with pytest.raises(UsageError, match="joins grids of different sizes"):
        resolve_grids(backbone, ["concat(res2,res3)"], (32, 32))
    with pytest.raises(BackboneError, match="no grid of patches"):
        grid_of_tokens(17, (32, 32), "blocks.0")


def test_the_class_token_stands_in_every_cell_and_mirror_images_are_averaged():
    backbone = build(VIT, seed=0)
    names = ["last", "last:grid+cls", "last:grid+flip", "last:grid+cls+flip"]
    layers = resolve_grids(backbone, names, (32, 48))
    assert [layer.text for layer in layers[1:]] == [f"{name}(4,6)" for name in names[1:]]
    encode = prepare(backbone, layers, device=torch.device("cpu"))
    images = torch.rand(2, 3, 32, 48)
    found = [encode(images)[layer.text].reshape(2, 4, 6, -1) for layer in layers]
    mirrored = [encode(images.flip(-1))[layer.text].reshape(2, 4, 6, -1).flip(2) for layer in layers]
    own = DenseEncoder(backbone, layer_inputs(backbone, resolve_layers(backbone, ["last"]), cls=True))
    with_class = own(images)["last+cls"].permute(0, 2, 3, 1)
    torch.testing.assert_close(found[1], with_class, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[0], with_class[..., :24], rtol=1e-4, atol=1e-5)
    for plain, averaged in ((0, 2), (1, 3)):
        torch.testing.assert_close(found[averaged], (found[plain] + mirrored[plain]) / 2)
        torch.testing.assert_close(mirrored[averaged], found[averaged], msg="a mirror image has mirrored features")


def test_mirrored_maps_of_convolutions_are_averaged():
    backbone = build(RESNET, seed=0)
    sizes = dataclasses.replace(backbone.preprocessing, resize=(64, 96), crop=None)
    backbone = dataclasses.replace(backbone, preprocessing=sizes)
    plain, averaged = resolve_grids(backbone, ["res3", "res3:grid+flip"], (64, 96))
    encode = prepare(backbone, [plain, averaged], device=torch.device("cpu"))
    images = torch.rand(2, 3, 64, 96)
    both = [encode(each)[plain.text].reshape(2, 8, 12, -1) for each in (images, images.flip(-1))]
    found = encode(images)[averaged.text].reshape(2, 8, 12, -1)
    torch.testing.assert_close(found, (both[0] + both[1].flip(2)) / 2)


def test_a_network_without_class_token_has_none_to_join():
    with pytest.raises(BackboneError, match=r"cannot be pooled with 'grid\+cls\(8,8\)'"):
        backbone = build(RESNET, seed=0)
        forward_layers(backbone.module, torch.zeros(1, 3, 64, 64), resolve_grids(backbone, ["res3:grid+cls"], (64, 64)))


TIMMS_TEST_VIT = "timm:test_vit"


def _images(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn((2, 3, height, width), generator=generator)


def test_map_of_a_convolution_is_its_output() -> None:
    backbone = build(RESNET)
    encoder = DenseEncoder(backbone, layer_inputs(backbone, resolve_layers(backbone, ["res4", "res5"])))
    images = _images(70, 101)
    maps = encoder(images)
    with torch.no_grad():
        seen: list[torch.Tensor] = []
        path = backbone.aliases["res5"]
        handle = backbone.module.get_submodule(path).register_forward_hook(lambda *a: seen.append(a[2]))
        backbone.module(images)
        handle.remove()
    torch.testing.assert_close(maps["res5"], seen[0], rtol=1e-3, atol=1e-4)
    assert encoder.multiple == 1 and encoder.widths == {"res4": 32, "res5": 64}


def test_patches_of_a_vit_equal_timms_dynamic_sizes() -> None:
    backbone = build(TIMMS_TEST_VIT)
    free = build(f"{TIMMS_TEST_VIT},dynamic_img_size=True")
    free.module.load_state_dict(backbone.module.state_dict())
    encoder = DenseEncoder(backbone, block_inputs(backbone, [1, 2], cls=True))
    for height, width in ((64, 96), (160, 160), (48, 32)):
        images = _images(height, width)
        with torch.no_grad():
            network: Any = free.module
            found = network.forward_intermediates(
                images, indices=2, norm=True, return_prefix_tokens=True, intermediates_only=True
            )
        maps = encoder(images)
        last, tokens = found[-1]
        wanted = torch.cat([last, tokens[:, 0, :, None, None].expand(-1, -1, *last.shape[2:])], dim=1)
        torch.testing.assert_close(maps["last block+cls"], wanted, rtol=1e-4, atol=1e-5)
        assert maps["last 2 blocks+cls"].shape[1] == 2 * wanted.shape[1]


def test_facets_are_parts_of_the_attention() -> None:
    backbone = build(TIMMS_TEST_VIT)
    images, last = _images(160, 160), resolve_layers(backbone, [f"blocks.{number_of_blocks(backbone) - 1}"])
    key = DenseEncoder(backbone, layer_inputs(backbone, last, facet="key"))(images)
    query = DenseEncoder(backbone, layer_inputs(backbone, last, facet="query"))(images)
    (name,) = key
    assert name.endswith("@key") and key[name].shape == next(iter(query.values())).shape
    assert not torch.equal(key[name], next(iter(query.values())))


def test_joined_layers_have_the_finest_grid() -> None:
    backbone = build(RESNET)
    encoder = DenseEncoder(backbone, layer_inputs(backbone, resolve_layers(backbone, ["concat(res4,res5)"])))
    (maps,) = encoder(_images(64, 64)).values()
    assert tuple(maps.shape) == (2, 96, 4, 4)


def test_sizes_and_layers_without_a_map_are_refused() -> None:
    backbone = build(TIMMS_TEST_VIT)
    encoder = DenseEncoder(backbone, block_inputs(backbone, [1]))
    with pytest.raises(BackboneError, match="multiple of its patches of 16"):
        encoder(_images(50, 64))
    resnet = build(RESNET)
    with pytest.raises(UsageError, match="need a vision transformer"):
        block_inputs(resnet, [1])
    with pytest.raises(UsageError, match="not pooled"):
        layer_inputs(backbone, resolve_layers(backbone, ["blocks.1:cls"]))
    with pytest.raises(BackboneError, match="one vector per image"):
        DenseEncoder(resnet, layer_inputs(resnet, resolve_layers(resnet, ["output"])))


def test_the_backbone_is_not_changed() -> None:
    backbone = build(TIMMS_TEST_VIT)
    before = {name: x.clone() for name, x in backbone.module.state_dict().items()}
    encoder = DenseEncoder(backbone, block_inputs(backbone, [1]))
    digest = encoder.state_sha256()
    encoder(_images(64, 96))
    assert encoder.state_sha256() == digest
    assert all(torch.equal(x, before[name]) for name, x in backbone.module.state_dict().items())


SMALL, CIFAR = RESNET, f"{RESNET}_cifar"
VIT_OF_64 = "timm:vit_tiny_patch16_224,depth=2,embed_dim=48,img_size=64"


def file_of(path, name, seed=1):
    """A file with the random weights of a backbone, and statistics that are not those of a fresh one."""
    tensors = build(name, seed=seed).module.state_dict()
    generator = torch.Generator().manual_seed(seed)
    for key, tensor in tensors.items():
        if key.endswith("running_mean"):
            tensor.normal_(0, 0.1, generator=generator)
        if key.endswith("running_var"):
            tensor.uniform_(0.5, 2, generator=generator)
    torch.save(tensors, path)
    return str(path)


def outputs(backbone, images):
    with torch.no_grad():
        return backbone.module(images)


@pytest.mark.parametrize(("name", "channels"), [(SMALL, 1), (SMALL, 13), (CIFAR, 2), (CIFAR, 4)])
def test_a_checkpoint_for_other_channels_is_recognised_and_keeps_its_stem_bit_for_bit(name, channels, tmp_path):
    named = f"{name},in_chans={channels}"
    path = file_of(tmp_path / "w.pth", named)
    content = torch.load(path, weights_only=True)
    for backbone in (None, named):
        loaded = load_backbone(path, backbone=backbone)
        assert loaded.name == named and loaded.preprocessing.channels == channels
        assert torch.equal(loaded.module.conv1.weight, content["conv1.weight"])
        assert (loaded.report.partial, loaded.report.casts) == (False, ())
    known = describe(read(tmp_path / "w.pth"))
    assert known.problem == "" and known.architecture["input_channels"] == channels and known.space == ""


@pytest.mark.parametrize(("name", "channels"), [(VIT_OF_64, 13), ("timm:test_resnet", 1), ("timm:test_convnext", 4)])
def test_timm_models_take_other_channels_by_the_same_option(name, channels, tmp_path):
    named = f"{name},in_chans={channels}"
    loaded = load_backbone(file_of(tmp_path / "w.pth", named), backbone=named)
    assert loaded.name == named and loaded.preprocessing.channels == channels == len(loaded.preprocessing.std)
    assert outputs(loaded, probe_images(loaded.preprocessing)).isfinite().all()


@pytest.mark.parametrize(
    ("name", "inside", "asked"), [(SMALL, 3, 4), (SMALL, 13, 3), (VIT_OF_64, 3, 1), (VIT_OF_64, 13, 3)]
)
def test_another_number_of_channels_is_refused_without_a_rule_that_is_asked_for(name, inside, asked, tmp_path):
    path = file_of(tmp_path / "w.pth", with_channels(name, inside))
    message = rf"(?s)images of {inside} channels.*takes {asked} channel.*--stem average"
    for allow_partial in (False, True):
        with pytest.raises(WeightsError, match=message):
            load_backbone(path, backbone=with_channels(name, asked), allow_partial=allow_partial)


@pytest.mark.parametrize("name", [SMALL, CIFAR, VIT_OF_64])
@pytest.mark.parametrize("rule", ["sum", "average"])
def test_grey_as_rgb_gives_what_grey_gives_through_the_summed_stem(name, rule, tmp_path):
    path = file_of(tmp_path / "w.pth", name)
    rgb = load_backbone(path, backbone=name)
    grey = load_backbone(path, backbone=with_channels(name, 1), stem=rule)
    images = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    wanted = outputs(rgb, images.repeat(1, 3, 1, 1))
    torch.testing.assert_close(outputs(grey, images), wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
    assert "from 3 to 1 channels: " + rule in grey.report.line() and not grey.report.partial


def test_sum_alone_says_that_the_backbone_takes_one_channel(tmp_path):
    loaded = load_backbone(file_of(tmp_path / "w.pth", SMALL), stem="sum")
    assert loaded.name == f"{SMALL},in_chans=1" and loaded.preprocessing.channels == 1


@given(
    has=st.integers(1, 5),
    wanted=st.integers(1, 14),
    rule=st.sampled_from(["average", "repeat"]),
    seed=st.integers(0, 99),
)
def test_a_grey_image_is_answered_alike_whatever_the_number_of_channels(has, wanted, rule, seed):
    weight = torch.randn(4, has, 3, 3, generator=torch.Generator().manual_seed(seed))
    if rule == "repeat" and wanted % has:  # then only on the average of the channels
        return
    mapped = map_stem(weight, wanted, parse_stem(rule))
    assert mapped.shape == (4, wanted, 3, 3) and mapped.dtype == weight.dtype
    torch.testing.assert_close(mapped.sum(1), weight.sum(1), rtol=0, atol=1e-5)


def test_repeat_is_timms_rule():
    weight = torch.randn(8, 3, 7, 7)
    theirs = timm.models.adapt_input_conv(13, weight)
    torch.testing.assert_close(map_stem(weight, 13, parse_stem("repeat")), theirs)


def test_bands_take_the_weights_that_they_are_named_for(tmp_path):
    path = file_of(tmp_path / "w.pth", SMALL)
    rgb = load_backbone(path)
    # Sentinel-2: blue, green and red are bands 1, 2 and 3 of 13, from 0
    many = load_backbone(path, backbone=f"{SMALL},in_chans=13", stem="bands=3,2,1")
    images = torch.randn(2, 13, 64, 64)
    torch.testing.assert_close(outputs(many, images), outputs(rgb, images[:, [3, 2, 1]]), rtol=1e-4, atol=1e-5)
    assert "bands=3,2,1, zero elsewhere" in many.report.line()
    bgr = load_backbone(path, stem="bands=2,1,0")
    torch.testing.assert_close(outputs(bgr, images[:, :3]), outputs(rgb, images[:, :3].flip(1)), rtol=1e-4, atol=1e-5)
    back = load_backbone(
        file_of(tmp_path / "13.pth", f"{SMALL},in_chans=13"), backbone=SMALL, stem="bands=" + "-,2,1,0" + ",-" * 9
    )
    whole = load_backbone(str(tmp_path / "13.pth")).module.conv1.weight
    assert torch.equal(back.module.conv1.weight, whole[:, [3, 2, 1]])


def test_a_random_stem_is_marked_as_partial(tmp_path):
    path = file_of(tmp_path / "w.pth", SMALL)
    named = f"{SMALL},in_chans=4"
    loaded = load_backbone(path, backbone=named, stem="random", seed=5)
    assert torch.equal(loaded.module.conv1.weight, build(named, seed=5).module.conv1.weight)
    assert torch.equal(loaded.module.layer1[0].conv1.weight, load_backbone(path).module.layer1[0].conv1.weight)
    assert loaded.report.partial and loaded.report.missing == ("conv1.weight",)
    assert loaded.report.loaded == loaded.report.total - 1 and loaded.report.parameters_loaded_fraction < 1
    assert "random, not from the file" in loaded.report.line()


@pytest.mark.parametrize(
    ("rule", "backbone", "says"),
    [
        ("repat", f"{SMALL},in_chans=4", "Did you mean 'repeat'"),
        ("bands", f"{SMALL},in_chans=4", "separated by commas"),
        ("bands=1,1,2", f"{SMALL},in_chans=4", "named twice"),
        ("bands=-,-,-", f"{SMALL},in_chans=4", "no band"),
        ("bands=0,1", f"{SMALL},in_chans=4", "for 3 channels"),
        ("bands=0,1,4", f"{SMALL},in_chans=4", "0 to 3"),
        ("repeat", f"{SMALL},in_chans=2", "--stem average"),
        ("sum", f"{SMALL},in_chans=4", "--stem average"),
        ("average", None, "no effect"),
        ("random", SMALL, "no effect"),
        ("sum", "alexnet_colorization", "no stem like that"),
    ],
)
def test_rules_that_make_no_sense_are_refused(rule, backbone, says, tmp_path):
    with pytest.raises(SslbenchError, match=says):
        load_backbone(file_of(tmp_path / "w.pth", SMALL), backbone=backbone, stem=rule)


def test_a_first_convolution_that_does_not_see_the_image_is_not_mapped(tmp_path):
    """The network filters edges itself: its convolution has two channels, its images have three."""
    path = file_of(tmp_path / "w.pth", "alexnet_deepcluster")
    assert not load_backbone(path, backbone="alexnet_deepcluster").report.partial
    with pytest.raises(UsageError, match="does not see the image itself"):
        load_backbone(path, backbone="alexnet_deepcluster", stem="repeat")


@pytest.mark.parametrize("weights", ["random", "pixels"])
def test_without_a_file_there_is_no_stem_to_map(weights):
    with pytest.raises(UsageError, match="weights file"):
        load_backbone(weights, backbone=SMALL if weights == "random" else None, stem="sum")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet50,in_chans=x", "resnet50,in_chans=4"),
        ("resnet50,drop_path_rate=0.1", "timm:resnet50,drop_path_rate=0.1"),
        ("alexnet_bvlc,in_chans=4", "It has none"),
        ("timm:resnet18,in_chans=0", "not a number of channels"),
    ],
)
def test_options_that_a_backbone_lacks_are_refused(name, says):
    with pytest.raises(UsageError, match=says):
        build(name)


def test_preprocessing_for_other_channels_says_where_its_values_come_from():
    used = build(f"{RESNET},in_chans=13").preprocessing
    assert used.mean == (0.449,) * 13 and used.std == (0.226,) * 13
    assert "torchvision default" in used.origin and "averaged" in used.origin
    assert build(RESNET).preprocessing == Preprocessing(origin="torchvision default")


def test_four_channels_on_pictures_of_three_are_refused_with_what_is_missing():
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(UsageError, match=r"(?s)takes images of 4 channels .* decoded to 3.*--stem"):
        normalise(images, build(f"{RESNET},in_chans=4").preprocessing)


@pytest.mark.parametrize("channels", [1, 4])
def test_prepared_for_extraction_nothing_changes(channels):
    backbone = build(f"{CIFAR},in_chans={channels}")
    layers = resolve_layers(backbone, list(backbone.aliases))
    images = probe_images(backbone.preprocessing, 2)
    assert images.shape == (2, channels, 32, 32)
    with torch.no_grad():
        wanted = forward_layers(backbone.module, images, layers)
    got = prepare(backbone, layers, device=torch.device("cpu"))(images)
    for text, value in wanted.items():
        torch.testing.assert_close(got[text], value, rtol=0, atol=1e-4 * float(value.abs().max()))
    torch.testing.assert_close(wanted["res1"], wanted["conv1"])


def test_a_stem_for_small_images_is_recognised_with_what_does_not_show(tmp_path):
    theirs = torchvision.models.ResNet(BasicBlock, [1, 1, 1, 1])
    theirs.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    content = {f"backbone.{key}": tensor for key, tensor in theirs.state_dict().items() if "fc." not in key}
    torch.save({"state_dict": content}, tmp_path / "w.ckpt")
    loaded = load_backbone(str(tmp_path / "w.ckpt"))
    assert loaded.name == "resnet_basic_1-1-1-1_cifar" and "neither is visible in the tensors" in loaded.report.line()
    assert (loaded.preprocessing.resize, loaded.preprocessing.crop) == (32, (32, 32))
    assert "32 x 32" in loaded.preprocessing.origin
    named = load_backbone(str(tmp_path / "w.ckpt"), backbone="resnet_basic_1-1-1-1_cifar")
    assert "note:" not in named.report.line()
    with pytest.raises(WeightsError, match=r"blocks with a 3x3 stem, the backbone is a ResNet of .* basic blocks\n"):
        load_backbone(str(tmp_path / "w.ckpt"), backbone="resnet_basic_1-1-1-1")


def test_sslbench_files_name_stem_and_channels(tmp_path):
    theirs = build("resnet_basic_1-1-1-1w0.125_cifar,in_chans=4", seed=2)
    save(tmp_path / "w.torch", theirs.module.state_dict(), backbone=theirs.name, metadata={})
    loaded = load_backbone(str(tmp_path / "w.torch"))
    assert loaded.name == theirs.name and loaded.weights_sha256 == theirs.weights_sha256
    assert "note:" not in loaded.report.line()
