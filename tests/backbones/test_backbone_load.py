"""From a weights file to a backbone: what is recognised, what is refused."""

import pickle
import textwrap

import cv2
import numpy as np
import pytest
import timm
import torch
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from sslbench.backbones.architectures import parse
from sslbench.backbones.build import build
from sslbench.backbones.convert import convert
from sslbench.backbones.load import load_backbone, load_file
from sslbench.data.decode.transforms import normalise
from sslbench.errors import BackboneError, UsageError, WeightsError
from sslbench.names import list_names
from sslbench.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from sslbench.weights.convert import rewrite
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading import files
from sslbench.weights.save import save


def saved(path, content):
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize(
    ("name", "block", "blocks", "options"),
    [
        ("resnet_basic_2-1-1-1", BasicBlock, [2, 1, 1, 1], {}),
        ("resnext_bottleneck_1-1-1-1_32x4d", Bottleneck, [1, 1, 1, 1], {"groups": 32, "width_per_group": 4}),
    ],
)
def test_torchvision_weights_need_no_name_and_lose_their_classifier(name, block, blocks, options, tmp_path):
    theirs = ResNet(block, blocks, **options)
    backbone = load_backbone(saved(tmp_path / "w.pth", theirs.state_dict()))
    assert backbone.name == name
    assert backbone.format == "torchvision"
    assert not backbone.report.partial
    assert "fc.*" in backbone.report.line()
    for key, value in backbone.module.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[key])
    assert not any(parameter.requires_grad for parameter in backbone.module.parameters())


def test_the_weights_hash_is_that_of_the_tensors(tmp_path):
    theirs = build("resnet18w0.25", seed=4)
    path = saved(tmp_path / "w.pth", {"state_dict": {f"module.{k}": v for k, v in theirs.module.state_dict().items()}})
    loaded = load_backbone(path)
    assert loaded.name == "resnet18w0.25"
    assert loaded.weights_sha256 == theirs.weights_sha256
    assert loaded.weights_sha256 != build("resnet18w0.25", seed=5).weights_sha256


def test_sslbench_files_name_their_backbone(tmp_path):
    theirs = build("timm:test_vit", seed=4)
    save(tmp_path / "w.torch", theirs.module.state_dict(), backbone=theirs.name, metadata={})
    loaded = load_backbone(str(tmp_path / "w.torch"))
    assert (loaded.name, loaded.format, loaded.report.partial) == ("timm:test_vit", "sslbench", False)
    assert loaded.weights_sha256 == theirs.weights_sha256


@pytest.mark.parametrize(
    "name",
    ["test_vit", "test_convnext", "test_efficientnet", "test_resnet", "test_mambaout", "test_byobnet", "test_nfnet"],
)
def test_timm_weights_lose_their_classifier_whatever_it_is_called(name, tmp_path):
    theirs = timm.create_model(name, num_classes=7).eval()
    backbone = load_backbone(saved(tmp_path / "w.pth", theirs.state_dict()), backbone=f"timm:{name}")
    assert not backbone.report.partial
    images = torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        expected = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
        torch.testing.assert_close(backbone.module(images), expected)


def test_a_users_module_keeps_its_classifier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = """
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv1 = nn.Conv2d(3, 8, 3)
                self.fc = nn.Linear(8, 5)

            def forward(self, x):
                return self.fc(self.conv1(x).mean((2, 3)))
    """
    (tmp_path / "net_with_classifier.py").write_text(textwrap.dedent(source))
    name = "net_with_classifier:Net"
    theirs = build(name, seed=1)
    for prefix in ("", "module."):
        path = saved(tmp_path / "w.pth", {"state_dict": {prefix + k: v for k, v in theirs.module.state_dict().items()}})
        loaded = load_backbone(path, backbone=name)
        assert (loaded.report.loaded, loaded.report.total) == (4, 4)
        assert loaded.weights_sha256 == theirs.weights_sha256


def test_random_and_pixels_are_no_files():
    assert load_backbone("random", backbone="resnet18w0.25", seed=3).report is None
    assert load_backbone("pixels:8").name == "pixels:8"
    assert load_backbone("pixels", backbone="pixels").name == "pixels:32"


