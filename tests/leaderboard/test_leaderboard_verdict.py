"""Verdicts: the best row of a column, the rows tied with it, and the floors."""

import dataclasses
import json

import numpy as np
import pandas
import pytest
from helpers.record_trees import PREPROCESSING, change, make, write

from sslbench.api import make_leaderboard
from sslbench.cli.commands.leaderboard import write_board
from sslbench.cli.main import main
from sslbench.leaderboard import table, to_csv, to_html
from sslbench.leaderboard.tables import latex, legend, markdown, marked_text
from sslbench.results import MetricValue, plain

NUMBERS = np.arange(200)


def right(share, first=0):
    """Samples that a network has right: a share of them in percent, from `first` on."""
    return (NUMBERS + 2 * first) % 200 < 2 * share


@pytest.fixture
def floors(tmp_path):
    """Records of floors with their scores: 40 % of the untrained network, 60 % of the pixels."""
    untrained = make("resnet50 untrained", weights__untrained=True)
    pixels = make("pixels:8", weights__backbone="pixels:8", layer="pixels")
    return [write(untrained, right(40), tmp_path), write(pixels, right(60), tmp_path)]


def verdict(results):
    (found,) = table(results).verdicts
    return found


def test_the_verdict_names_the_best_row_its_ties_and_the_floors(tmp_path, floors):
    a, b, c = (write(make(name), right(*how), tmp_path) for name, how in (("a", (80,)), ("b", (79, 1)), ("c", (50,))))
    assert verdict([a, c, *floors]) == (
        "knn/photos top1: a is best (80.00), better than c; above untrained (40.00) and pixels (60.00)."
    )
    assert ": a is best (80.00), tied with b; above" in verdict([a, b, c, *floors])
    assert (
        verdict([c, *floors])
        == "knn/photos top1: c has 50.00; above untrained (40.00), not clearly above pixels (60.00)."
    )
    low = write(make("low"), right(45), tmp_path)
    assert verdict([c, low, *floors]).endswith("above untrained (40.00), none is clearly above pixels (60.00).")
    assert verdict([a, c]) == "knn/photos top1: a is best (80.00), better than c."


def test_a_lone_row_is_called_best_nowhere(tmp_path, floors):
    a, b = write(make("a"), right(80), tmp_path), write(make("b", protocol="svm"), right(70), tmp_path)
    board = table([a, b, *floors])
    assert board.verdicts[0].startswith("knn/photos top1: a has 80.00; above untrained (40.00)")
    assert marked_text(board, board.rows[0], 0).startswith("80.00") and "best," not in legend(board)
    assert "| 80.00 |" in markdown(board) and "textbf" not in latex(board)
    to_csv(board, tmp_path / "wide.csv")
    assert pandas.read_csv(tmp_path / "wide.csv")["knn/photos tied"].isna().all()
    to_html(board, tmp_path / "page.html")
    assert 'lead"' not in (tmp_path / "page.html").read_text()


def test_the_layer_is_named_only_where_it_tells_rows_apart(tmp_path):
    a, b = write(make("a"), right(80), tmp_path), write(make("b", layer="res2"), right(50), tmp_path)
    assert verdict([a, b]) == "knn/photos top1: a is best (80.00), better than b."
    other = write(make("a", layer="res4"), right(60), tmp_path)
    assert verdict([a, b, other]) == "knn/photos top1: a avgpool is best (80.00), better than a res4 and b."


def test_what_could_not_be_tested_is_named(tmp_path, floors):
    a, b = write(make("a"), right(80), tmp_path), write(make("b"), right(50), tmp_path)
    (tmp_path / "knn" / b.scores_file).unlink()
    assert ": a is best (80.00), not tested against b; " in verdict([a, b, *floors])
    stated = {"untrained": {"top1": 30.0}, "pixels": {"top1": 45.0}}
    assert verdict([make("a", 80, floors=stated)]).endswith("not tested against untrained (30.00) or pixels (45.00).")
    assert verdict([make("a", 20, floors=stated)]).endswith("not clearly above untrained (30.00) or pixels (45.00).")


def test_a_row_is_tested_against_the_untrained_network_of_its_own(tmp_path, floors):
    other = {"resize": 64, **{key: item for key, item in PREPROCESSING.items() if key != "resize"}}
    moved = write(make("a", preprocessing=other), right(80), tmp_path)
    layer = write(make("b", layer="res4"), right(80), tmp_path)
    small = write(make("c", weights__backbone="resnet18"), right(80), tmp_path)
    cells = {row.label: row.cells[0].floors for row in table([moved, layer, small, *floors]).rows if not row.floor}
    assert all(list(tests) == ["pixels"] for tests in cells.values())


def test_rows_of_another_preprocessing_are_named_beside_the_verdict(tmp_path):
    other = {**PREPROCESSING, "resize": 64}
    results = [write(make("a"), right(80), tmp_path), write(make("b", preprocessing=other), right(70), tmp_path)]
    first, second = table(results).verdicts
    assert first.startswith("knn/photos top1: a is best")
    assert second == (
        "knn/photos top1: the images were preprocessed differently: resize 256 bilinear (a), resize 64 bilinear (b)."
    )


