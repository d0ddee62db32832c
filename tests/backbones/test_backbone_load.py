"""From a weights file to a backbone: what is recognised, what is refused."""

import textwrap

import pytest
import timm
import torch
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from sslbench.backbones.build import build
from sslbench.backbones.load import load_backbone
from sslbench.errors import BackboneError, UsageError, WeightsError
from sslbench.weights.save import save


def saved(path, content):
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize(
    ("name", "block", "blocks", "options"),
    [
        ("resnet18", BasicBlock, [2, 2, 2, 2], {}),
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
