"""What is marked: flags, floors, the best row and its ties, metrics that disagree."""

import numpy as np
from helpers.record_trees import IDS, LABELS, labels, make, write

from sslbench.leaderboard import table
from sslbench.leaderboard.model import value
from sslbench.leaderboard.tables import markdown
from sslbench.results import BenchmarkUsed, ExcludedImage, MetricValue


def test_flags_say_what_a_reader_must_know():
    used = BenchmarkUsed(name="linear/x", version=1, sha256="", modified=True)
    skipped = {"data__test__n_used": 195, "data__unreadable": (ExcludedImage(id="x", path="x", reason="cut"),)}
    flags = {
        row.label: row.flags
        for row in table(
            [
                make("partial", weights__partial=True, weights__loaded=300),
                make("unconverged", converged=False),
                make("unconverged", 80, "svm", converged=True),
                make("modified", 80, "linear", benchmark=used),
                make("skipped", **skipped),
                make("on test", selected={"k": 20, "on": "test"}),
                make("low", 30, floors={"untrained": {"top1": 31.0}}),
                make("fine", 40, converged=True, floors={"untrained": {"top1": 31.0}}),
            ]
        ).rows
    }
    assert flags["partial"] == ("partial weights (300 of 318 tensors)",)
    assert flags["unconverged"] == ("not converged: knn/photos [n=200, 0 skipped]",)
    assert flags["modified"] == ("modified",)
    assert flags["skipped"] == ("skipped images (800 of 800 train, 195 of 200 test)",)
    assert flags["on test"] == ("selected on test",)
    assert flags["low"] == ("not above untrained",)
    assert flags["fine"] == ()


def test_floors_are_rows_of_their_own_at_the_bottom():
    floors = {
        "untrained": {"top1": 30.0},
        "pixels": {"top1": 95.0},
        "majority": {"top1": 35.0},
        "chance": {"top1": 33.3},
    }
    small = make("small", 40, weights__backbone="resnet18", floors={"untrained": {"top1": 20.0}})
    board = table([make("a", 80, floors=floors), make("b", 81, floors={"pixels": {"top1": 94.0}}), small])
    assert labels(board) == ["b", "a", "small"]
    bottom = board.rows[3:]
    assert [row.label for row in bottom] == ["chance", "majority", "pixels", "resnet18 untrained", "resnet50 untrained"]
    assert [value(row, 0, board.columns) for row in bottom] == [33.3, 35, 95, 20, 30]
    assert all(row.flags == ("floor",) for row in bottom)
    assert [row.label for row in board.rows if row.cells[0].best] == ["b"]


def test_a_floor_with_a_record_of_its_own_is_shown_once_with_its_interval():
    floors = {"untrained": {"top1": 30.0}, "pixels": {"top1": 45.0}}
    untrained = make("resnet50 untrained", 30, weights__untrained=True)
    pixels = make("pixels:32", 45, weights__backbone="pixels:32", layer="pixels")
    board = table([make("a", 80, floors=floors), make("a", 70, "svm", floors=floors), untrained, pixels])
    found = {(row.label, row.layer): row for row in board.rows if row.floor}
    assert [value(found["resnet50 untrained", "avgpool"], i, board.columns) for i in (0, 1)] == [30, None]
    assert [value(found["resnet50 untrained", ""], i, board.columns) for i in (0, 1)] == [None, 30]
    assert found["pixels:32", "pixels"].cells[0].metrics["top1"].low == 43
    assert not board.rows[0].floor and board.rows[0].label == "a"


def test_a_board_of_floors_only_can_be_made():
    board = table([make("resnet18 untrained", 30, weights__untrained=True, floors={"chance": {"top1": 10.0}})])
    assert [row.label for row in board.rows] == ["chance", "resnet18 untrained"]
    assert table([]).rows == ()


RIGHT = np.arange(200) % 5 > 0


def swapped(n):
    """As many right as in RIGHT but for one, with `n` samples of each kind the other way round."""
    other = RIGHT.copy()
    other[np.flatnonzero(RIGHT)[: n + 1]] = False
    other[np.flatnonzero(~RIGHT)[:n]] = True
    return other


def test_ties_with_the_best_are_found_on_the_same_samples(tmp_path):
    near, far = swapped(5), RIGHT & (np.arange(200) % 7 > 0)
    results = [write(make(n), r, tmp_path) for n, r in (("best", RIGHT), ("near", near), ("far", far), ("copy", RIGHT))]
    cells = {row.label: row.cells[0] for row in table(results).rows}
    assert {name: cell.tied for name, cell in cells.items()} == {"best": True, "near": True, "far": False, "copy": True}
    assert {name: cell.best for name, cell in cells.items()} == {
        "best": True,
        "near": False,
        "far": False,
        "copy": True,
    }


def test_without_the_same_samples_nothing_is_said_about_ties(tmp_path):
    results = [write(make("best"), RIGHT, tmp_path), write(make("moved"), swapped(1), tmp_path)]
    other_ids = write(make("other ids"), swapped(2), tmp_path, ids=tuple(f"x{i}" for i in IDS))
    other_labels = write(make("other labels"), swapped(3), tmp_path, labels=(LABELS + 1) % 3)
    (tmp_path / "knn" / results[1].scores_file).unlink()
    cells = {row.label: row.cells[0] for row in table([*results, other_ids, other_labels]).rows}
    assert [cells[name].tied for name in ("moved", "other ids", "other labels")] == [None, None, None]


def test_metrics_that_disagree_on_the_best_row_are_told():
    first = make("a", metrics={"top1": MetricValue(value=90), "macro_f1": MetricValue(value=50)})
    second = make("b", metrics={"top1": MetricValue(value=80), "macro_f1": MetricValue(value=60)})
    (note,) = table([first, second]).notes
    assert note.endswith(": the metrics disagree on the best row: a by top1, b by macro_f1.")
    more = {
        "top1": MetricValue(value=80),
        "macro_f1": MetricValue(value=60),
        "balanced_accuracy": MetricValue(value=99),
    }
    (note,) = table(
        [make("a", metrics=first.metrics | {"balanced_accuracy": MetricValue(value=1)}), make("b", metrics=more)]
    ).notes
    assert note.endswith(": a by top1, b by balanced_accuracy and 1 more."), "by count, not a list"
    (note,) = table([first, make("b", metrics=second.metrics, layer="res2")]).notes
    assert note.endswith(": a avgpool by top1, b res2 by macro_f1.")
    assert table([make("a", 80), make("b", 90)]).notes == ()


def test_by_a_metric_of_unknown_direction_nothing_is_called_best():
    results = [
        make(n, metrics={"my_loss": MetricValue(value=v)}, headline="my_loss") for n, v in (("b", 2.0), ("a", 1.0))
    ]
    board = table(results)
    assert labels(board) == ["a", "b"] and not any(row.cells[0].best for row in board.rows)
    assert "the direction of my_loss is unknown" in board.notes[0]


def test_rows_of_one_name_are_told_apart_by_their_layers():
    def untrained(layer, protocol):
        return make("resnet18 untrained", 30, protocol, layer=layer, weights__untrained=True)

    assert "| layer |" in markdown(table([untrained("fpn", "svm"), untrained("res5avg", "knn")]))
    assert "| layer |" not in markdown(table([untrained("res5avg", "svm"), untrained("res5avg", "knn")]))
