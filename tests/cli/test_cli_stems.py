"""Backbones for other numbers of channels, and stems mapped to them, as a user runs it."""

import json

import pytest
import torch

from sslbench.backbones.build import build

SMALL = "resnet18w0.125_cifar"


@pytest.fixture
def weights(world):
    """rgb.pth: a small ResNet for three channels."""
    torch.save(build(SMALL, seed=1).module.state_dict(), "rgb.pth")
    return world


def features(sslbench, *arguments):
    import numpy as np

    sizes = ("--resize", "32", "--crop", "32", "--workers", "0", "--precision", "fp32")
    code, out, err = sslbench("extract", *arguments, "--data", "photos", *sizes)
    assert code == 0, err
    return np.concatenate([np.load(line.split("\t")[-1]) for line in out.splitlines()])


def test_a_grey_backbone_is_evaluated_on_pictures_and_the_record_says_what_was_done_to_its_stem(weights, sslbench):
    run = ("eval", "knn", "k=[1]", "--data", "photos", "--workers", "0", "--no-floors", "--weights", "rgb.pth")
    code, _, err = sslbench(*run, "--stem", "sum")
    assert code == 0, err
    [path] = weights.glob("results/knn/*.json")
    record = json.loads(path.read_text())
    assert record["weights"]["backbone"] == f"{SMALL},in_chans=1"
    assert record["weights"]["changed"] == ["stem conv1.weight from 3 to 1 channels: sum"]
    assert len(record["preprocessing"]["mean"]) == 1 and "averaged for 1 channel" in record["preprocessing"]["origin"]
    assert "from 3 to 1 channels: sum" in err


def test_a_converted_stem_gives_the_features_of_one_that_is_mapped_on_loading(weights, sslbench):
    code, out, err = sslbench("convert", "rgb.pth", "grey.torch", "--to", "sslbench", "--stem", "sum")
    assert code == 0, err
    assert "changed  stem conv1.weight from 3 to 1 channels: sum" in out and "as written" in out
    code, out, _ = sslbench(
        "convert", "rgb.pth", "grey.pth", "--to", "torchvision", "--stem", "average", "--in-chans", 1
    )
    assert code == 0 and torch.load("grey.pth", weights_only=True)["conv1.weight"].shape == (8, 1, 3, 3)
    mapped = features(sslbench, "--weights", "rgb.pth", "--stem", "sum")
    assert (features(sslbench, "--weights", "grey.torch") == mapped).all()
    code, out, _ = sslbench("inspect", "grey.torch")
    assert code == 0 and "CIFAR's stem, 1 input channel" in out and "1 channel, 0 to 1, then mean (0.449)" in out


MISSING = [
    (["eval", "knn", "--weights", "rgb.pth", "--backbone", f"{SMALL},in_chans=13"], "takes 13 channels"),
    (
        ["eval", "knn", "--weights", "rgb.pth", "--backbone", f"{SMALL},in_chans=13", "--stem", "repeat"],
        "has 3 channels",
    ),
    (["extract", "--weights", "random", "--backbone", f"{SMALL},in_chans=4"], "has 3 channels"),
    (["convert", "rgb.pth", "x.pth", "--to", "timm", "--in-chans", "4"], "--in-chans needs --stem"),
    (["convert", "rgb.pth", "x.pth", "--to", "timm", "--stem", "repeat"], "For example --in-chans 4"),
    (["convert", "rgb.pth", "x.pth", "--to", "timm", "--stem", "random"], "adds no new values"),
]


def test_what_is_missing_is_said_before_a_picture_is_decoded(weights, sslbench):
    for arguments, message in MISSING:
        data = ["--data", "photos", "--workers", "0"] if arguments[0] != "convert" else []
        code, _, err = sslbench(*arguments, *data)
        assert code in (1, 2) and message in err, err
        assert not (weights / "x.pth").exists()
