"""Anybody's checkpoint is opened without a prefix or a format, and given back under other names with equal features."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sslbench.backbones.build import build

NETWORKS = {
    "resnet50w0.125": ("32", "resnet50w0.125"),
    "timm:vit_tiny_patch16_224": ("224", "timm:vit_tiny_patch16_224"),
}
# One of each kind: other colours, other names, joined or split tensors, our own. All formats are in
# tests/weights/test_weights_formats.py and test_weights_convert.py, which compare the tensors.
LAYOUTS = {
    "resnet50w0.125": ("detectron2", "huggingface_resnet", "sslbench"),
    "timm:vit_tiny_patch16_224": ("torchvision_vit", "huggingface_vit"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A state dict of each network whose statistics and scales are no constants."""
    folder = tmp_path_factory.mktemp("networks")
    torch.manual_seed(0)
    for i, name in enumerate(NETWORKS):
        module = build(name).module
        for own in module.modules():
            if isinstance(own, torch.nn.BatchNorm2d):
                own.running_mean.normal_()
                own.running_var.uniform_(0.5, 2)
                torch.nn.init.uniform_(own.weight, 0.5, 1.5)
        torch.save(module.state_dict(), folder / f"{i}.pth")
    return {name: folder / f"{i}.pth" for i, name in enumerate(NETWORKS)}


@pytest.fixture
def features(world, sslbench):
    """The features that `extract -o` writes of a weights file, seen with the same transform."""

    def run(path, size, out):
        look = ("--resize", size, "--crop", size, "--interpolation", "bilinear")
        numbers = ("--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25", "--limit", "3", "--workers", "0")
        code, _, err = sslbench("extract", "--weights", path, "--data", "photos", *look, *numbers, "-o", out)
        assert code == 0, err
        return np.load(out)["features"]

    return run


def tensors_of(file):
    """The tensors that a network computes with."""
    return {name: tensor for name, tensor in load_file(file).items() if not name.endswith("num_batches_tracked")}


@pytest.mark.parametrize("name", NETWORKS)
def test_there_and_back_the_features_are_equal(files, features, sslbench, name):
    size, shown = NETWORKS[name]
    expected = features(files[name], size, "source.npz")
    assert expected.std() > 0
    assert sslbench("convert", files[name], "timm.safetensors", "--to", "timm")[0] == 0
    tensors = tensors_of("timm.safetensors")
    for layout in LAYOUTS[name]:
        code, _, err = sslbench("convert", files[name], f"{layout}.pth", "--to", layout)
        assert code == 0, err
        np.testing.assert_allclose(features(f"{layout}.pth", size, f"{layout}.npz"), expected, atol=1e-6)
        code, page, err = sslbench("inspect", f"{layout}.pth")
        assert code == 0 and shown in page, err
        code, _, err = sslbench("convert", f"{layout}.pth", f"{layout}.back.safetensors", "--to", "timm")
        assert code == 0, err
        # The features of this file are those of the layout timm.
        back = tensors_of(f"{layout}.back.safetensors")
        assert back.keys() == tensors.keys(), layout
        assert all(torch.equal(back[key], tensor) for key, tensor in tensors.items()), layout


def test_inspect_says_whose_file_it_is_which_network_is_taken_and_what_is_ignored(files, world, sslbench):
    tensors = torch.load(files["timm:vit_tiny_patch16_224"], weights_only=True)
    student = {f"module.backbone.{name}": tensor for name, tensor in tensors.items()}
    teacher = {f"backbone.{name}": tensor for name, tensor in tensors.items()}
    head = {"head.mlp.0.weight": torch.rand(8, 192), "head.mlp.0.bias": torch.rand(8)}
    torch.save({"student": student, "teacher": teacher | head, "epoch": 3}, "dino.pth")
    code, page, err = sslbench("inspect", "dino.pth")
    assert code == 0, err
    assert "vit_tiny_patch16_224" in page and "224" in page and "teacher" in page and "student" in page
    assert "head" in page and "5,5" in page, "5.5 million parameters"


def test_a_file_that_would_run_code_is_refused_with_the_name_and_the_flag(world, sslbench):
    class Payload:
        def __reduce__(self):
            return print, ("run",)

    torch.save({"state_dict": {"conv1.weight": torch.rand(2, 2)}, "args": Payload()}, "unsafe.pth")
    code, out, err = sslbench("eval", "knn", "--weights", "unsafe.pth", "--data", "photos")
    assert (code, out) == (1, ""), "nothing was printed by the file"
    assert "'__builtin__.print'" in err and "--trust-pickle" in err
