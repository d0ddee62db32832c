"""Protocols that need no labels, or look at one part of the data only, as a user runs them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from sslbench.results.records import read_scores, read_tree, scores_path

OWN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net")


def flat(world):
    """The pictures of photos/train in one folder without classes."""
    (world / "flat").mkdir()
    for file in (world / "photos" / "train").rglob("*.png"):
        file.rename(world / "flat" / f"{file.parent.name}-{file.name}")


def test_geometry_of_a_folder_without_classes(world, sslbench):
    flat(world)
    code, out, err = sslbench("eval", "geometry", *OWN, "--data", "flat")
    assert code == 0, err
    assert "36 samples, not split" in err and "rankme" in out
    found = {r.weights.name: r for r in read_tree(Path("results"))}
    result = found["w.pth"]
    assert result.data.labels == "none" and result.data.test.n_used == 36
    assert result.data.train.fingerprint == result.data.test.fingerprint
    assert set(result.metrics) == {"rankme", "effective_rank", "alpha_req", "uniformity", "feature_std"}
    assert 1 <= result.metrics["rankme"].low <= result.metrics["rankme"].value <= 12, "a rank, not a percentage"
    assert set(result.floors) == {"pixels", "untrained"} and result.floors["pixels"]["rankme"] > 1
    assert read_scores(scores_path(result)).scores.shape == (36, 0)
    code, out, err = sslbench("leaderboard", "results", "--csv", "board.csv", "--html", "board.html")
    assert code == 0, err
    with Path("board.csv").open() as file:
        values = {
            row["weights"]: [v for k, v in row.items() if k.startswith("geometry/flat")] for row in csv.DictReader(file)
        }
    assert str(result.metrics["rankme"].value)[:6] in " ".join(values["w.pth"])


def test_what_needs_labels_still_says_so(world, sslbench):
    flat(world)
    code, _, err = sslbench("eval", "geometry", "knn", *OWN, "--data", "flat")
    assert code == 1 and "have no labels" in err and not Path("results").exists()
    code, _, err = sslbench("eval", "clustering", *OWN, "--data", "flat")
    assert code == 1 and "have no labels" in err


def test_labels_that_do_not_go_together_do_not_stop_what_needs_none(world, sslbench):
    (world / "photos" / "test" / "blue").rename(world / "photos" / "test" / "violet")
    code, _, err = sslbench("eval", "geometry", *OWN, "--data", "photos", "--no-floors")
    assert code == 0, err
    (result,) = read_tree(Path("results"))
    assert result.data.labels == "none" and result.data.test.n_used == 15


def test_geometry_of_labelled_data_has_its_alignment_and_its_part(world, sslbench):
    for part, n in (("test", 15), ("train", 36)):
        code, _, err = sslbench(
            *("eval", "geometry", *OWN, "--data", "photos", "--no-floors", f"part={part}", "--out", part)
        )
        assert code == 0, err
        (result,) = read_tree(Path(part))
        assert "alignment" in result.metrics and result.data.test.n_used == n
        assert read_scores(scores_path(result)).labels.shape == (n,)


def test_embeddings_without_labels(world, sslbench):
    np.save("e.npy", np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32))
    code, _, err = sslbench("eval", "geometry", "--features", "e.npy")
    assert code == 0, err
    code, _, err = sslbench("eval", "knn", "--features", "e.npy")
    assert code == 2 and "--features needs --labels" in err and "geometry" in err


@pytest.mark.parametrize("floors", [(), ("--no-floors",)])
def test_leave_one_out_scores_every_picture_of_data_without_parts(world, sslbench, floors):
    code, _, err = sslbench(
        "eval", "knn", *OWN, "--data", "photos/train", "k=3", "leave_one_out=true", "--max-memory", "50MB", *floors
    )
    assert code == 0, err
    result = next(r for r in read_tree(Path("results")) if r.weights.name == "w.pth")
    assert result.data.test.n_used == result.data.train.n_used == 36 and "not split" in result.data.how
    assert len(read_scores(scores_path(result)).ids) == 36
    assert result.protocol.settings["leave_one_out"] is True and "max_memory" not in result.protocol.settings


def test_leave_one_out_of_data_with_parts_is_of_train(world, sslbench):
    code, _, err = sslbench("eval", "knn", *OWN, "--data", "photos", "k=3", "leave_one_out=true", "--no-floors")
    assert code == 0, err
    (result,) = read_tree(Path("results"))
    assert result.data.test.n_used == 36 and result.data.test.name == result.data.train.name


def test_memory_and_backend_are_not_part_of_what_was_measured(world, sslbench):
    ids = set()
    for extra in ((), ("--max-memory", "1MB"), ("max_memory=0.5",), ("backend=faiss",)):
        code, _, err = sslbench("eval", "knn", *OWN, "--data", "photos", "k=3", "--no-floors", *extra)
        assert code == 0, err
        (result,) = read_tree(Path("results"))
        ids.add((result.id, json.dumps(result.metrics["top1"].value)))
    assert len(ids) == 1


def test_a_size_that_is_none_is_refused(world, sslbench):
    for wrong in ("lots", "0", "-1GB", "1e400"):
        code, _, err = sslbench("eval", "knn", *OWN, "--data", "photos", "--max-memory", wrong)
        assert code == 2 and "8GB or 500MB" in err, wrong
    code, _, err = sslbench("eval", "lsr", *OWN, "--data", "photos", "--max-memory", "1GB")
    assert code == 2 and "--max-memory does not go with lsr" in err
