"""Scores over training: one curve per protocol, layer and test part, in the order of the updates."""

import csv

import numpy as np
import pytest
from helpers.record_trees import IDS, change, make, write
from PIL import Image

from sslbench.errors import ResultError
from sslbench.leaderboard.over_training import draw_training, training_curves, write_training_curves
from sslbench.train.checkpoints import Position

RIGHT = {20: 0.5, 10: 0.3, 100: 0.9}


@pytest.fixture
def results(tmp_path):
    """Three checkpoints, the later ones right on more of the same images; not in the order of training."""
    order = np.random.default_rng(0).permutation(len(IDS))
    return [
        (Position(step, step / 10), [write(make(f"step_{step:09d}.ckpt"), order < share * len(IDS), tmp_path)])
        for step, share in RIGHT.items()
    ]


def test_a_curve_is_in_the_order_of_updates_with_the_paired_gain(results):
    (curve,) = training_curves(results)
    assert [(point.at.step, point.score.value) for point in curve.points] == [(10, 30), (20, 50), (100, 90)]
    assert curve.gain.difference == pytest.approx(60) and curve.gain.low > 45 and curve.gain.high < 75
    assert curve.gain.value_a == 90 and curve.gain.n == 200


def test_protocols_and_layers_are_curves_of_their_own_and_one_checkpoint_has_no_gain():
    records = [make("a"), make("a", protocol="linear"), make("a", layer="res3")]
    curves = training_curves([(Position(5, None), records)])
    assert [curve.title for curve in curves] == [
        "knn on photos/ (test), avgpool",
        "linear on photos/ (test), avgpool",
        "knn on photos/ (test), res3",
    ]
    assert all(curve.gain is None for curve in curves)


def test_without_scores_of_each_image_there_is_no_gain():
    (curve,) = training_curves([(Position(i, None), [make(f"{i}.ckpt", top1=50.0 + i)]) for i in (2, 1)])
    assert len(curve.points) == 2 and curve.gain is None


def test_csv_and_picture_have_every_checkpoint(results, tmp_path):
    floors = {"untrained": {"top1": 20.0}, "chance": {"top1": 100 / 3}}
    results = [(at, [change(result, floors=floors) for result in own]) for at, own in results]
    table, picture = write_training_curves(training_curves(results), "my run", tmp_path / "out")
    assert (table.name, picture.name) == ("training-my-run-knn.csv", "training-my-run-knn.png")
    rows = list(csv.DictReader(table.open()))
    assert [(row["step"], row["epoch"], float(row["value"])) for row in rows] == [
        ("10", "1", 30),
        ("20", "2", 50),
        ("100", "10", 90),
    ]
    assert all(row["record"].endswith(".json") and row["metric"] == "top1" for row in rows)
    with Image.open(picture) as image:
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20


def test_nothing_to_draw_is_said(tmp_path):
    curves = training_curves([(Position(1, 1.0), [make("a", top1=None)])])
    with pytest.raises(ResultError, match="no checkpoint of a has a score"):
        draw_training(curves, "a", tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
