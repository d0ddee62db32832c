"""The linear probe needs no rate: scale and offset of the features move nothing, and the optimum is scikit-learn's."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from sslbench.results.records import read_tree

PARTS = ("--features", "x.npy", "--labels", "y.npy", "--test-features", "xt.npy", "--test-labels", "yt.npy")


@pytest.fixture
def samples(tmp_path, monkeypatch):
    """Features of four classes that overlap: 400 to learn, 400 to test."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = np.arange(800) % 4
    x = rng.normal(size=(800, 16)) + 2.0 * np.eye(4, 16)[y]
    np.save("y.npy", y[:400])
    np.save("yt.npy", y[400:])

    def write(scale=1.0, offset=0.0):
        np.save("x.npy", (x[:400] * scale + offset).astype(np.float32))
        np.save("xt.npy", (x[400:] * scale + offset).astype(np.float32))
        return x[:400], y[:400], x[400:], y[400:]

    write()
    return write


def test_three_scales_and_an_offset_give_the_same_accuracy_without_an_option(samples, sslbench):
    found = []
    for scale, offset in ((1e-3, 0.0), (1.0, 0.0), (1e3, 0.0), (1.0, 100.0)):
        samples(scale, offset)
        code, _, err = sslbench("eval", "linear", *PARTS, "--out", f"{scale}-{offset}")
        assert code == 0, err
        [record] = read_tree(Path(f"{scale}-{offset}"))
        found.append(record.metrics["top1"].value)
    assert max(found) - min(found) <= 0.1 and 60 < found[0] < 95


def test_the_record_says_what_was_chosen_where_and_how_well_it_was_solved(samples, sslbench):
    code, _, err = sslbench("eval", "linear", *PARTS)
    assert code == 0, err
    [record] = read_tree(Path("results"))
    assert {"c", "on", "seed", "gap", "iterations"} <= set(record.selected) and "held-out" in record.selected["on"]
    assert record.converged and record.selected["gap"] < 1e-3, "distance to the optimum, proven"


def test_a_solver_that_was_stopped_marks_its_row(samples, sslbench):
    code, out, err = sslbench("eval", "linear", *PARTS, "max_iter=1", "c=[100]")
    assert code == 0, err
    assert "not converged" in (out + err).lower()
    _, board, _ = sslbench("leaderboard", "results")
    assert "not converged" in board.lower()


def test_at_a_fixed_c_it_is_scikit_learns_converged_solution(samples, sslbench):
    x, y, xt, yt = samples()
    code, _, err = sslbench("eval", "linear", *PARTS, "c=[0.5]")
    assert code == 0, err
    [record] = read_tree(Path("results"))
    mean, std = x.mean(axis=0), x.std(axis=0)
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000).fit((x - mean) / std, y)
    right = (theirs.predict((xt - mean) / std) == yt).sum()
    assert abs(record.metrics["top1"].value * 4 - right) <= 1
