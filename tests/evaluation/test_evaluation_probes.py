"""Probes beside their records: what they predict is what the record holds; other networks and files are refused."""

import csv
import json

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import class_folders

import sslbench
from sslbench import evaluation
from sslbench.backbones.build import build
from sslbench.errors import UsageError, WeightsError
from sslbench.evaluation import RunSettings
from sslbench.results import records
from sslbench.weights import save

RUN = RunSettings(device="cpu", workers=0, batch_size=8, floors=False)
PLACE = {"resize": 20, "crop": [16, 16]}  # not the network's own, which the probe says


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("probes"), np.random.default_rng(0)
    colours = {"rot": (150, 90, 90), "größer": (90, 150, 90), "=blue": (90, 90, 150), "grey": (110, 110, 110)}
    noise = lambda c: list(colours.values())[c] + rng.normal(0, 60, (1, 1, 3)) + rng.normal(0, 30, (20, 20, 3))  # noqa: E731
    photos = class_folders(root / "photos", colours, noise)
    backbone = build("resnet_basic_1-1-1-1w0.125_cifar", seed=3)
    path = save.save(root / "w.torch", backbone.module.state_dict(), backbone=backbone.name, metadata={})
    return root, photos, path


def evaluated(given, protocol, layers=(), **settings):
    root, photos, weights = given
    task = evaluation.make_task(protocol, settings)
    request = evaluation.Request(str(weights), str(photos), (task,), layers=layers, preprocessing=PLACE)
    prepared = evaluation.prepare(request, RUN)
    (result,) = evaluation.evaluate(prepared, store=root / "store", out=root / "results", command="test")
    return result, result.file.parent / result.weights_file


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


ONLINE = {"epochs": 4, "batch_size": 12, "lr": [0.1, 1.0]}


@pytest.mark.parametrize(
    ("protocol", "layers", "settings"),
    [
        ("linear", ("res4",), {"c": [0.01, 1.0]}),
        ("linear", ("res4",), {"c": [1.0], "scale": "none"}),
        ("linear-online", ("res4:avg(2,2)",), {**ONLINE, "norm": "affine"}),
        ("linear-online", ("res4",), {**ONLINE, "head": "attentive", "queries": 2, "norm_eps": 1e-3}),
        (
            "linear-online",
            (),
            {**ONLINE, "head": "block", "depth": 2, "norm": "none", "optimizer": "adamw", "lr": [0.01]},
        ),
    ],
)
def test_predictions_of_a_probe_are_those_of_its_record(given, tmp_path, protocol, layers, settings):
    result, probe = evaluated(given, protocol, layers, **settings)
    assert probe.name == f"{result.file.stem}.probe.torch"
    counts = sslbench.predict(given[2], given[1] / "val", tmp_path / "out.csv", probe=probe, run=RUN)
    assert (counts.predicted, counts.unreadable) == (24, 0)
    rows = {row["id"].removeprefix("'"): row for row in rows_of(tmp_path / "out.csv")}
    right = np.mean([row["class"].removeprefix("'") == name.split("/")[0] for name, row in rows.items()])
    assert 100 * right == pytest.approx(result.metrics["top1"].value, abs=1e-6)
    scores = records.read_scores(result.file)
    shares = torch.from_numpy(scores.scores).softmax(1).max(1).values.numpy()
    found = [float(rows[name.removeprefix("val/")]["probability"]) for name in scores.ids]
    np.testing.assert_allclose(found, shares, rtol=1e-3)


def test_a_probe_is_exported_with_its_backbone(given, tmp_path):
    _, probe = evaluated(given, "linear-online", ("res4",), **ONLINE, head="map")
    report = sslbench.export(given[2], tmp_path / "net.pt2", probe=probe)
    assert (report.output, report.width, report.shape) == ("scores", 4, (3, 16, 16)) and report.difference < 1e-4
    with pytest.raises(UsageError, match="has no effect with probe="):
        sslbench.export(given[2], tmp_path / "other.pt2", probe=probe, layer="res4")


