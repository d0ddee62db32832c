"""A published number is measured again by its protocol, with a verdict; what differs from a paper is one list."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sslbench.results.records import read_tree

KNN = ("eval", "knn", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")
PUBLISHED = """benchmark,weights,backbone,metric,value,protocol,source,where
knn/shapes,Tiny,tiny,top1,{value},Tiny kNN,a paper (2026),Table 1
"""


def test_a_published_number_agrees_or_does_not(world, sslbench, monkeypatch):
    mine = world / "mine" / "benchmarks"
    (mine / "published").mkdir(parents=True)
    (mine / "presets" / "knn").mkdir(parents=True)
    (mine / "knn").mkdir()
    settings = "settings: {k: [3]}\n"
    (mine / "presets" / "knn" / "tiny.yaml").write_text(f"title: t\nsource: s\nprotocol: knn\n{settings}")
    (mine / "knn" / "shapes.yaml").write_text("title: t\nversion: 1\nprotocol: knn\nsamples: {train: 36, test: 15}\n")
    (mine / "published" / "_protocols.yaml").write_text("knn/tiny: {protocol: Tiny kNN, tolerance: 0.5}\n")
    monkeypatch.setenv("SSLBENCH_PATH", str(mine.parent))
    assert sslbench(*KNN, "k=3", "--no-floors")[0] == 0
    [record] = read_tree(Path("results"))
    top1 = record.metrics["top1"].value
    ask = ("reproduce", "--published", "knn/shapes/tiny/tiny-tiny", *KNN[2:])
    for value, expected in ((top1 + 0.4, 0), (top1 - 0.6, 1)):
        (mine / "published" / "mine.csv").write_text(PUBLISHED.format(value=value))
        code, out, err = sslbench(*ask)
        assert code == expected, err
        assert ("does NOT agree" in out) == bool(expected) and "a paper (2026)" in out
    shutil.rmtree("photos/test/red")
    (Path("photos/test/red")).mkdir()
    shutil.copy("photos/train/red/0.png", "photos/test/red/0.png")
    code, out, err = sslbench(*ask)
    assert code == 1 and "no verdict" in err and not out


def test_a_preset_is_compared_with_a_record(world, sslbench):
    assert sslbench(*KNN, "k=3", "--no-floors")[0] == 0
    [record] = Path("results").rglob("knn/*.json")
    code, out, _ = sslbench("diff-preset", record, "knn/dino", "--json")
    found = json.loads(out)["differences"]
    assert code == 1 and found["k"] == {"a": [3], "b": [20]}
    assert "preprocessing.crop" in found and "layers" not in found
    code, out, _ = sslbench("diff-preset", record, record)
    assert code == 0 and "do not differ" in out


RESNET20 = """
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, inside, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.more = (out - inside) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.more:  # no weights beside the block: every second pixel, and further channels of zeros
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more, self.more))
        return torch.relu(x + y)


class ResNet(nn.Module):
    preprocessing = {"resize": [32, 32], "crop": None}

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for i, width in enumerate((16, 32, 64), 1):
            first = Block(max(16, width // 2), width, 1 if i == 1 else 2)
            setattr(self, f"layer{i}", nn.Sequential(first, Block(width, width, 1), Block(width, width, 1)))

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.layer3(self.layer2(self.layer1(x))).mean((2, 3))
"""


@pytest.mark.long
@pytest.mark.skipif("SSLBENCH_CIFAR10_RESNET20" not in os.environ, reason="needs CIFAR-10 and a published network")
def test_a_resnet20_of_cifar10_is_as_right_as_its_author_says(tmp_path, monkeypatch, sslbench):
    """pytorch_resnet_cifar10 says 91.73 %.

    SSLBENCH_CIFAR10_RESNET20: its weights and an .npz with x_test (N, 32, 32, 3) and y_test, separated by a comma.
    """
    weights, images = os.environ["SSLBENCH_CIFAR10_RESNET20"].split(",")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("resnet20_of_the_tests.py").write_text(RESNET20)
    with np.load(images) as arrays:
        for i, (x, y) in enumerate(zip(arrays["x_test"], arrays["y_test"], strict=True)):
            path = Path("test", str(y), f"{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x).save(path)
    words = ("--weights", weights, "--backbone", "resnet20_of_the_tests:ResNet", "--data", "test", "--csv", "p.csv")
    code, _, err = sslbench("predict", *words)
    assert code == 0, err
    with Path("p.csv").open() as file:
        right = [row["id"].split("/")[0] == row["class"] for row in csv.DictReader(file)]
    error = 100 * np.sqrt(0.9173 * (1 - 0.9173) / len(right))
    assert 100 * np.mean(right) == pytest.approx(91.73, abs=0.05 + 2 * error * (len(right) < 10_000))
