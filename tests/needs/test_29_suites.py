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
    code, out, err = sslbench("eval", "low-shot", "--benchmark", "low_shot/digits", *NET, "k=[1,2]", "--no-floors")
    assert code == 0, err
    [record] = read_tree(Path("results"))
    assert record.metrics[record.headline].low < record.metrics[record.headline].value
    assert len(record.variants) == 2 and "5 draws" in str(record.notes) + out + err + str(record.protocol.settings)


def test_nothing_imports_tensorflow():
    names = "import sslbench.cli.main, sslbench.data.open, sslbench.library.benchmarks, sys, json"
    shown = subprocess.run(
        [sys.executable, "-c", f"{names}; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "tensorflow" not in json.loads(shown)
