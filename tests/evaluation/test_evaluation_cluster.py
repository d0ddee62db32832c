"""Clusters of features as labels: k-means, the table, and training on it."""

import csv

import numpy as np
import pytest
from PIL import Image

from sslbench.cli.main import main
from sslbench.errors import UsageError
from sslbench.evaluation.cluster import cluster


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
    rng = np.random.default_rng(0)
    for part in parts:
        for name, colour in (("blue", (30, 30, 200)), ("red", (200, 30, 30))):
            (folder / part / name).mkdir(parents=True)
            for i in range(6):
                pixels = (rng.normal(0, 20, (20, 18, 3)) + colour).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{i}.png")


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
