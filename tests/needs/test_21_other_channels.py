"""Images of one, two, four and thirteen channels and of 8 and 16 bits keep their values; what the stem does is told.

Files of floating point numbers are refused, since their range is unknown: a decoder of the user's own gives them one.
"""

from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from sslbench.backbones.build import build
from sslbench.results.records import read_tree

LOOK = ("--resize", "32x32", "--crop", "none", "--workers", "0", "--no-floors", "--no-overlaps", "k=3")


@pytest.fixture
def bands(tmp_path, monkeypatch):
    """Writes images of two classes that differ by less than a step of 8 bits."""
    monkeypatch.chdir(tmp_path)

    def write(channels, dtype, suffix, darker=0):
        rng = np.random.default_rng(0)
        low, high = {"uint8": (100, 160), "uint16": (30_000 - darker, 30_100 - darker)}[dtype]
        mean, std = {"uint8": ("0.51", "0.1"), "uint16": (f"{0.4586 - darker / 65_535:.4f}", "0.0005")}[dtype]
        for part in ("train", "test"):
            for value in (low, high):
                folder = Path("bands", part, str(value))
                folder.mkdir(parents=True)
                for i in range(6):
                    pixels = (value + rng.integers(0, 9, (32, 32, channels))).astype(dtype)
                    if suffix == "npy":
                        np.save(folder / f"{i}.npy", pixels)
                    elif suffix == "tif":
                        tifffile.imwrite(folder / f"{i}.tif", pixels if channels > 1 else pixels[..., 0])
                    else:
                        Image.fromarray(pixels[..., 0]).save(folder / f"{i}.{suffix}")
        return ("--data", "bands", "--mean", ",".join([mean] * channels), "--std", ",".join([std] * channels))

    return write


@pytest.mark.parametrize(
    ("channels", "dtype", "suffix"),
    [
        *((1, "uint16", "npy"), (2, "uint8", "npy"), (4, "uint16", "npy"), (13, "uint8", "npy")),
        *((1, "uint8", "tif"), (1, "uint16", "tif"), (2, "uint16", "tif"), (4, "uint8", "tif"), (13, "uint16", "tif")),
        *((1, "uint16", "png"), (1, "uint16", "pgm")),
    ],
)
def test_bands_are_scored_with_weights_of_as_many_channels(bands, sslbench, channels, dtype, suffix):
    name = f"resnet18w0.125,in_chans={channels}"
    torch.save(build(name).module.state_dict(), "w.pth")
    code, _, err = sslbench("eval", "knn", "--weights", "w.pth", *bands(channels, dtype, suffix), *LOOK)
    assert code == 0, err
    assert name in err, "recognised by the stem"
    assert "16 bit to 8 bit" not in err and "grey to RGB" not in err
    [record] = read_tree(Path("results"))
    assert record.metrics["top1"].value == 100


@pytest.mark.parametrize(("suffix", "darker"), [("tif", 0), ("png", 0), ("png", 29_000), ("npy", 0)])
def test_the_floor_of_pixels_has_the_16_bits_of_a_network_of_one_channel(bands, sslbench, suffix, darker):
    torch.save(build("resnet18w0.125,in_chans=1").module.state_dict(), "w.pth")
    look = [word for word in LOOK if word != "--no-floors"]
    code, _, err = sslbench("eval", "knn", "--weights", "w.pth", *bands(1, "uint16", suffix, darker), *look)
    assert code == 0, err
    [record] = [one for one in read_tree(Path("results")) if not one.is_floor]
    assert record.floors["pixels"]["top1"] == 100


def test_networks_of_one_and_three_channels_share_the_pixels_of_8_bits(bands, sslbench):
    bands(1, "uint8", "tif")
    look = [word for word in LOOK if word != "--no-floors"]
    for name in ("resnet18w0.125", "resnet18w0.125,in_chans=1"):
        torch.save(build(name).module.state_dict(), "w.pth")
        code, _, err = sslbench("eval", "knn", "--weights", "w.pth", "--data", "bands", *look)
        assert code == 0, err
    assert [one.weights.name for one in read_tree(Path("results"))].count("pixels:8") == 1


def test_a_stem_of_other_channels_is_refused_unless_asked_for_and_told(bands, sslbench):
    torch.save(build("resnet18w0.125").module.state_dict(), "rgb.pth")
    words = ("--weights", "rgb.pth", "--backbone", "resnet18w0.125,in_chans=13", *bands(13, "uint8", "npy"), *LOOK)
    code, out, err = sslbench("eval", "knn", *words)
    assert (code, out) == (1, "") and "takes 13 channels" in err and "--stem average" in err
    code, _, err = sslbench("eval", "knn", *words, "--stem", "average")
    assert code == 0 and "average" in err, err
    [record] = read_tree(Path("results"))
    assert "average" in str(record.weights)


def test_grey_repeated_to_rgb_and_a_summed_stem_give_the_same_features(bands, sslbench):
    torch.save(build("resnet18w0.125").module.state_dict(), "rgb.pth")
    bands(1, "uint8", "tif")
    common = ("extract", "--weights", "rgb.pth", "--data", "bands", *LOOK[:6])
    code, _, err = sslbench(*common, "--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2", "-o", "rgb.npz")
    assert code == 0, err
    grey = ("--backbone", "resnet18w0.125,in_chans=1", "--stem", "sum", "--mean", "0.5", "--std", "0.2")
    code, _, err = sslbench(*common, *grey, "-o", "grey.npz")
    assert code == 0, err
    np.testing.assert_allclose(np.load("rgb.npz")["features"], np.load("grey.npz")["features"], atol=1e-5)
