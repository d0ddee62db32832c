"""Classifiers in weights files: written, read back, and refused where they do not fit."""

import dataclasses

import pytest
import torch

from sslbench.backbones.build import build
from sslbench.backbones.classifier import ClassifierHead, ClassifierInfo, classifier_metadata, read_classifier
from sslbench.backbones.load import load_file
from sslbench.errors import BackboneError, WeightsError
from sslbench.weights.reading import files
from sslbench.weights.save import save

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