def test_a_probe_predicts_the_classes_that_its_record_could_predict(given, tmp_path):
    root, photos, weights = given
    names = [
        f"{folder}/{file.name}" for folder in ("rot", "grey") for file in sorted((photos / "val" / folder).iterdir())
    ]
    for name in names:
        (tmp_path / "two" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "two" / name).write_bytes((photos / "val" / name).read_bytes())
    task = evaluation.make_task("linear", {"c": [1.0]})
    common = {"layers": ("res4",), "preprocessing": PLACE}
    some = evaluation.Request(
        str(weights), str(photos / "train"), (task,), test_data=str(tmp_path / "two"), test_classes="subset", **common
    )
    # Three labels per image: one that no image of train has, one that all have.
    for part, folder in (("train", "train"), ("test", "val")):
        files = sorted((photos / folder).rglob("*.png"))
        rows = [
            f"{file},{i % 2},{int(part == 'train' or i % 3 > 0)},{int(part == 'test')}" for i, file in enumerate(files)
        ]
        (tmp_path / f"{part}.csv").write_text("image,seen,everywhere,unseen\n" + "\n".join(rows), encoding="utf-8")
    several = evaluation.Request(
        str(weights), str(tmp_path / "train.csv"), (task,), test_data=str(tmp_path / "test.csv"), **common
    )
    for request, learned in ((some, {"rot", "grey"}), (several, {"seen"})):
        prepared = evaluation.prepare(request, RUN)
        (result,) = evaluation.evaluate(prepared, store=root / "store", out=tmp_path / "results", command="test")
        content = torch.load(result.file.parent / result.weights_file, weights_only=True)
        assert set(json.loads(content["metadata"]["classifier"])["classes"]) == learned
        assert len(content["heads"]["head.weight"]) == len(learned)
        if request is some:
            probe = result.file.parent / result.weights_file
            sslbench.predict(weights, tmp_path / "two", tmp_path / "out.csv", probe=probe, run=RUN)
            right = [row["class"] in row["id"].split("/") for row in rows_of(tmp_path / "out.csv")]
            assert 100 * np.mean(right) == pytest.approx(result.metrics["top1"].value, abs=1e-6)


def test_a_mean_over_scales_and_networks_of_equal_tensors_are_refused(given, tmp_path):
    root, photos, weights = given
    task = evaluation.make_task("linear", {"c": [1.0]})
    request = evaluation.Request(
        str(weights), str(photos), (task,), layers=("res4",), preprocessing={**PLACE, "scales": (1.0, 0.5)}
    )
    pixels = evaluation.Request("pixels", str(photos), (task,))
    found = []
    for each in (request, pixels):
        (result,) = evaluation.evaluate(
            evaluation.prepare(each, RUN), store=root / "store", out=tmp_path / "results", command="test"
        )
        found.append(result.file.parent / result.weights_file)
    with pytest.raises(UsageError, match=r"takes images of one size, .* scales 1,0\.5"):
        sslbench.export(weights, tmp_path / "net.pt2", probe=found[0])
    with pytest.raises(WeightsError, match=r"features of pixels:16: it was read as pixels:16"):
        sslbench.predict("pixels:16", photos, tmp_path / "out.csv", probe=found[1], run=RUN)


def test_what_is_no_probe_of_these_weights_is_refused(given, tmp_path):
    _, photos, weights = given
    _, probe = evaluated(given, "linear", ("res4",), c=[1.0])
    other = build("resnet_basic_1-1-1-1w0.125_cifar", seed=4)
    path = save.save(tmp_path / "other.torch", other.module.state_dict(), backbone=other.name, metadata={})
    out = tmp_path / "out.csv"
    with pytest.raises(WeightsError, match=r"(?s)not trained on features of .*other.torch.*belongs to .*w.torch"):
        sslbench.predict(path, photos, out, probe=probe, run=RUN)
    with pytest.raises(WeightsError, match="is no probe"):
        sslbench.predict(weights, photos, out, probe=weights, run=RUN)
    with pytest.raises(UsageError, match="names its classes itself"):
        sslbench.predict(weights, photos, out, probe=probe, classes=["a", "b", "c", "d"], run=RUN)
    with pytest.raises(WeightsError, match=r"(?s)is a probe, without the backbone.*--probe"):
        sslbench.load_backbone(str(probe))
    assert not out.exists()


def test_predictions_never_replace_what_is_read(given, tmp_path):
    _, photos, weights = given
    _, probe = evaluated(given, "linear", ("res4",), c=[1.0])
    table = tmp_path / "photos.csv"
    table.write_text("image\n" + "\n".join(map(str, (photos / "val").rglob("*.png"))), encoding="utf-8")
    before = {path: path.read_bytes() for path in (weights, probe, table)}
    for out in before:
        with pytest.raises(UsageError, match="is read, and the predictions would replace it"):
            sslbench.predict(weights, table.as_uri(), out, probe=probe, run=RUN)
    assert {path: path.read_bytes() for path in before} == before


def test_a_probe_file_that_lies_about_its_head_is_refused_before_memory_is_taken(given, tmp_path):
    _, probe = evaluated(given, "linear-online", ("res4",), **ONLINE, head="attentive")
    content = torch.load(probe, weights_only=True)
    for change, words in [
        ('"queries": 9999', "describes a head of more numbers"),
        ('"queries": 99999999', "attention: should be"),
        ('"heads": 7', "do not divide"),
        ('"kind": "os.system"', "attention: should be"),
    ]:
        name = change.split(":")[0]
        text = content["metadata"]["classifier"]
        start = text.index(name)
        end = min(i for i in (text.find(",", start), text.find("}", start)) if i > 0)
        changed = {**content, "metadata": {**content["metadata"], "classifier": text[:start] + change + text[end:]}}
        torch.save(changed, tmp_path / "lie.torch")
        with pytest.raises(WeightsError, match=words):
            sslbench.predict(given[2], given[1], tmp_path / "out.csv", probe=tmp_path / "lie.torch", run=RUN)
