"""Exported networks, classifiers in weights files, and networks in 8-bit integers."""

import dataclasses
import json
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

import sslbench
from sslbench.backbones import export, int8
from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import build
from sslbench.backbones.classifier import ClassifierHead, ClassifierInfo, classifier_metadata, read_classifier
from sslbench.backbones.in_memory import from_module
from sslbench.backbones.int8 import _sums_are_exact
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.load import load_file
from sslbench.backbones.speed import prepare
from sslbench.errors import BackboneError, UsageError, WeightsError
from sslbench.evaluation import Request
from sslbench.evaluation.prediction import export_network
from sslbench.preprocessing import Preprocessing
from sslbench.weights.reading import files
from sslbench.weights.save import save

NAME, D = "resnet_basic_1-1-1-1w0.125", 64
VIT = "timm:vit_tiny_patch16_224,img_size=32,depth=2"
SMALL = {"resize": (32, 32), "crop": None}


def images(n=3, side=32):
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(("name", "layer"), [(NAME, "res4:avg"), (VIT, "blocks.0:mean")])
def test_a_program_of_torch_export_gives_the_layer_for_any_number_of_images(tmp_path, name, layer):
    backbone = build(name)
    (tapped,) = resolve_layers(backbone, (layer,))
    report = export.export(backbone, tapped, tmp_path / "net.pt2")
    facts = {"sslbench.json": ""}
    program = torch.export.load(report.path, extra_files=facts).module()
    height = report.shape[1]
    for n in (1, 4, 7):
        wanted = forward_layers(backbone.module, images(n, height), (tapped,))[tapped.text]
        torch.testing.assert_close(program(images(n, height)), wanted)
    assert not any("part" in name for name in zipfile.ZipFile(report.path).namelist())  # of the temporary file
    assert report.difference < 1e-5 and report.output == "features" and report.width == wanted.shape[1]
    assert json.loads(facts["sslbench.json"])["layer"] == tapped.text


def test_a_file_with_a_classifier_is_exported_with_it(tmp_path, monkeypatch):
    torch.manual_seed(0)
    module, head = build(NAME).module, ClassifierHead(D, 3, "layer")
    info = classifier_metadata(ClassifierInfo("res5avg", "layer", "single", ("a", "b", "c")))
    path = tmp_path / "w.torch"
    save(path, module.state_dict(), backbone=NAME, metadata={"classifier": info}, heads=head.state_dict())
    report = sslbench.export(path, tmp_path / "net.pt2", preprocessing=SMALL)
    program = torch.export.load(report.path).module()
    torch.testing.assert_close(program(images()), nn.Sequential(module, head).eval()(images()))
    assert (report.output, report.shape, report.width) == ("scores", (3, 32, 32), 3)
    monkeypatch.setattr(export, "_write_pt2", lambda network, _, path, *__: path.touch() or network)
    features = sslbench.export(path, tmp_path / "f.pt2", layer="res5avg", preprocessing=SMALL)
    assert (features.output, features.width) == ("features", D)


def test_onnx_gives_the_same_in_onnxruntime(tmp_path):
    for module in ("onnx", "onnxscript"):
        pytest.importorskip(module)
    runtime = pytest.importorskip("onnxruntime")
    backbone = build(NAME)
    (layer,) = resolve_layers(backbone, ("res5avg",))
    export.export(backbone, layer, tmp_path / "net.onnx")
    session = runtime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["features"], {"images": images(4, 224).numpy()})
    torch.testing.assert_close(torch.from_numpy(found), backbone.module(images(4, 224)), rtol=1e-3, atol=1e-4)
    (shown,) = session.get_inputs()
    assert shown.shape[0] == "batch" and session.get_modelmeta().custom_metadata_map["layer"] == "res5avg"


def test_without_its_packages_onnx_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(UsageError, match="need the packages onnx") as caught:
        sslbench.export("random", tmp_path / "net.onnx", backbone=NAME)
    assert "sslbench[onnx]" in caught.value.remedy


class Undecided(nn.Module):
    """A network whose way depends on the values of its images."""

    def forward(self, x):
        return (x if x.sum() > 0 else -x).mean((2, 3))


def test_a_network_that_cannot_be_traced_is_one_message_and_no_file(tmp_path):
    backbone = from_module("undecided", Undecided().eval(), Preprocessing((8, 8), None))
    with pytest.raises(BackboneError, match="undecided cannot be exported"):
        export.export(backbone, resolve_layers(backbone, ("output",))[0], tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir())


def test_outputs_that_differ_are_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_write_pt2", lambda network, *_: lambda x: network(x) * 1.01)
    with pytest.raises(BackboneError, match=r"differ by 1\.0e-02"):
        sslbench.export("random", tmp_path / "net.pt2", backbone=NAME, preprocessing=SMALL)
    assert not list(tmp_path.iterdir())


