"""Segmentation of a folder of images and maps by a frozen backbone: every pixel counts, but those that are ignored."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.backbones.build import build
from sslbench.results.records import read_tree

VIT = "timm:vit_tiny_patch16_224,depth=1,embed_dim=48,num_heads=3,dynamic_img_size=True"
PATCHES = {
    f"{VIT},img_size=32": "blocks.0",
    f"{VIT},img_size=28,patch_size=14": "blocks.0",
    "resnet18w0.125": "res4",
}


@pytest.fixture
def maps(tmp_path, monkeypatch):
    """Images of sizes that no patch divides, of a bright region on dark ground with a border that is ignored."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for part, n in (("training", 8), ("validation", 4)):
        for folder in (f"d/images/{part}", f"d/annotations/{part}"):
            Path(folder).mkdir(parents=True)
        for i in range(n):
            height, width = 41 + i, 53 - i
            region = np.zeros((height, width), np.uint8)
            region[5 : 20 + i, 8 : 30 + i] = 1
            pixels = rng.integers(0, 60, (height, width, 3)) + 180 * region[..., None]
            region[0] = 255
            Image.fromarray(pixels.astype(np.uint8)).save(f"d/images/{part}/{i}.png")
            Image.fromarray(region).save(f"d/annotations/{part}/{i}.png")
    return tmp_path


def segment(sslbench, name, *words, out="results"):
    torch.manual_seed(0)
    torch.save(build(name).module.state_dict(), "w.pth")
    settings = ("steps=8", "warmup_steps=1", "batch_size=4", "lr=[0.01]")
    common = (
        "--weights",
        "w.pth",
        "--backbone",
        name,
        "--workers",
        "0",
        "--device",
        "cpu",
        "--out",
        out,
        "--no-floors",
    )
    code, printed, err = sslbench("eval", "segmentation", *common, *settings, *words)
    assert code == 0, err
    [record] = read_tree(Path(out))
    return record, printed + err


@pytest.mark.parametrize("name", PATCHES)
def test_any_patch_and_any_size_count_every_pixel_but_those_ignored(maps, sslbench, name):
    record, text = segment(sslbench, name, "--layers", PATCHES[name], "--data", "d")
    assert record.headline == "mIoU" and "255" in str(record.protocol.settings) + text
    assert record.data.test.n_used == 4


def test_the_number_of_images_in_a_forward_pass_changes_nothing(maps, sslbench):
    name = "resnet18w0.125"
    found = [
        segment(sslbench, name, "--data", "d", "--batch-size", n, out=n)[0].metrics["mIoU"].value for n in ("1", "64")
    ]
    assert abs(found[0] - found[1]) < 0.1


NETS = """
from torch import nn


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def constant():
    return nn.Sequential(nn.AvgPool2d(4), Times(0.0))


def brightness():
    return nn.Sequential(nn.AvgPool2d(4), Times(1.0))
"""


def test_constant_features_give_the_commonest_class_at_every_pixel_of_the_maps_and_brightness_the_regions(
    maps, sslbench, monkeypatch
):
    monkeypatch.syspath_prepend(str(maps))
    Path("nets_of_dense_probes.py").write_text(NETS)
    words = ("--layers", "1", "--data", "d", "--workers", "0", "--device", "cpu", "--no-floors", "--mean", "0,0,0")
    settings = ("--std", "1,1,1", "steps=60", "warmup_steps=1", "batch_size=4", "lr=[0.05]")
    found = {}
    for net in ("constant", "brightness"):
        own = ("--weights", "random", "--backbone", f"nets_of_dense_probes:{net}", "--out", net)
        code, _, err = sslbench("eval", "segmentation", *own, *words, *settings)
        assert code == 0, err
        [record] = read_tree(Path(net))
        found[net] = record.metrics["mIoU"].value
    pixels = np.concatenate([np.array(Image.open(path)).ravel() for path in Path("d/annotations/validation").iterdir()])
    ground, scored = (pixels == 0).sum(), (pixels != 255).sum()
    assert found["constant"] == pytest.approx(100 * ground / scored / 2)  # the region has no pixel: its IoU is 0
    assert found["brightness"] > found["constant"] + 20


def test_maps_that_are_scored_otherwise_stand_in_a_column_of_their_own(maps, sslbench):
    for size in (32, 48):
        segment(sslbench, "resnet18w0.125", "--data", "d", f"size={size}", out=f"boards/{size}")
    code, board, err = sslbench("leaderboard", "boards", "--csv", "board.csv")
    assert code == 0, err
    head = Path("board.csv").read_text().splitlines()[0]
    assert "size=32" in head and "size=48" in head, head
    assert "not compared" not in board