@pytest.mark.parametrize(
    ("weights", "backbone", "says"),
    [
        ("random", None, "--backbone"),
        ("pixels", "resnet18", "fixes the backbone"),
        ("FILE", "pixels", "has no weights"),
    ],
)
def test_contradictions_are_refused(weights, backbone, says, tmp_path):
    path = saved(tmp_path / "w.pth", build("resnet18w0.25").module.state_dict())
    with pytest.raises(UsageError, match=says):
        load_backbone(path if weights == "FILE" else weights, backbone=backbone)


def test_weights_of_another_architecture_are_refused(tmp_path):
    path = saved(tmp_path / "w.pth", build("resnet50w0.25").module.state_dict())
    with pytest.raises(WeightsError, match="does not fit the backbone"):
        load_backbone(path, backbone="resnet18w0.25")


def test_missing_tensors_are_named_and_only_allowed_on_request(tmp_path):
    tensors = build("resnet18w0.25").module.state_dict()
    kept = {key: value for i, (key, value) in enumerate(tensors.items()) if i % 10}
    path = saved(tmp_path / "w.pth", kept)
    with pytest.raises(WeightsError, match=r"tensors missing: '"):
        load_backbone(path)
    assert load_backbone(path, allow_partial=True).report.partial


def test_an_architecture_that_does_not_show_must_be_named(tmp_path):
    tensors = build("resnet18w0.25").module.state_dict()
    tensors["conv1.weight"] = torch.zeros(16, 3, 5, 5)
    with pytest.raises(BackboneError, match=r"(?s)another stem: 5x5.*--backbone"):
        load_backbone(saved(tmp_path / "w.pth", tensors))


NARROW = "resnet_bottleneck_1-1-1-1w0.125"


def tensors_of(format, name, variant=""):
    """A network with random weights and statistics under the key names of a format."""
    torch.manual_seed(0)
    module = build(name).module
    for key, value in module.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.1 if "var" in key or "bn" in key else 0.1 * torch.randn_like(value))
    table = load_table(f"{format}:{variant}" if variant else format)
    kept = {k: t for k, t in module.state_dict().items() if not k.endswith("num_batches_tracked")}
    return module, table.from_canonical(kept)


def caffe2_file(path, name, format="caffe2_resnet"):
    module, tensors = tensors_of(format, name)
    path.write_bytes(pickle.dumps({"blobs": {key: tensor.numpy() for key, tensor in tensors.items()}}))
    return module


@pytest.mark.parametrize("name", list_names("format"))
def test_every_format_says_what_images_its_networks_were_trained_on(name):
    table = load_table(name).file
    assert table.input is not None, "no input space"
    is_resnet = "layer1" in str(table.rules)
    assert table.strides is not None or not is_resnet, "no strides"
    flips = any("flip_channels" in str(rule) for rule in table.rules)
    assert flips == (table.input.space == "BGR")
    assert len(table.input.mean) == len(table.input.std) in (0, 3)


def test_a_colorization_resnet_sees_lightness_and_its_last_stage_keeps_the_size(tmp_path):
    """Goyal et al. 2019: L of CIE Lab less 50, stride 1 in the last stage; 14 x 14 maps at 224 pixels."""
    caffe2_file(tmp_path / "color.pkl", f"{NARROW},in_chans=1")
    backbone = load_backbone(str(tmp_path / "color.pkl"))
    assert parse(backbone.name).last_stride == 1 and backbone.module.layer4[0].conv2.stride == (1, 1)
    assert backbone.module.layer4[0].downsample[0].stride == (1, 1)
    assert backbone.preprocessing.space == "lightness" == backbone.preprocessing.record()["space"]
    assert "caffe2_resnet:colorization" in backbone.preprocessing.origin
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    wanted = cv2.cvtColor(np.ascontiguousarray(pixels[:, :, ::-1]), cv2.COLOR_BGR2LAB)[:, :, 0] * (100 / 255) - 50
    seen = normalise(torch.from_numpy(pixels).permute(2, 0, 1)[None], backbone.preprocessing)
    np.testing.assert_allclose(seen[0, 0], wanted, atol=0.4)
    assert load_backbone("random", backbone=backbone.name).module.layer4[0].conv2.stride == (1, 1), "the floor's too"


