"""Two results are compared on the same samples: an interval of the difference, and ties that tables mark too."""

import csv
from pathlib import Path

import numpy as np
import pytest

from sslbench.metrics.intervals import paired_difference


@pytest.fixture
def three(tmp_path, monkeypatch, sslbench):
    """Records of the embeddings one, its copy, the same a little moved, and noise in place of most of it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = (rng.normal(size=(400, 8)) + 1.5 * np.eye(4, 8)[y]).astype(np.float32)
    worse = x.copy()
    worse[:, :4] = rng.normal(size=(400, 4))
    near = x + rng.normal(0, 0.05, x.shape).astype(np.float32)
    np.save("y.npy", y)
    for name, features in (("one", x), ("copy", x), ("near", near), ("worse", worse)):
        np.save(f"{name}.npy", features)
        words = ("--features", f"{name}.npy", "--labels", "y.npy", "--name", name, "--out", f"results/{name}", "k=5")
        code, _, err = sslbench("eval", "knn", *words)
        assert code == 0, err
    return {name: next(Path(f"results/{name}/knn").glob("*.json")) for name in ("one", "copy", "near", "worse")}


def test_a_copy_is_tied_and_what_is_worse_is_not(three, sslbench):
    code, out, err = sslbench("compare", three["one"], three["copy"])
    assert code == 0 and "tied" in out and "95 %" in out, err
    code, out, err = sslbench("compare", three["one"], three["worse"])
    assert code == 0 and "tied" not in out and "better" in out, err


def test_tables_mark_what_is_tied_with_the_best(three, sslbench):
    code, _, err = sslbench("leaderboard", "results", "--csv", "board.csv")
    assert code == 0, err
    tied = {row["weights"]: row for row in csv.DictReader(Path("board.csv").read_text().splitlines())}
    tied = {name: next(v for key, v in row.items() if key.endswith(" tied")) for name, row in tied.items()}
    assert {tied["copy = one"], tied["near"]} == {"best", "yes"} and tied["worse"] == "no", tied


def test_of_a_thousand_pairs_that_are_equally_good_95_percent_are_tied():
    rng = np.random.default_rng(0)
    tied = 0
    for _ in range(1000):
        right = rng.random(500) < 0.8
        other = np.where(rng.random(500) < 0.5, right, rng.random(500) < 0.8)
        _, low, high = paired_difference(right, other)
        tied += low <= 0 <= high
    assert abs(tied / 1000 - 0.95) <= 0.015 + 1.96 * np.sqrt(0.95 * 0.05 / 1000)
