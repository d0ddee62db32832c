"""Evaluations in int8: the record, the images of the ranges, and refusals."""

import json

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import class_folders
from PIL import Image
from torch import nn

import sslbench
from sslbench.backbones.int8 import _sums_are_exact
from sslbench.errors import UsageError
from sslbench.evaluation import RunSettings
from sslbench.results import records

pytestmark = pytest.mark.skipif(not _sums_are_exact(), reason="sums of 8-bit products overflow on this processor")
PREPROCESSING = {"resize": 16, "crop": [16, 16], "mean": [0.5] * 3, "std": [0.25] * 3}


class Net(nn.Module):
    """Small network with trained-like contrast; module-level, so that it has an identity."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.fc = nn.Linear(16, 8)

    def reset_parameters(self):
        self.conv.reset_parameters()
        self.fc.reset_parameters()

    def forward(self, x):
        return self.fc(self.conv(x).relu().mean((2, 3)))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    rng = np.random.default_rng(0)

    def pixels(c):
        found = rng.integers(0, 160, (16, 16, 3))
        found[..., c] += rng.integers(0, 60)
        return found

    return class_folders(tmp_path_factory.mktemp("photos"), ("c0", "c1", "c2"), pixels, {"train": 20, "val": 12})


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def evaluate(net, photos, out, precision="int8", protocols=("linear", "knn"), **more):
    run = RunSettings(precision=precision, workers=0, device="cpu", overlaps=False, **more)
    given = {"settings": {"linear": {"c": [1.0]}}} if "linear" in protocols else {}
    return sslbench.evaluate(
        net, photos, protocols=list(protocols), out=out, run=run, preprocessing=PREPROCESSING, **given
    )


def test_the_record_tells_precision_and_ranges(net, photos, tmp_path):
    (in_int8,) = evaluate(net, photos, tmp_path, protocols=("knn",))
    (in_fp32,) = evaluate(net, photos, tmp_path, "fp32", protocols=("knn",))
    assert in_int8.precision == "int8" and in_int8.id != in_fp32.id
    assert "onnxruntime" in in_int8.versions and in_int8.calibration and in_fp32.calibration is None
    found = sslbench.compare(in_int8.file, in_fp32.file)
    assert found.low <= found.difference <= found.high


def test_a_record_of_before_with_its_own_comparison_is_read(net, photos, tmp_path):
    (result,) = evaluate(net, photos, tmp_path, protocols=("knn",), floors=False)
    content = json.loads(result.file.read_text())
    result.file.write_text(json.dumps({**content, "rounding": {"train": 60, "test": 36, "problem": "too few"}}))
    assert records.read(result.file).metrics == result.metrics


def test_pixels_are_recorded_in_fp32_as_they_are_computed(photos, tmp_path):
    run = {"precision": "int8", "workers": 0, "device": "cpu", "overlaps": False}
    (in_int8,) = sslbench.evaluate("pixels:4", photos, protocols="knn", out=tmp_path, run=RunSettings(**run))
    (in_fp32,) = sslbench.evaluate("pixels:4", photos, protocols="knn", out=tmp_path / "b", device="cpu", workers=0)
    assert in_int8.precision == "fp32" and in_int8.id == in_fp32.id


def test_the_ranges_come_from_train_only(net, photos, tmp_path):
    """Other pictures in test leave the features of train as they are; other pictures in train do not."""
    other = tmp_path / "photos"
    for path in photos.rglob("*.png"):
        copy = other / path.relative_to(photos)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    white = Image.fromarray(np.full((16, 16, 3), 255, np.uint8))

    def calibration():
        return evaluate(net, other, tmp_path, protocols=("knn",), floors=False)[0].calibration

    before = calibration()
    white.save(other / "val" / "c0" / "0.png")
    assert calibration() == before
    white.save(other / "train" / "c0" / "0.png")
    assert calibration() != before


@pytest.mark.parametrize("protocol", ["finetune", "linear-online"])
def test_protocols_that_train_the_network_refuse_it(net, photos, tmp_path, protocol):
    with pytest.raises(UsageError, match="precision int8 is for protocols on features"):
        evaluate(net, photos, tmp_path, protocols=(protocol,))
    assert not list(tmp_path.rglob("*.json"))


def test_images_of_their_own_sizes_are_refused(net, photos, tmp_path):
    run = RunSettings(precision="int8", workers=0, device="cpu")
    own = {**PREPROCESSING, "resize": 16, "crop": None}
    with pytest.raises(UsageError, match=r"images of one size.*\n?.*crop"):
        sslbench.evaluate(net, photos, protocols=["knn"], out=tmp_path, run=run, preprocessing=own)
