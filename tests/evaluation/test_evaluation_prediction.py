"""Predictions: the classes and probabilities that the network itself gives, one row per image."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import sslbench
from sslbench.backbones.build import build
from sslbench.backbones.classifier import ClassifierHead, ClassifierInfo, classifier_metadata
from sslbench.errors import DataError, UsageError, WeightsError
from sslbench.evaluation import RunSettings
from sslbench.weights import save

NAME, D, CLASSES = "resnet18w0.25", 128, ("cat", "=dog", "crane")
RUN = RunSettings(device="cpu", workers=0, batch_size=3)
SIZE = {"resize": (32, 32), "crop": None}


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(7):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3)).astype(np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    return tmp_path / "photos"


def finetuned(path, labels="single", norm="layer"):
    torch.manual_seed(0)
    module, head = build(NAME).module, ClassifierHead(D, 3, norm)
    info = classifier_metadata(ClassifierInfo("res5avg", norm, labels, CLASSES))
    save.save(path, module.state_dict(), backbone=NAME, metadata={"classifier": info}, heads=head.state_dict())
    return str(path), nn.Sequential(module, head).eval()


def supervised(path):
    torch.manual_seed(0)
    module, head = build(NAME).module, nn.Linear(D, 3)
    torch.save({**module.state_dict(), "fc.weight": head.weight, "fc.bias": head.bias}, path)
    return str(path), nn.Sequential(module, head).eval()


def scores(network, photos):
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    files = sorted(photos.glob("[0-9].png"))
    images = [torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) / 255 for file in files]
    with torch.inference_mode():
        return network((torch.stack(images) - mean) / std)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("make", [finetuned, supervised])
def test_classes_and_probabilities_are_those_of_the_network(tmp_path, photos, make):
    path, network = make(tmp_path / "w.torch")
    counts = sslbench.predict(path, photos, tmp_path / "out.csv", top_k=2, run=RUN, preprocessing=SIZE)
    wanted = scores(network, photos).softmax(1)
    names = ["cat", "'=dog", "crane"] if make is finetuned else ["0", "1", "2"]
    rows = rows_of(tmp_path / "out.csv")
    assert (counts.predicted, counts.unreadable) == (7, 0) and [row["id"] for row in rows] == [
        f"{i}.png" for i in range(7)
    ]
    for row, probabilities in zip(rows, wanted, strict=True):
        best = probabilities.argsort(descending=True).tolist()
        assert [row["class_1"], row["class_2"]] == [names[i] for i in best[:2]] and row["error"] == ""
        found = [float(row["probability_1"]), float(row["probability_2"])]
        np.testing.assert_allclose(found, probabilities[best[:2]], rtol=1e-4)


def test_multi_label_has_a_column_per_class_and_those_above_the_threshold(tmp_path, photos):
    path, network = finetuned(tmp_path / "w.torch", labels="multi", norm="none")
    wanted = scores(network, photos).sigmoid().numpy()
    threshold = float(np.sort(wanted.ravel())[[10, 11]].mean())
    sslbench.predict(path, photos, tmp_path / "out.csv", threshold=threshold, run=RUN, preprocessing=SIZE)
    rows = rows_of(tmp_path / "out.csv")
    np.testing.assert_allclose([[float(row[n]) for n in ("cat", "'=dog", "crane")] for row in rows], wanted, rtol=1e-4)
    for row, probabilities in zip(rows, wanted, strict=True):
        chosen = "; ".join(name for name, p in zip(CLASSES, probabilities, strict=True) if p >= threshold)
        assert row["classes"].removeprefix("'") == chosen


def test_numbers_are_written_as_they_are(tmp_path, photos):
    path, network = finetuned(tmp_path / "w.torch", labels="value", norm="none")
    sslbench.predict(path, photos, tmp_path / "out.csv", run=RUN, preprocessing=SIZE)
    found = [[float(row[n]) for n in ("cat", "'=dog", "crane")] for row in rows_of(tmp_path / "out.csv")]
    np.testing.assert_allclose(found, scores(network, photos), rtol=1e-3, atol=1e-5)


def test_unreadable_images_get_a_row_with_the_reason(tmp_path, photos):
    (photos / "4b.png").write_bytes(b"\x89PNG but no image")
    path, _ = supervised(tmp_path / "w.pth")
    counts = sslbench.predict(path, photos, tmp_path / "out.csv", run=RUN, preprocessing=SIZE)
    (row,) = [row for row in rows_of(tmp_path / "out.csv") if row["error"]]
    assert (counts.predicted, counts.unreadable) == (7, 1) and row["id"] == "4b.png" and row["class"] == ""
    for file in photos.glob("[0-9].png"):
        file.unlink()
    with pytest.raises(DataError, match="none of the 1 images"):
        sslbench.predict(path, photos, tmp_path / "none.csv", run=RUN, preprocessing=SIZE)
    assert not (tmp_path / "none.csv").exists() and not list(tmp_path.glob(".*part*"))


def test_a_projection_head_is_no_classifier_until_its_classes_are_named(tmp_path, photos):
    module = build(NAME).module
    tensors = {"head.0.weight": torch.randn(3, D)}
    path = save.save(
        tmp_path / "w.torch", module.state_dict(), backbone=NAME, metadata={"heads": {"head": "linear"}}, heads=tensors
    )
    with pytest.raises(WeightsError, match="3 outputs may be a projection head"):
        sslbench.predict(path, photos, tmp_path / "out.csv", run=RUN)
    with pytest.raises(UsageError, match=r"2 names of classes, but the classifier of .* has 3 outputs"):
        sslbench.predict(path, photos, tmp_path / "out.csv", run=RUN, classes=["a", "b"])
    sslbench.predict(path, photos, tmp_path / "out.csv", run=RUN, classes=["a", "b", "c"], limit=1, preprocessing=SIZE)
    assert rows_of(tmp_path / "out.csv")[0]["class"] in "abc"
    bare = save.save(tmp_path / "bare.torch", module.state_dict(), backbone=NAME, metadata={})
    with pytest.raises(WeightsError, match="has no classifier"):
        sslbench.predict(bare, photos, tmp_path / "out.csv", run=RUN)
