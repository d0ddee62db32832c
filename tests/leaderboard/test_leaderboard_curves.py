"""The data-efficiency plot: what is drawn is what the records hold."""

import pytest
from helpers.record_trees import make

from sslbench.errors import ResultError, UsageError
from sslbench.leaderboard import plots, table


def with_curve(name, values, **changes):
    variants = {f"k={k}": {"top1": v, "top1_low": v - 3, "top1_high": v + 2} for k, v in values.items()}
    return make(name, top1=list(values.values())[-1], protocol="low-shot", variants=variants, **changes)


def test_lines_are_the_means_with_their_intervals_floors_apart():
    records = [
        with_curve("a.torch", {1: 40.0, 16: 70.0, 4: 60.0}),
        with_curve("pixels:8", {1: 20.0, 4: 30.0, 16: 35.0}, weights__backbone="pixels:8"),
    ]
    own, floor = plots._lines(table(records), 0, "k")
    assert (own.label, own.floor, floor.floor) == ("a.torch", False, True)
    assert list(own.points) == [1, 4, 16]
    assert (own.points[4].value, own.points[4].low, own.points[4].high) == (60.0, 57.0, 62.0)
    assert plots._lines(table(records), 0, "%") == []


def test_seeds_are_averaged_and_shares_of_train_stand_apart():
    one, two = (with_curve("a.torch", {1: value, 4: 60.0}, seed=seed) for seed, value in ((0, 40.0), (1, 50.0)))
    one.variants["10 %"] = two.variants["10 %"] = {"top1": 55.0, "top1_low": None, "top1_high": None}
    (line,) = plots._lines(table([one, two]), 0, "k")
    assert (line.points[1].value, line.points[1].low, line.points[1].high) == (45.0, 0.0, 100.0)
    (line,) = plots._lines(table([one, two]), 0, "%")
    assert list(line.points) == [10.0]


def test_a_picture_is_written_whole_or_refused(tmp_path):
    target = tmp_path / "plots" / "curve.png"
    with pytest.raises(ResultError, match="no result has scores for several numbers"):
        plots.data_efficiency([make("a.torch")], target)
    assert not target.parent.exists()
    records = [with_curve(f"{name}.torch", {1: 40.0 + i, 4: 60.0 + 2 * i}) for i, name in enumerate("abc")]
    plots.data_efficiency([*records, make("a.torch")], target)
    assert target.read_bytes()[:4] == b"\x89PNG"
    assert [file.name for file in target.parent.iterdir()] == ["curve.png"]


def test_a_metric_that_is_named_is_the_one_that_is_drawn(tmp_path, monkeypatch):
    records = [with_curve("a.torch", {1: 40.0, 4: 60.0})]
    shown = []
    monkeypatch.setattr(plots, "_panel", lambda _axis, column, *_: shown.append(column.metric))
    plots.data_efficiency(records, tmp_path / "curve.png", metric="top1")
    assert shown == ["top1"]
    with pytest.raises(UsageError, match="no result has the metric 'tpo1'"):
        plots.data_efficiency(records, tmp_path / "curve.png", metric="tpo1")
