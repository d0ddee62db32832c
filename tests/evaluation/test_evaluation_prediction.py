"""Predictions of a classifier, the picture of their matrix, and clusters as labels."""

import csv
import io

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import class_folders
from PIL import Image
from torch import nn

import sslbench
from sslbench.backbones.build import build
from sslbench.backbones.classifier import ClassifierHead, ClassifierInfo, classifier_metadata
from sslbench.cli.main import main
from sslbench.errors import DataError, UsageError, WeightsError
from sslbench.evaluation import RunSettings, beside
from sslbench.evaluation.cluster import cluster
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


def blobs(n, seed=0):
    """Return 3 n points near three axes, and the number of the axis of each."""
    rng = np.random.default_rng(seed)
    x = np.repeat(np.eye(3), n, axis=0) + rng.normal(0, 0.05, (3 * n, 3))
    return (x * rng.uniform(1, 9, (3 * n, 1))).astype(np.float32), np.repeat(np.arange(3), n)


def test_directions_are_clustered_whatever_their_lengths():
    x, wanted = blobs(20)
    found = cluster({"all": x}, 3, seed=1)
    numbers = found.clusters["all"]
    assert sorted(found.sizes.tolist()) == [20, 20, 20]
    assert all(len(set(numbers[wanted == axis])) == 1 for axis in range(3))
    assert found.objective[-1] <= found.objective[0]


def test_clusters_are_those_of_train_and_the_seed_gives_them():
    (x, _), (y, own) = blobs(20), blobs(5, seed=1)
    found, again = (cluster({"test": y, "train": x}, 3, seed=4) for _ in range(2))
    assert found.sizes.sum() == 60
    assert [len(found.clusters[name]) for name in ("train", "test")] == [60, 15]
    assert all(np.array_equal(found.clusters[name], again.clusters[name]) for name in found.clusters)
    assert all(found.clusters["train"][20 * axis] == found.clusters["test"][own == axis][0] for axis in range(3))


def test_another_seed_begins_elsewhere():
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert cluster({"all": x}, 9, seed=1).objective != cluster({"all": x}, 9, seed=2).objective


def test_every_row_has_its_nearest_centroid(monkeypatch):
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    numbers = cluster({"all": x}, 5).clusters["all"]
    monkeypatch.setattr("sslbench.evaluation.cluster._ROWS", 7)
    assert np.array_equal(cluster({"all": x}, 5).clusters["all"], numbers)
    rows = x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-5)
    centroids = np.stack([rows[numbers == k].mean(axis=0) for k in range(5)])
    nearest = ((rows[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == numbers).mean() > 0.95  # k-means has nearly converged after 50 iterations


@pytest.mark.parametrize("k", [1, 61])
def test_more_clusters_than_images_are_refused(k):
    with pytest.raises(UsageError, match=f"--k {k}: 60 images"):
        cluster({"all": blobs(20)[0]}, k)


def run(*words):
    """Run a command; return its exit code."""
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return end.value.code


def pictures(folder, parts):
    rng, colours = np.random.default_rng(0), {"blue": (30, 30, 200), "red": (200, 30, 30)}
    class_folders(
        folder, colours, lambda c: rng.normal(0, 20, (20, 18, 3)) + list(colours.values())[c], dict.fromkeys(parts, 6)
    )


@pytest.mark.parametrize("parts", [(".",), ("train", "val")])
def test_the_command_writes_labels_to_train_on(tmp_path, monkeypatch, capsys, parts):
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "photos", parts)
    words = "--weights pixels:4 --data photos --k 2 --device cpu --workers 0 --store store".split()
    assert run("cluster", *words) == 0
    assert capsys.readouterr().out == f"assignments.csv: {12 * len(parts)} images in 2 clusters of 6 to 6 images\n"
    with (tmp_path / "assignments.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for colour in ("blue", "red"):
        assert len({row["label"] for row in rows if colour in row["path"]}) == 1
    assert {row.get("split", "all") for row in rows} == ({"all"} if parts == (".",) else {"train", "val"})
    words = ["--data", "assignments.csv", "--backbone", "resnet18w0.125", "--epochs", "1", "--batch-size", "6"]
    own = ["augment.size=32", "schedule.warmup_epochs=0", "--device", "cpu", "--out", "run"]
    assert run("pretrain", "clusterfit", *words, *own) == 0
    assert (tmp_path / "run" / "weights.torch").is_file()


def test_images_without_files_and_several_layers_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["cluster", "--weights", "pixels:4", "--data", "sklearn:digits", "--k", "4", "--store", "store"]
    assert run(*words) == 1
    assert "is no file of its own" in capsys.readouterr().err
    assert not (tmp_path / "assignments.csv").exists()
    assert run(*words, "--layers", "a,b") == 2
    assert "names 2 layers" in capsys.readouterr().err


def test_the_colour_of_a_cell_is_its_share_of_the_row():
    shares = np.array([[0.9, 0.1, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 0.0]])  # the last class has no test sample
    image = Image.open(io.BytesIO(beside.picture((shares * [[10], [40], [1]]).astype(np.int64), ("", "", ""))))
    corners = [[image.getpixel((150 + 40 * column + 1, 150 + 40 * row + 1)) for column in range(3)] for row in range(3)]
    assert np.abs(255 - shares[..., None] * (255 - np.array([8, 48, 107])) - corners).max() <= 1


@pytest.mark.parametrize("n", [20, 40])
def test_each_name_stands_above_its_own_column(n):
    cell, margin = 640 // n, 150
    for named in (0, n // 2, n - 1):
        names = tuple("class" if i == named else "" for i in range(n))
        image = Image.open(io.BytesIO(beside.picture(np.zeros((n, n), np.int64), names)))
        above = np.asarray(image.convert("L"))[20 : margin - 4, margin:]
        columns = np.flatnonzero((above < 128).any(axis=0)) // cell
        assert len(columns) and (columns == named).all()