def test_every_table_has_marks_that_survive_a_pipe(tmp_path, floors):
    results = [write(make(n), right(*h), tmp_path) for n, h in (("a", (62,)), ("b", (61, 1)), ("low", (38,)))]
    board = table([*results, *floors])
    assert [marked_text(board, row, 0).partition(" ")[0] for row in board.rows[:3]] == ["*#", "=#", "!#"]
    words = "* best, = tied with it, ! not clearly above untrained, # not clearly above pixels"
    assert words in legend(board) and words.replace("* b", "\\* b") in markdown(board)
    assert "| *# 62.00" in markdown(board) and "| !# 38.00" in markdown(board), "not bold below a floor"
    assert "**62.00" in markdown(table(results))
    assert markdown(board).startswith("knn/photos top1: a is best (62.00), tied with b; ")
    assert "\n% knn/photos top1: a is best (62.00), tied with b; " in latex(board) and "$^{!\\#}$" in latex(board)
    assert "untrained" not in legend(table(results)), "only the marks that are used"
    assert repr(board).startswith("knn/photos top1: a is best (62.00), tied with b; ")


def test_the_csv_has_intervals_ties_and_floors(tmp_path, floors):
    results = [write(make(n), right(*h), tmp_path) for n, h in (("a", (62,)), ("b", (61, 1)), ("low", (38,)))]
    results[0] = dataclasses.replace(results[0], metrics={"top1": MetricValue(value=62.0, low=55.1, high=68.4)})
    board = table([*results, *floors])
    to_csv(board, tmp_path / "wide.csv")
    frame = pandas.read_csv(tmp_path / "wide.csv").set_index("weights")
    assert frame.loc["a", "knn/photos low"] == 55.1 and frame.loc["a", "knn/photos high"] == 68.4
    assert frame["knn/photos tied"].fillna("").tolist() == ["best", "yes", "no", "", ""]
    assert frame["knn/photos above_untrained"].fillna("").tolist() == ["yes", "yes", "no", "", ""]
    assert frame["knn/photos above_pixels"].fillna("").tolist() == ["no", "no", "no", "", ""]
    assert frame.loc["low", "flags"] == "not clearly above untrained; not clearly above pixels"
    to_csv(board, tmp_path / "long.csv", form="long")
    assert pandas.read_csv(tmp_path / "long.csv").loc[0, "above_untrained"] == "yes"


def test_rows_that_are_tied_do_not_disagree(tmp_path):
    a, b = write(make("a"), right(80), tmp_path), write(make("b"), right(79, 1), tmp_path)
    by_f1 = [
        change(one, metrics={**one.metrics, "macro_f1": MetricValue(value=v)}) for one, v in ((a, 60.0), (b, 61.0))
    ]
    assert table(by_f1).disagreements == ()


def test_metrics_that_disagree_are_named_on_request_only(tmp_path, capsys):
    """One network is the best by top-1, the other by macro F1, and they are not tied."""
    for name, share, f1 in (("a", 80, 40.0), ("b", 50, 60.0)):
        one = write(make(name), right(share), tmp_path)
        one = change(one, metrics={**one.metrics, "macro_f1": MetricValue(value=f1)}, checksum=None)
        one.file.write_text(json.dumps({**json.loads(one.file.read_text()), "metrics": plain(one.metrics)}))
    for words, told in (((), False), (("-v",), True)):
        with pytest.raises(SystemExit) as end:
            main(["leaderboard", str(tmp_path), *words])
        assert end.value.code == 0
        assert ("the metrics disagree on the best row" in capsys.readouterr().out) is told


def test_the_order_is_that_of_the_first_column_with_a_result(tmp_path):
    floor = make("pixels:8", 90, "aaa", weights__backbone="pixels:8", layer="pixels")
    board = table([make("low", 30), make("high", 40), floor])
    assert [row.label for row in board.rows] == ["high", "low", "pixels:8"]
    assert legend(board).endswith("Order: best first by knn/photos, floors last.")


def test_the_terminal_begins_with_the_verdict(tmp_path, floors, capsys):
    write(make("a"), right(80), tmp_path)
    write_board([tmp_path])
    assert capsys.readouterr().out.startswith("knn/photos top1: a has 80.00; above untrained (40.00)")
    assert make_leaderboard(tmp_path).verdicts


def test_a_row_is_above_untrained_networks_only_beyond_their_spread(tmp_path):
    """Shares of 20, 30 and 40 % of three networks: a row of 55 % is above each, but so might a fourth network be."""
    networks = [
        write(make("resnet50 untrained", weights__untrained=True, weights__sha256=f"{i:064d}"), right(share), tmp_path)
        for i, share in enumerate((20, 30, 40))
    ]
    near, far = write(make("near"), right(50), tmp_path), write(make("far"), right(99), tmp_path)
    assert verdict([near, networks[0]]).endswith("near has 50.00; above untrained (20.00).")
    assert verdict([near, *networks]).endswith("near has 50.00; not clearly above untrained (30.00).")
    assert verdict([far, *networks]).endswith("far has 99.00; above untrained (30.00).")
    (floor,) = [row for row in table([far, *networks]).rows if row.floor]
    assert floor.flags == ("floor", "mean of 3 networks")


def test_untrained_networks_of_other_seeds_than_the_row_do_not_widen_its_test(tmp_path):
    def untrained(number, share, seed=0):
        other = {"weights__untrained": True, "weights__sha256": f"{number:064d}", "seed": seed}
        return write(make("resnet50 untrained", **other), right(share), tmp_path)

    networks = [untrained(number, share) for number, share in enumerate((29, 30, 31))]
    row = write(make("a"), right(60), tmp_path)
    assert verdict([row, *networks]) == verdict([row, *networks, untrained(7, 45, seed=7)])
