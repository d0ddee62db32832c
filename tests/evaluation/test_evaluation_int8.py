"""Evaluations in int8: the difference from fp32 in the record, the images of the ranges, and refusals."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import sslbench
from sslbench.backbones.int8 import _sums_are_exact
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import RunSettings, rounding
from sslbench.results import Rounding, records

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
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for part, n in (("train", 20), ("val", 12)):
        for c in range(3):
            (folder / part / f"c{c}").mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 160, (16, 16, 3))
                pixels[..., c] += rng.integers(0, 60)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / part / f"c{c}" / f"{i}.png")
    return folder


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


def test_the_record_has_the_difference_from_fp32(net, photos, tmp_path):
    in_int8 = evaluate(net, photos, tmp_path)
    in_fp32 = evaluate(net, photos, tmp_path, "fp32")
    for rounded, exact in zip(in_int8, in_fp32, strict=True):
        assert rounded.precision == "int8" and rounded.id != exact.id and exact.rounding is None
        found = rounded.rounding
        # All images are in the sample, so both scores are those of the whole.
        assert (found.train, found.test, found.metric) == (60, 36, "top1")
        assert found.fp32 == exact.metrics["top1"].value and found.int8 == rounded.metrics["top1"].value
        assert found.low <= found.int8 - found.fp32 <= found.high
        assert records.read(rounded.file).rounding == found
        assert any("int8: top1" in note and "36 test images" in note for note in rounded.notes)
        assert "onnxruntime" in rounded.versions and rounded.calibration and exact.calibration is None
    assert json.loads(in_int8[0].file.read_text())["rounding"]["train"] == 60


def test_the_difference_is_that_with_the_labels_of_the_record(net, photos, tmp_path):
    """The sample has all images, so its scores are those of the records, with and without wrong labels."""
    run = RunSettings(workers=0, device="cpu", overlaps=False, floors=False)
    found = {
        precision: sslbench.evaluate(
            net,
            photos,
            protocols=["knn"],
            out=tmp_path,
            run=dataclasses.replace(run, precision=precision),
            preprocessing=PREPROCESSING,
            noise=[0.4],
        )
        for precision in ("int8", "fp32")
    }
    values = [result.metrics["top1"].value for result in found["int8"]]
    assert values[0] != values[1], "the labels change the score"
    for rounded, exact in zip(found["int8"], found["fp32"], strict=True):
        assert rounded.rounding.int8 == rounded.metrics["top1"].value
        assert rounded.rounding.fp32 == exact.metrics["top1"].value


def test_pixels_are_recorded_in_fp32_as_they_are_computed(photos, tmp_path):
    run = {"precision": "int8", "workers": 0, "device": "cpu", "overlaps": False}
    (in_int8,) = sslbench.evaluate("pixels:4", photos, protocols="knn", out=tmp_path, run=RunSettings(**run))
    (in_fp32,) = sslbench.evaluate("pixels:4", photos, protocols="knn", out=tmp_path / "b", device="cpu", workers=0)
    assert in_int8.precision == "fp32" and in_int8.rounding is None and in_int8.id == in_fp32.id


def test_a_sample_stands_for_many_images(net, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(rounding, "SAMPLE", {"train": 30, "test": 15})
    (result,) = evaluate(net, photos, tmp_path, protocols=("knn",), floors=False)
    assert (result.rounding.train, result.rounding.test) == (30, 15)
    assert result.data.test.n_used == 36


def test_a_protocol_that_fails_on_the_sample_says_so(net, photos, tmp_path, monkeypatch):
    def fails(*_):
        raise DataError("too few images of c0")

    monkeypatch.setattr(rounding, "score", fails)
    (result,) = evaluate(net, photos, tmp_path, protocols=("knn",), floors=False)
    assert result.rounding.int8 is None and "too few images of c0" in result.rounding.problem
    assert any("unknown" in note and "too few" in note for note in result.notes)
    assert result.metrics["top1"].value > 0


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


def test_the_line_of_an_unknown_difference_gives_the_reason():
    line = rounding.rounding_line(Rounding(train=3, test=2, problem="too few"))
    assert line == "int8: difference from fp32 unknown on a sample of 3 train and 2 test images: too few"
