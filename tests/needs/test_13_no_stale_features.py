"""Features are found again as long as nothing that they depend on has changed; own embeddings need no network."""

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from sslbench.cli.main import main
from sslbench.results.records import read_tree

OWN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")
KNN = ("eval", "knn", *OWN, "k=3", "--no-floors", "--no-overlaps", "-v")
FOUND = "features found in the store, no image decoded"


@pytest.fixture
def first(world, sslbench):
    """A first run, whose features are stored."""
    code, _, err = sslbench(*KNN)
    assert code == 0 and FOUND not in err, err
    return world


def change_a_weight():
    content = torch.load("w.pth", weights_only=True)
    content["state_dict"]["module.conv2.bias"][0] += 1e-3
    torch.save(content, "w.pth")


def change_an_image():
    path = Path("photos/train/red/0.png")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


MISSES = {
    "weight": (change_a_weight, (), "other weights"),
    "image": (change_an_image, (), "1 of 36 images changed: red/0.png"),
    "crop": (None, ("--crop", "12"), "the preprocessing changed (crop: "),
    "precision": (None, ("--precision", "bf16"), "the precision changed (fp32 -> bf16)"),
    "dtype": (None, ("--feature-dtype", "float16"), "the dtype changed (float32 -> float16)"),
    "pooling": (None, ("--layers", "conv1:avg(2,2)"), "images in"),
}


@pytest.mark.parametrize("what", MISSES)
def test_each_change_alone_is_a_miss_with_its_reason(first, sslbench, what):
    change, words, reason = MISSES[what]
    if change:
        change()
    code, _, err = sslbench(*KNN, *words)
    assert code == 0 and reason in err, err
    assert err.count(FOUND) == (1 if what == "image" else 0), "the images of test are the same"


@pytest.mark.parametrize("words", [("--batch-size", "5"), ("--workers", "1"), ("--device", "cpu"), ("--name", "other")])
def test_how_they_are_computed_is_no_part_of_them(first, sslbench, words):
    code, _, err = sslbench(*KNN, *words)
    assert code == 0 and err.count(FOUND) == 2 and " images in " not in err, err


def run_killed(words):
    """Run a command that dies when its second batch is written."""
    from sslbench.features import job

    write, calls = job.ExtractionJob.write, []

    def once(self, *given):
        calls.append(None)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, *given)

    job.ExtractionJob.write = once
    main(list(words))


def test_a_killed_extraction_is_continued_and_never_read_as_complete(world, sslbench):
    words = (*KNN, "--batch-size", "5", "--workers", "0")
    process = multiprocessing.get_context("fork").Process(target=run_killed, args=(words,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    code, _, err = sslbench(*words)
    assert code == 0 and FOUND not in err, err
    [killed] = read_tree(Path("results"))
    assert sslbench(*words, "--store", "fresh", "--out", "whole")[0] == 0
    [whole] = read_tree(Path("whole"))
    assert killed.metrics == whole.metrics


def test_embeddings_made_elsewhere(tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = np.repeat(["cat", "dog"], 30)
    x = rng.normal(size=(60, 5)).astype(np.float32) + (y == "cat")[:, None] * 4
    np.save("x.npy", x)
    pd.DataFrame({"id": [f"s{i:02d}" for i in range(60)], "label": y}).to_csv("y.csv", index=False)
    code, _, err = sslbench("eval", "knn", "linear", "--features", "x.npy", "--labels", "y.csv", "k=3")
    assert code == 0, err
    result = next(r for r in read_tree(Path("results")) if r.protocol.name == "knn")
    assert result.metrics["top1"].value == 100
    assert "stratified" in result.data.how
    assert set(result.floors) == {"chance", "majority"}
    code, _, err = sslbench("eval", "knn", "--features", "x.npy", "--labels", "y.csv", "--name", "mine")
    assert code == 0, err
    named = next(r for r in read_tree(Path("results")) if r.weights.name == "mine")
    assert named.data == result.data  # the column of the data keeps its name