def test_a_vissl_file_of_one_channel_is_a_colorization_network_and_says_what_was_taken(tmp_path):
    _, tensors = tensors_of("vissl", f"{NARROW},in_chans=1")
    torch.save({"model_state_dict": tensors}, tmp_path / "w.torch")
    backbone = load_backbone(str(tmp_path / "w.torch"))
    assert backbone.preprocessing.space == "lightness" and parse(backbone.name).last_stride == 1
    assert "last stage is taken to have stride 1" in backbone.report.line()
    own = load_backbone(str(tmp_path / "w.torch"), backbone=f"{NARROW},in_chans=1,last_stride=2")
    assert parse(own.name).last_stride == 2
    named = load_backbone(str(tmp_path / "w.torch"), backbone=f"{NARROW},in_chans=1")
    assert parse(named.name).last_stride == 1, "what the name does not state is the format's"
    with pytest.raises(UsageError, match="a network for lightness"):
        load_backbone(str(tmp_path / "w.torch"), stem="repeat", backbone=NARROW)


def test_three_channels_are_the_plain_network(tmp_path):
    caffe2_file(tmp_path / "rgb.pkl", NARROW)
    backbone = load_backbone(str(tmp_path / "rgb.pkl"))
    assert backbone.name == NARROW and backbone.preprocessing.space == "RGB"
    assert (backbone.preprocessing.mean, backbone.preprocessing.std) == (IMAGENET_MEAN, IMAGENET_STD)


def test_an_alexnet_for_colorization_has_its_space_in_the_preprocessing(tmp_path):
    caffe2_file(tmp_path / "alex.pkl", "alexnet_colorization", "caffe2_alexnet")
    used = load_backbone(str(tmp_path / "alex.pkl")).preprocessing
    assert (used.space, used.mean, used.std, used.crop) == ("lightness", (0.5,), (0.01,), (227, 227))


@pytest.fixture
def detectron2(tmp_path):
    """A file that Detectron2 wrote itself, and the same with the mark of converted weights."""
    _, tensors = tensors_of("detectron2", NARROW)
    torch.save({"model": tensors, "iteration": 7}, tmp_path / "model_final.pth")
    torch.save({"model": tensors, "matching_heuristics": True}, tmp_path / "converted.pth")
    return tmp_path


def test_what_detectron2_wrote_must_be_chosen(detectron2):
    path = str(detectron2 / "model_final.pth")
    with pytest.raises(WeightsError) as error:
        load_backbone(path)
    for text in ("detectron2:rgb (RGB, strides in the 3x3", "detectron2:msra (BGR", "--format detectron2:rgb"):
        assert text in str(error.value)
    converted = load_backbone(str(detectron2 / "converted.pth"))
    assert converted.name == NARROW and converted.preprocessing.std == IMAGENET_STD
    assert load_backbone(path, as_stored=True).name == NARROW, "a detector's recipe says it"


