"""Protocols on images from end to end: weights and data in, records out."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import sslbench
from sslbench import evaluation
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import RunSettings

SETTINGS = {"epochs": 4, "batch_size": 8, "lr": [1.0, 3.0], "flip": 0.0}
RUN = RunSettings(workers=0, batch_size=8)


class Colours(nn.Module):
    """Averages of quarters: a layer to name, and what the network returns."""

    def __init__(self):
        super().__init__()
        self.quarters = nn.AvgPool2d(4)
        self.flat = nn.Flatten()

    def forward(self, x):
        return self.flat(self.quarters(x))


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for split, n in (("train", 12), ("val", 6)):
        for name, colour in (("red", (220, 40, 40)), ("green", (40, 220, 40)), ("blue", (40, 40, 220))):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for i in range(n):
                pixels = (np.array(colour) + rng.integers(-40, 36, (12, 16, 3))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "photos"


def evaluate(photos, settings=SETTINGS, *, protocols=("linear-online",), run=RUN, **more):
    return sslbench.evaluate(
        Colours(),
        photos,
        protocols=list(protocols),
        settings={"linear-online": settings} if "linear-online" in protocols else {},
        out=photos.parent / "results",
        run=run,
        preprocessing={"resize": 8, "crop": [8, 8], "mean": [0.5] * 3, "std": [0.25] * 3},
        **more,
    )


def test_one_record_per_layer_comes_out_of_one_training(photos):
    results = evaluate(photos, layers=("quarters:flatten", "flat"))
    assert [result.layer for result in results] == ["quarters:flatten", "flat"]
    for result in results:
        assert result.protocol.name == "linear-online" and result.metrics["top1"].value == 100
        assert result.selected["lr"] in (1.0, 3.0) and len(result.variants) == 1
        assert result.floors["chance"]["top1"] == pytest.approx(100 / 3)
        assert result.costs.parameters == 0, "the network of this test has none"
        assert result.costs.stages["linear-online"].seconds > 0
        assert result.probabilities == "softmax" and result.metrics["ece"].value < 50
        assert result.missing_floors["untrained"] == "Colours has no trainable parameters"
        assert "linear-online" in result.missing_floors["pixels"]
        assert result.file.is_file() and json.loads(result.file.read_text())["protocol"]["name"] == "linear-online"
    assert len({result.id for result in results}) == 2
    assert not list((photos.parent / "results").rglob("*.checkpoints")), "removed when the records are there"


def test_protocols_on_features_run_beside_it(photos):
    results = evaluate(photos, protocols=("knn", "linear-online"), run=dataclasses.replace(RUN, floors=False))
    assert {result.protocol.name for result in results} == {"knn", "linear-online"}
    assert not any(result.floors for result in results)


def test_the_record_depends_on_what_matters_and_on_nothing_else(photos):
    short = {**SETTINGS, "epochs": 1}

    def record(values=short, **more):
        (result,) = evaluate(photos, values, run=dataclasses.replace(RUN, **more))
        return result.id

    same = record()
    assert record(batch_size=3, workers=1) == same
    for key, value in (("epochs", 5), ("flip", 0.5), ("select_on", "test"), ("lr", [1.0]), ("norm", "affine")):
        assert record({**short, key: value}) != same, key
    assert record(seed=1) != same


def test_the_untrained_backbone_beside_it_when_asked_for(tmp_path, photos):
    request = evaluation.Request(
        weights=str(weights_file(tmp_path)),
        data=str(photos),
        tasks=(evaluation.make_task("linear-online", {**SETTINGS, "epochs": 1, "lr": [1.0]}),),
        preprocessing={"resize": 16, "crop": [16, 16]},
    )
    prepared = evaluation.prepare(request, dataclasses.replace(RUN, baseline=True))
    out = tmp_path / "out"
    (result,) = evaluation.evaluate(prepared, store=tmp_path / "store", out=out, command="test")
    assert set(result.floors) >= {"chance", "majority", "untrained"}
    assert set(result.missing_floors) == {"pixels"}
    assert sorted(path.name.rpartition("-")[0] for path in out.glob("linear-online/*.json")) == [
        "resnet_basic_1-1-1-1w0.125-untrained",
        "w.torch",
    ]
    assert not list(out.rglob("*.checkpoints"))


def weights_file(folder: Path) -> Path:
    from sslbench.backbones.build import build
    from sslbench.weights.save import save

    path = folder / "w.torch"
    backbone = build("resnet_basic_1-1-1-1w0.125", seed=3)
    save(path, backbone.module.state_dict(), backbone=backbone.name, metadata={})
    return path


def test_unreadable_images_stop_it_or_are_left_out_and_counted(photos):
    (photos / "train" / "red" / "3.png").write_bytes(b"no picture")
    (photos / "val" / "blue" / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="1 of 36 images"):
        evaluate(photos)
    (result,) = evaluate(photos, run=dataclasses.replace(RUN, on_error="skip"))
    assert (result.data.train.n, result.data.train.n_used) == (36, 35)
    assert (result.data.test.n, result.data.test.n_used) == (18, 17)
    assert [Path(row.path).name for row in result.data.unreadable] == ["3.png", "1.png"]


def test_features_made_elsewhere_are_refused(tmp_path):
    from sslbench.features.external import read_train_test

    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    (tmp_path / "y.csv").write_text("label\n" + "\n".join(["a", "b"] * 10) + "\n")
    pair = read_train_test(
        tmp_path / "x.npy", tmp_path / "y.csv", None, None, label_column=None, test_fraction=0.5, seed=0
    )
    task = evaluation.make_task("linear-online", {})
    with pytest.raises(UsageError, match="takes images and cannot run on features"):
        evaluation.evaluate_features(pair, [task], RUN, out=tmp_path / "out", command="test")


def test_what_cannot_work_is_said_before_any_image_is_decoded(photos, monkeypatch):
    from sslbench.data.loading import loader

    monkeypatch.setattr(loader, "read", lambda *_: pytest.fail("an image was decoded"))
    with pytest.raises(UsageError, match="has no modules blocks"):
        evaluate(photos, {**SETTINGS, "blocks": [4]})


def test_the_global_random_state_stays_as_it_was(photos):
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    evaluate(photos)
    assert torch.equal(torch.rand(3), wanted)
