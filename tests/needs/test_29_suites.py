"""A suite is a list of data sets of the user's: each is compared with what is known of it; a missing one is a hole."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sslbench.library.benchmarks import load_suite
from sslbench.results.records import read_tree

NET = ("--weights", "random", "--backbone", "resnet18w0.125", "--resize", "32x32", "--crop", "none", "--workers", "0")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_data_sets_that_are_missing_are_holes_with_a_remedy(folder, sslbench):
    assert len({name.split("/")[1] for name in load_suite("small")}) >= 8
    code, out, err = sslbench("list", "suites")
    assert code == 0 and "small" in out
    code, out, err = sslbench("eval", "knn", "--suite", "small", *NET, "--no-floors", "--no-overlaps")
    assert code == 1 and "Traceback" not in err
    [record] = read_tree(Path("results"))
    assert record.benchmark.name == "knn/digits"
    holes = list(csv.DictReader(Path("results/holes.csv").read_text().splitlines()))
    assert len(holes) >= 8


def test_data_that_differ_from_what_a_benchmark_knows_are_named(folder, sslbench):
    for part in ("train", "test"):
        for name in "ab":
            Path(f"d/{part}/{name}").mkdir(parents=True)
            for i in range(3):
                pixels = np.random.default_rng([i, len(part), ord(name)]).integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(f"d/{part}/{name}/{i}.png")
    words = ("eval", "knn", "--benchmark", "knn/cifar10", "--data", "d", *NET, "--no-floors", "k=1")
    code, out, err = sslbench(*words)
    assert "10 classes" in out + err or "2 classes" in out + err
    assert code == 1 or read_tree(Path("results"))[0].benchmark.modified
    assert "50,000" in out + err or "copy the benchmark" in out + err


def test_few_labels_are_five_draws_with_a_mean_and_an_interval(folder, sslbench):
    code, out, err = sslbench(
        "eval", "low-shot", "--benchmark", "low_shot/digits", *NET, "k=[1,2]", "costs=[1]", "--no-floors"
    )
    assert code == 0, err
    [record] = read_tree(Path("results"))
    assert record.metrics[record.headline].low < record.metrics[record.headline].value
    assert len(record.variants) == 2 and "5 draws" in str(record.notes) + out + err + str(record.protocol.settings)


VOC = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def draw(file, seed):
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def voc(root, year, splits):
    """Three images of every class in each split."""
    for number, split in enumerate(splits):
        ids = [f"{year}{number}{row:04d}" for row in range(3 * len(VOC))]
        for row, name in enumerate(ids):
            draw(root / "JPEGImages" / f"{name}.jpg", [int(year), number, row])
            box = "<bndbox><xmin>5</xmin><ymin>5</ymin><xmax>40</xmax><ymax>35</ymax></bndbox>"
            size = "<size><width>48</width><height>40</height><depth>3</depth></size>"
            object_ = f"<object><name>{VOC[row // 3]}</name><difficult>0</difficult>{box}</object>"
            (root / "Annotations").mkdir(exist_ok=True)
            text = f"<annotation><filename>{name}.jpg</filename>{size}{object_}</annotation>"
            (root / "Annotations" / f"{name}.xml").write_text(text)
        lists = root / "ImageSets" / "Main"
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f"{split}.txt").write_text("\n".join(ids))
        for label, name in enumerate(VOC):
            rows = [f"{one} {1 if row // 3 == label else -1:2d}" for row, one in enumerate(ids)]
            (lists / f"{name}_{split}.txt").write_text("\n".join(rows))


def test_the_suite_of_vissl_runs_on_what_is_there_and_names_what_is_not_once(folder, sslbench, monkeypatch):
    data = folder / "all"
    monkeypatch.setenv("SSLBENCH_DATA", str(data))
    voc(data / "VOCdevkit/VOC2007", "2007", ("trainval", "test"))
    voc(data / "VOCdevkit/VOC2012", "2012", ("trainval",))
    for name in ("original/200000", "original/200100", "strong/200001", "strong/200101"):
        draw(data / "copydays" / f"{name}.jpg", int(name[-6:]))
    words = ("--suite", "vissl", "--weights", "random", "--no-floors", "--workers", "0")
    code, out, err = sslbench("eval", *words, "--backbone", "resnet50", "estimate=false", "low-shot.k=1", "--dry-run")
    plans, holes = out.split("37 of 42 cells would be holes:\n")
    there = {"svm/voc07", "low_shot/voc07_vissl", "detection/voc07", "detection/voc07_12_iccv19", "retrieval/copydays"}
    for name in load_suite("vissl"):
        assert (f"{name} estimate=false" in holes) == (name not in there), name
    assert all(f"random on {name} estimate=false" in plans for name in there)
    [line] = [line for line in holes.splitlines() if f"looked for {data}/imagenet" in line]
    assert all(f"{kind}/imagenet1k_vissl" in line for kind in ("knn", "linear_online", "finetune"))
    assert code == 0 and holes.count(f"{data}/places205") == 1 and "sslbench data list" in holes
    narrow = ("--backbone", "resnet50w0.125", "--resize", "32x32", "--crop", "none")
    code, out, err = sslbench("eval", "retrieval", *words, *narrow)
    assert code == 1 and [record.benchmark.name for record in read_tree(Path("results"))] == ["retrieval/copydays"]
    assert "2 of 3 cells have no data here" in err and err.count(f"{data}/rparis6k") == 1


def test_nothing_imports_tensorflow():
    names = "import sslbench.cli.main, sslbench.data.open, sslbench.library.benchmarks, sys, json"
    shown = subprocess.run(
        [sys.executable, "-c", f"{names}; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "tensorflow" not in json.loads(shown)
