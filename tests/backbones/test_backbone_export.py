"""Exported networks compute what the network computes, for any number of images."""

import json
import zipfile

import pytest
import torch
from torch import nn

import sslbench
from sslbench.backbones import export
from sslbench.backbones.build import build
from sslbench.backbones.classifier import ClassifierHead, ClassifierInfo, classifier_metadata
from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.errors import BackboneError, UsageError
from sslbench.evaluation import Request
from sslbench.evaluation.prediction import export_network
from sslbench.preprocessing import Preprocessing
from sslbench.weights import save

NAME, D = "resnet_basic_1-1-1-1w0.125", 64
SMALL = {"resize": (32, 32), "crop": None}


def images(n=3, side=32):
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(("name", "layer"), [(NAME, "res4:avg"), ("timm:test_vit", "blocks.2:mean")])
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


def test_a_file_with_a_classifier_is_exported_with_it(tmp_path):
    torch.manual_seed(0)
    module, head = build(NAME).module, ClassifierHead(D, 3, "layer")
    info = classifier_metadata(ClassifierInfo("res5avg", "layer", "single", ("a", "b", "c")))
    path = tmp_path / "w.torch"
    save.save(path, module.state_dict(), backbone=NAME, metadata={"classifier": info}, heads=head.state_dict())
    report = sslbench.export(path, tmp_path / "net.pt2", preprocessing=SMALL)
    program = torch.export.load(report.path).module()
    torch.testing.assert_close(program(images()), nn.Sequential(module, head).eval()(images()))
    assert (report.output, report.shape, report.width) == ("scores", (3, 32, 32), 3)
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
