"""The transform of a network is shown with its origins, and each part of it changes the features or is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.backbones.build import build

KNN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos", "--workers", "0", "k=3")
PART = {
    "resize": ("--resize", "18"),
    "crop": ("--crop", "12"),
    "interpolation": ("--interpolation", "bicubic"),
    "mean": ("--mean", "0.4,0.4,0.4"),
    "std": ("--std", "0.3,0.3,0.3"),
}


def test_the_plan_shows_every_part_with_its_origin(world, sslbench):
    torch.save(build("timm:vit_tiny_patch16_224").module.state_dict(), "vit.pth")
    code, out, err = sslbench("eval", "knn", "--weights", "vit.pth", "--data", "photos", "--crop", "192", "--dry-run")
    assert code == 0, err
    shown = out[out.index("preprocessing\n") : out.index("layers\n")].splitlines()
    parts = {line.split()[0]: line for line in shown[1:]}
    assert "[asked for]" in parts["crop"] and "192" in parts["crop"]
    for name in ("resize", "interpolation", "mean", "std"):
        assert "[ImageNet default (format timm does not say)]" in parts[name]
    assert "pillow " in parts["pixels"] and "antialiasing" in parts["pixels"] and "0 to 1" in parts["pixels"]


def test_each_part_changes_the_features_and_the_reason_is_told(world, sslbench):
    def features(name, *words):
        words = ("--limit", "4", *words, "-o", f"{name}.npz", "-v")
        code, _, err = sslbench("extract", *KNN[:-1], *words)
        assert code == 0, err
        return np.load(f"{name}.npz")["features"], err

    before, _ = features("before")
    for name, words in PART.items():
        after, err = features(name, *words)
        assert not np.array_equal(before, after), name
        assert "preprocessing changed" in err, name


def test_flags_that_would_change_nothing_are_refused(world, sslbench):
    np.save("x.npy", np.eye(4))
    np.save("y.npy", [0, 1, 0, 1])
    code, out, err = sslbench("eval", "knn", "--features", "x.npy", "--labels", "y.npy", "--crop", "12")
    assert (code, out) == (2, "") and "--crop does not go with --features" in err


@pytest.mark.parametrize("largest", [255, 4000])
def test_numbers_of_16_bits_that_8_would_lose_stop_the_run(world, sslbench, largest):
    rng = np.random.default_rng(0)
    for path in Path("photos").rglob("*.png"):
        Image.fromarray(rng.integers(0, largest, (20, 18)).astype(np.uint16)).save(path)
    code, out, err = sslbench("eval", "knn", *KNN, "--no-overlaps")
    assert (code, out) == (1, "") and "samples of 16 bits below 4,096" in err


def test_what_was_preprocessed_differently_is_named_wherever_it_is_compared(world, sslbench):
    for name, words in (("a", ()), ("b", PART["crop"])):
        assert sslbench("eval", "knn", *KNN, "--no-floors", "--name", name, *words)[0] == 0
    files = [next(Path("results/knn").glob(f"{name}-*.json")) for name in "ab"]
    _, out, err = sslbench("compare", *files)
    assert "preprocessed differently" in out + err and "crop" in out + err
    _, out, err = sslbench("leaderboard", "results")
    assert "preprocessed differently" in out + err