def test_msras_network_is_built_as_it_was_trained(detectron2):
    path = str(detectron2 / "model_final.pth")
    rgb, msra = (load_backbone(path, format=f"detectron2:{variant}") for variant in ("rgb", "msra"))
    block = msra.module.layer2[0]
    assert msra.name == f"{NARROW},stride_in_1x1=true" and (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    assert torch.equal(msra.module.conv1.weight, rgb.module.conv1.weight.flip(1)), "BGR in the file, RGB here"
    pixels = torch.tensor([10, 120, 250], dtype=torch.uint8).view(1, 3, 1, 1)
    seen = normalise(pixels, msra.preprocessing).flatten()
    np.testing.assert_allclose(seen, np.array([10, 120, 250]) - [123.675, 116.28, 103.53], atol=1e-3)
    with pytest.raises(Exception, match="which timm:resnet50 does not have"):
        _with_timm(detectron2)


def _with_timm(folder):
    _, tensors = tensors_of("detectron2", "resnet50")
    torch.save({"model": tensors}, folder / "whole.pth")
    load_backbone(str(folder / "whole.pth"), backbone="timm:resnet50", format="detectron2:msra")


def test_msras_file_of_detectron2s_zoo_is_loaded_once_it_is_chosen(tmp_path):
    module, tensors = tensors_of("detectron2_caffe2", NARROW, "msra")
    arrays = {key: tensor.numpy() for key, tensor in tensors.items()} | {"conv1_b": np.ones(8, np.float32)}
    (tmp_path / "R-50.pkl").write_bytes(pickle.dumps(arrays))
    with pytest.raises(WeightsError, match=r"detectron2_caffe2:msra \(BGR .* detectron2_caffe2:fair"):
        load_backbone(str(tmp_path / "R-50.pkl"))
    backbone = load_backbone(str(tmp_path / "R-50.pkl"), format="detectron2_caffe2:msra")
    assert backbone.name == f"{NARROW},stride_in_1x1=true"
    np.testing.assert_allclose(backbone.preprocessing.std, 1 / 255)
    for name, value in module.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(backbone.module.state_dict()[name], value), name


def test_batch_norm_that_was_folded_into_scale_and_bias_is_refused(tmp_path):
    """Detectron's own Caffe2 files have neither running means nor variances."""
    _, tensors = tensors_of("caffe2_resnet", NARROW)
    arrays = {key: tensor.numpy() for key, tensor in tensors.items() if not key.endswith(("_rm", "_riv"))}
    (tmp_path / "R-50.pkl").write_bytes(pickle.dumps(arrays | {"conv1_b": np.ones(8, np.float32)}))
    with pytest.raises(WeightsError, match=r"folded into a scale and a bias.*Detectron2's model zoo"):
        load_backbone(str(tmp_path / "R-50.pkl"))


def test_a_file_that_could_not_tell_is_not_written(detectron2, tmp_path):
    path, out = detectron2 / "model_final.pth", tmp_path / "out.pth"
    with pytest.raises(WeightsError, match="do not show which"):
        convert(path, out, to="torchvision")
    with pytest.raises(WeightsError, match="would be taken for another network"):
        convert(path, out, to="torchvision", format="detectron2:msra")
    with pytest.raises(UsageError, match="a file of format detectron2 cannot record this variant"):
        convert(path, out, to="detectron2:msra", format="detectron2:msra")
    assert not out.exists()
    file = files.read(path)
    loaded = load_file(file, format="detectron2:msra")
    found = recognise(file, format="detectron2:msra")
    rewrite(file, found, out, to="sslbench", backbone=loaded.name, preprocessing=loaded.preprocessing)
    again = load_backbone(str(out))
    assert again.name == loaded.name and again.preprocessing == loaded.preprocessing
    assert again.weights_sha256 == loaded.weights_sha256


def test_a_colorization_network_stays_one_between_formats_that_can_tell(tmp_path):
    caffe2_file(tmp_path / "color.pkl", f"{NARROW},in_chans=1")
    convert(tmp_path / "color.pkl", tmp_path / "vissl.torch", to="vissl")
    assert load_backbone(str(tmp_path / "vissl.torch")).preprocessing.space == "lightness"
    with pytest.raises(WeightsError, match="caffe2_resnet:colorization, and files of format moco cannot tell"):
        convert(tmp_path / "color.pkl", tmp_path / "moco.pth", to="moco")


def test_the_mean_and_std_of_swav_are_the_authors_and_are_told_when_a_file_cannot_say_them(tmp_path):
    _, tensors = tensors_of("swav", NARROW)
    torch.save(tensors | {"module.projection_head.0.weight": torch.zeros(2, 2)}, tmp_path / "swav.pth")
    assert load_backbone(str(tmp_path / "swav.pth")).preprocessing.std == (0.228, 0.224, 0.225)
    report = convert(tmp_path / "swav.pth", tmp_path / "tv.pth", to="torchvision")
    assert "--std 0.228,0.224,0.225" in report.note


def test_an_unknown_variant_gets_the_nearest():
    with pytest.raises(UsageError, match="no network or variant 'mrsa'\\nDid you mean 'msra'"):
        load_table("detectron2:mrsa")