def test_existing_files_and_other_suffixes_are_refused(tmp_path):
    (tmp_path / "net.pt2").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        sslbench.export("random", tmp_path / "net.pt2", backbone=NAME)
    with pytest.raises(UsageError, match=r"end in \.onnx or \.pt2"):
        sslbench.export("random", tmp_path / "net.tflite", backbone=NAME)
    layers = Request(weights="random", backbone=NAME, data="", tasks=(), layers=("res4", "res5"))
    with pytest.raises(UsageError, match="one output"):
        export_network(layers, tmp_path / "layers.pt2")


INFO = ClassifierInfo("res4:gem", "layer", "single", ("cat", "dog", "owl"))


def written(path, info=INFO, *, norm=None, outputs=3, entry=None):
    backbone = build("resnet18w0.25", seed=1)
    torch.manual_seed(0)
    head = ClassifierHead(64, outputs, norm or info.norm)
    metadata = {"classifier": classifier_metadata(info) if entry is None else entry}
    save(path, backbone.module.state_dict(), backbone=backbone.name, metadata=metadata, heads=head.state_dict())
    return backbone, head.eval()


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_a_classifier_comes_back_as_it_was_written(tmp_path, norm):
    info = dataclasses.replace(INFO, norm=norm)
    backbone, head = written(tmp_path / "w.torch", info)
    file = files.read(tmp_path / "w.torch")
    loaded = load_file(file)
    assert "heads.*" in loaded.report.ignored
    found = read_classifier(file, loaded)
    assert found.info == info
    images = torch.randn(2, 3, 64, 64)
    features = {}
    hook = backbone.module.layer3.register_forward_hook(lambda *values: features.update(map=values[2]))
    with torch.no_grad():
        backbone.module(images)
        wanted = head(features["map"].clamp(min=1e-6).pow(3).mean((2, 3)).pow(1 / 3))
        assert torch.allclose(found.scores(loaded.module, images), wanted, atol=1e-5)
    hook.remove()


def test_a_file_without_a_classifier_has_none(tmp_path):
    backbone = build("resnet18w0.25")
    save(tmp_path / "w.torch", backbone.module.state_dict(), backbone=backbone.name, metadata={})
    file = files.read(tmp_path / "w.torch")
    assert "heads" not in file.content
    assert read_classifier(file, load_file(file)) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": 4}, "names 3 classes, but the head has 4"),
        ({"norm": "none"}, "missing: 'norm.weight'"),
        ({"entry": '{"layer": "res5avg"}'}, "the key 'norm' is missing"),
        ({"entry": classifier_metadata(INFO).replace('"owl"', "3")}, "classes: should be text, not 3"),
        ({"entry": classifier_metadata(INFO).replace("res4", "res9")}, "has no layer 'res9'"),
        ({"entry": "res4"}, "should be JSON"),
        ({"entry": "[1, 2]"}, "should be JSON"),
    ],
)
def test_a_classifier_that_does_not_fit_is_one_message(tmp_path, change, message):
    written(tmp_path / "w.torch", **change)
    file = files.read(tmp_path / "w.torch")
    with pytest.raises((BackboneError, WeightsError), match=message):
        read_classifier(file, load_file(file))


