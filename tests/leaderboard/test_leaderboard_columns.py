"""Columns on request, and the flag for a probe that has not learned train."""

import numpy as np
import pandas
import pytest
from helpers.record_trees import make

from sslbench.errors import UsageError
from sslbench.leaderboard import table, to_csv, to_html, to_markdown
from sslbench.leaderboard.columns import with_extras
from sslbench.results import Costs, MetricValue, Stage

STAGES = {"extract": Stage(seconds=25.5, ram_mib=900.0), "knn": Stage(seconds=0.5, ram_mib=950.5, gpu_mib=None)}
COLD = Costs(parameters=23508032, gflops=8.18, images_per_second=70.0, stages=STAGES)
WARM = Costs(parameters=23508032, gflops=8.18, stages=STAGES | {"extract": Stage(seconds=0.01)})


def columns(results, kinds):
    board = with_extras(table(results), kinds)
    return {extra.name: extra.values for extra in board.extras}, board


def test_costs_come_from_the_record_that_encoded():
    found, _ = columns([make("a", costs=WARM), make("a", 70, "svm", costs=COLD)], ["costs"])
    assert found["parameters"] == (23508032,) and found["images per second"] == (70.0,)
    assert found["extraction seconds"] == (25.5,) and found["knn/photos seconds"] == (0.5,)
    assert "extraction peak MiB of the GPU" not in found, "nothing is known about it"


def test_train_stands_beside_test_and_is_the_mean_over_seeds():
    results = [make("a", train=90.0), make("a", seed=1, train=92.0), make("b")]
    found, board = columns(results, ["train"])
    assert dict(zip([row.label for row in board.rows], found["knn/photos train"], strict=True)) == {"a": 91, "b": None}


def test_the_files_have_them_as_numbers(tmp_path):
    board = with_extras(table([make("a", train=91.25, costs=COLD), make("b")]), ["train", "costs"])
    to_csv(board, tmp_path / "wide.csv")
    frame = pandas.read_csv(tmp_path / "wide.csv")
    assert frame["parameters"].dtype == np.float64 and frame["knn/photos train"][0] == 91.25
    assert list(frame.columns)[-1] == "flags"
    to_csv(table([make("a", train=91.25, costs=COLD)]), tmp_path / "long.csv", form="long")
    long = pandas.read_csv(tmp_path / "long.csv").set_index("metric")
    assert long.loc["top1", "train_value"] == 91.25 and long.loc["top1", "peak_mib"] == 950.5
    assert long.loc["top1", "gflops"] == 8.18 and np.isnan(long.loc["balanced_accuracy", "train_value"])
    to_html(board, tmp_path / "board.html")
    page = (tmp_path / "board.html").read_text(encoding="utf-8")
    assert "<small>train 91.2</small>" in page and "23,508,032" in page and "23.5 million parameters" in page
    to_markdown(board, tmp_path / "board.md")
    lines = (tmp_path / "board.md").read_text(encoding="utf-8").splitlines()[:4]
    assert len({line.count("|") for line in lines}) == 1 and "91.2" in lines[2]


def test_unknown_columns_are_refused():
    with pytest.raises(UsageError, match="Did you mean 'costs'"):
        with_extras(table([make("a")]), ["cost"])


def flags(**changes):
    (row,) = table([make("a", 60, **changes)]).rows
    return row.flags


def test_features_in_int8_are_marked_also_where_nothing_else_is_on_the_board():
    assert flags(precision="int8") == ("features rounded to int8",) and flags(precision="bf16") == ()


def test_a_probe_that_has_not_learned_train_is_flagged():
    assert flags(train=57.0) == ("underfitted",), "the interval of test is 58 to 63"
    assert flags(train=59.0) == () and flags(train=100.0) == () and flags() == ()
    assert flags(train=80.0, converged=False) == ("not converged", "underfitted")
    assert flags(train=99.0, converged=False) == ("not converged",)


def test_less_is_better_for_losses():
    results = [make(n, metrics={"nll": MetricValue(value=v)}, headline="nll") for n, v in (("b", 2.0), ("a", 1.0))]
    board = table(results)
    assert [row.label for row in board.rows] == ["a", "b"] and board.rows[0].cells[0].best
    floor = {"untrained": {"nll": 1.5}}
    low = table(
        [make(n, metrics={"nll": MetricValue(value=v)}, headline="nll", floors=floor) for n, v in (("x", 1.6),)]
    )
    assert low.rows[0].flags == ("not above untrained",)