CPU = torch.device("cpu")
NARROW = "resnet_basic_1-1-1-1w0.25"
IMAGES = torch.rand(24, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1
needs_exact_sums = pytest.mark.skipif(not _sums_are_exact(), reason="sums of 8-bit products overflow on this processor")


def users(module):
    module.eval().requires_grad_(False)
    return Backbone("mine:net", Kind(users=True), module, Preprocessing(None, (32, 32)), {}, "output")


def encoders(backbone, layers=()):
    """The encoder in int8, and the one in fp32."""
    backbone = dataclasses.replace(backbone, calibration=IMAGES)
    chosen = resolve_layers(backbone, layers)
    return [prepare(backbone, chosen, device=CPU, precision=precision) for precision in ("int8", "fp32")]


def rounded_by_hand(x, low, high):
    """Numbers of 0 to 255 that stand for x, their unit, and the number that stands for 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    unit = np.float32((high - low) / 255)
    zero = np.rint(-low / unit)
    return np.clip(np.rint(x / unit) + zero, 0, 255), unit, zero


@needs_exact_sums
def test_a_linear_layer_is_the_sum_of_integers():
    torch.manual_seed(0)
    layer = nn.Linear(3 * 32 * 32, 5)
    (int8_encoder, _) = encoders(users(nn.Sequential(nn.Flatten(), layer)))
    found = int8_encoder(IMAGES)["output"].numpy()
    x = IMAGES.flatten(1).numpy().astype(np.float64)
    numbers, unit, zero = rounded_by_hand(x, x.min(), x.max())
    weight = layer.weight.numpy().astype(np.float64)
    units = np.abs(weight).max(axis=1, keepdims=True) / 127  # a unit per output
    rounded = np.clip(np.rint(weight / units), -127, 127)
    wanted = (numbers - zero) @ rounded.T * unit * units.T + layer.bias.numpy()
    exact = x @ weight.T + layer.bias.numpy()
    # What comes out is rounded as well, within its range on the images of the calibration, which are these.
    outputs, unit, zero = rounded_by_hand(wanted, exact.min(), exact.max())
    steps = np.rint((found - (outputs - zero) * unit) / unit)
    # A sum that lies between two integers may be rounded to either.
    assert np.abs(steps).max() <= 1 and (steps == 0).mean() > 0.9
    assert np.abs(found - (outputs - zero + steps) * unit).max() < 1e-3 * unit


@needs_exact_sums
@pytest.mark.parametrize("name", [NARROW, VIT])
def test_features_are_near_those_of_fp32_and_independent_of_the_batch(name):
    torch.manual_seed(0)
    int8_encoder, fp32 = encoders(build(name))
    found, wanted = (encode(IMAGES) for encode in (int8_encoder, fp32))
    for text, exact in wanted.items():
        assert found[text].shape == exact.shape and found[text].dtype == torch.float32
        assert nn.functional.cosine_similarity(found[text], exact).min() > 0.98
        assert not torch.equal(found[text], exact), "it is rounded"
    one_by_one = torch.cat([next(iter(int8_encoder(image[None]).values())) for image in IMAGES])
    assert torch.equal(one_by_one, next(iter(found.values())))


@needs_exact_sums
def test_several_layers_pools_and_mirrored_images_come_from_one_network():
    torch.manual_seed(0)
    layers = ("res3:avg", "res4:gem(3)", "res5avg")
    int8_encoder, fp32 = encoders(build(NARROW), layers)
    assert list(int8_encoder(IMAGES)) == list(fp32(IMAGES)) == list(layers)
    for found, exact in zip(int8_encoder(IMAGES).values(), fp32(IMAGES).values(), strict=True):
        assert found.shape == exact.shape and nn.functional.cosine_similarity(found, exact).min() > 0.98
    copy = int8_encoder.twin()
    assert all(torch.equal(a, b) for a, b in zip(copy(IMAGES).values(), int8_encoder(IMAGES).values(), strict=True))


@needs_exact_sums
def test_other_weights_or_other_images_for_the_ranges_give_another_network():
    torch.manual_seed(0)
    first, second = build(NARROW), build(NARROW)
    second.module.conv1.weight.mul_(torch.linspace(0.5, 2, 16)[:, None, None, None])
    narrow = dataclasses.replace(first, calibration=IMAGES / 10)
    layers = resolve_layers(first, ())
    found = [prepare(narrow, layers, device=CPU, precision="int8")(IMAGES)["res5avg"]]
    found += [encoders(backbone)[0](IMAGES)["res5avg"] for backbone in (first, second)]
    for i, j in ((0, 1), (1, 2)):
        assert not torch.equal(found[i], found[j])


@needs_exact_sums
def test_networks_with_equal_tensors_and_other_names_are_told_apart():
    """An activation is an option of timm's models that no tensor shows."""
    name = "timm:vit_tiny_patch16_224,img_size=32,depth=1"
    found = []
    for option in ("", ",act_layer=relu"):
        torch.manual_seed(0)
        found += encoders(build(name + option))[0](IMAGES).values()
    assert not torch.equal(*found)


class Uneven(nn.Module):
    def forward(self, images):
        if float(images.sum()) > 0:  # a value that a traced network cannot depend on
            return images.mean((2, 3))
        return images.amax((2, 3))


@needs_exact_sums
def test_a_network_that_cannot_be_traced_is_refused_by_name():
    with pytest.raises(BackboneError, match=r"mine:net cannot be computed in int8: ") as error:
        encoders(users(nn.Sequential(nn.Conv2d(3, 4, 3), Uneven())))
    assert "bf16 or fp32" in str(error.value)
    assert "data-dependent" in str(error.value) and "\x1b" not in str(error.value), "the reason, in plain text"


class Means(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, images):
        return images.mean(3).flatten(1)


@needs_exact_sums
def test_a_network_without_products_is_refused_and_the_libraries_print_nothing(capfd):
    with pytest.raises(BackboneError, match="nothing is rounded"):
        encoders(users(Means()))
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


@needs_exact_sums
def test_without_images_for_the_ranges_the_protocols_are_named():
    backbone = build(NARROW)
    with pytest.raises(UsageError, match="protocols on features and for extract"):
        prepare(backbone, resolve_layers(backbone, ()), device=CPU, precision="int8")


def test_other_devices_and_processors_that_overflow_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="int8 computes on a processor, not on cuda"):
        int8.check_int8(torch.device("cuda"))
    monkeypatch.setattr(int8, "_sums_are_exact", lambda: False)
    with pytest.raises(UsageError, match="without overflow"):
        int8.check_int8(CPU)
