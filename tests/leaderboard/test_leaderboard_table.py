"""Tables of results: rows, columns, marks."""

import dataclasses
import itertools
import math
import random

import numpy as np
import pandas
import pytest
from helpers.record_trees import IDS, LABELS, PREPROCESSING, body, change, labels, make, write
from hypothesis import given
from hypothesis import strategies as st

from sslbench.api import make_leaderboard
from sslbench.cli.commands.leaderboard import write_board
from sslbench.errors import ResultError, UsageError
from sslbench.evaluation.trainings import together
from sslbench.identity import comparability_key
from sslbench.leaderboard import table, to_csv, to_html, to_markdown
from sslbench.leaderboard.columns import data_name, natural, preprocessing_text, with_extras
from sslbench.leaderboard.model import value
from sslbench.leaderboard.tables import markdown
from sslbench.results import BenchmarkUsed, Costs, ExcludedImage, Hardware, MetricValue, Stage, records


def names(board):
    return [column.name for column in board.columns]


def values(board):
    return {
        (row.label, row.layer): [value(row, i, board.columns) for i in range(len(board.columns))] for row in board.rows
    }


def test_one_row_per_weights_and_layer_and_one_column_per_protocol():
    board = table([make("a", 80), make("a", 70, "svm"), make("b", 90), make("a", 60, layer="res4")])
    assert names(board) == ["knn/photos", "svm/photos"]
    assert values(board) == {("b", "avgpool"): [90, None], ("a", "avgpool"): [80, 70], ("a", "res4"): [60, None]}
    assert [(row.label, row.layer) for row in board.rows] == [("b", "avgpool"), ("a", "avgpool"), ("a", "res4")]


def voc07(version):
    return BenchmarkUsed(name="knn/voc07", version=version, sha256="00")


def test_a_benchmark_names_its_column_and_the_same_measurement_without_its_name_joins_it():
    board = table([make("a", benchmark=voc07(1)), make("b"), make("c", 70, "svm")])
    assert names(board) == ["knn/voc07", "svm/photos"]
    assert [row.cells[0] is not None for row in board.rows] == [True, True, False]


def test_versions_of_a_benchmark_never_share_a_column():
    board = table([make("a", benchmark=voc07(1)), make("b", benchmark=voc07(2)), make("c")])
    assert names(board) == ["knn/photos", "knn/voc07 [v1]", "knn/voc07 [v2]"]
    assert all(sum(cell is not None for cell in row.cells) == 1 for row in board.rows)
    other = dataclasses.replace(voc07(2), name="knn/mine")
    assert names(table([make("a", benchmark=voc07(1)), make("b", benchmark=other)])) == ["knn/mine", "knn/voc07"]


OTHER = {
    "setting": ({"protocol__settings": {"k": [200], "temperature": 0.07}}, "[k=20]", "[k=200]"),
    "setting unset": ({"protocol__settings": {"temperature": 0.07}}, "[k=20]", "[k=unset]"),
    "version": ({"protocol__version": 2}, "[v1]", "[v2]"),
    "test data": ({"data__test__fingerprint": "9c01" * 8}, "[data 3f2a]", "[data 9c01]"),
    "train data": ({"data__train__fingerprint": "9c01" * 8}, "[train 77bb]", "[train 9c01]"),
    "n": ({"data__test__n_used": 195}, "[n=195]", "[n=200]"),
    "n train": ({"data__train__n_used": 40}, "[n_train=40]", "[n_train=800]"),
    "skipped": ({"data__unreadable": (ExcludedImage(id="x", path="x", reason="cut"),)}, "[0 skipped]", "[1 skipped]"),
    "metric": ({"headline": "balanced_accuracy"}, "[balanced_accuracy]", "[top1]"),
    "all of the fingerprint but the start": ({"data__test__fingerprint": "3f2a" * 7 + "0000"}, "#", "#"),
}


@pytest.mark.parametrize("what", OTHER)
def test_what_cannot_be_compared_never_shares_a_column(what):
    changes, first, second = OTHER[what]
    board = table([make("a", 80), make("b", 90, **changes)])
    assert len(set(names(board))) == 2
    assert sorted([f"knn/photos {first}", f"knn/photos {second}"]) == sorted(
        name[: name.index("#") + 1] if "#" in name else name for name in names(board)
    )
    for row in body(board):
        assert sum(cell is not None for cell in row.cells) == 1


@given(st.data())
def test_whatever_is_thrown_in_each_column_is_comparable_and_nothing_is_lost(data):
    changes = [changes for changes, *_ in OTHER.values()]
    picked = data.draw(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(changes), max_size=3))))
    results = [make(name, 50.0, **{k: v for c in chosen for k, v in c.items()}) for name, chosen in picked]
    board = table(results)
    assert len(set(names(board))) == len(names(board))
    seen = []
    for row in board.rows:
        for column, cell in zip(board.columns, row.cells, strict=True):
            for record in cell.records if cell else ():
                assert comparability_key(record) == column.group.key
                seen.append(record.id)
    # The headline and what was skipped are not part of a measurement's identity: one record of each id is kept.
    assert sorted(seen) == sorted({r.id for r in results})


def test_the_order_of_the_records_does_not_matter():
    results = [make(n, v, p, layer=y) for n, v, p, y in itertools.product("ab", (70, 80), ("knn", "svm"), ("l1", "l2"))]
    expected = table(results)
    for seed in range(5):
        shuffled = random.Random(seed).sample(results, len(results))
        again = table(shuffled)
        assert names(again) == names(expected) and values(again).keys() == values(expected).keys()


def test_namesakes_get_labels_that_tell_them_apart():
    results = [
        make("a"),
        make("a", weights__sha256="99" * 32),
        make("a", precision="bf16"),
        make("a", preprocessing={**PREPROCESSING, "crop": [192, 192]}),
        make("b"),
    ]
    found = labels(table(results))
    assert len(set(found)) == 5 and "b" in found
    assert any("bf16" in label for label in found) and any("crop 192" in label for label in found)


def test_the_origin_of_the_preprocessing_makes_no_second_row():
    board = table([make("a", 80), make("a", 70, "svm", preprocessing={**PREPROCESSING, "origin": "flag --crop"})])
    assert len(board.rows) == 1


def test_seeds_are_averaged_and_said_to_be_several():
    each = [make("a", 80 + 4 * (seed == 1), seed=seed) for seed in range(3)]
    (row,) = table(each[:2]).rows
    half = 12.706204736 * 2  # t(0.975, 1) s / sqrt(2)
    found = row.cells[0].metrics["top1"]
    assert (found.value, found.low, found.high) == pytest.approx((82, 82 - math.hypot(2, half), 100))
    (row_of_three,) = table(each).rows
    assert row_of_three.cells[0].metrics == together(each, seeds=3).metrics, "as by seeds=3"
    assert row.flags == ("mean of 2 seeds",)
    holed = table([make("a", 80), make("a", None, seed=1)])
    assert value(holed.rows[0], 0, holed.columns) is None


def test_the_same_measurement_twice_is_one_cell_and_the_newer_one():
    older = make("a", 80)
    board = table([dataclasses.replace(make("a", 81), created="2027-01-01T00:00:00+00:00"), older])
    assert values(board) == {("a", "avgpool"): [81]}
    assert "two records" in board.notes[0]


def test_weights_of_two_names_are_one_row_under_both():
    first = make("a", 80)
    renamed = dataclasses.replace(first, weights=dataclasses.replace(first.weights, name="b"))
    board = table([first, renamed, make("c", 70)])
    assert values(board) == {("a = b", "avgpool"): [80], ("c", "avgpool"): [70]}
    assert not any("two records" in note for note in board.notes)


def test_another_metric_can_be_shown_and_what_lacks_it_is_told():
    with_auroc = make("a", metrics={"top1": MetricValue(value=80), "macro_auroc": MetricValue(value=95)})
    board = table([with_auroc, make("b", 90)], metric="macro_auroc")
    assert values(board) == {("a", "avgpool"): [95]}
    assert board.columns[0].metric == "macro_auroc" and "1 results have no metric 'macro_auroc'" in board.notes[0]


def test_a_metric_that_no_result_has_is_a_mistake():
    with pytest.raises(UsageError, match="no result has the metric 'tpo1'") as caught:
        table([make("a", 80)], metric="tpo1")
    assert caught.value.remedy == "Did you mean 'top1'?"


def test_floors_alone_have_no_average_and_the_reason_is_told():
    board = table([make("a", 80, weights__untrained=True)], average=True)
    assert board.notes[-1] == "No average: there are floors only."


def test_holes_are_never_averaged_over():
    results = [make("a", 80), make("a", 60, "svm"), make("b", 70)]
    board = table(results, average=True)
    assert {row.label: row.average for row in board.rows} == {"a": 80, "b": 70}
    assert board.averaged == 1 and "over 1 of 2 columns: knn/photos" in board.notes[-1]
    both = [make("a", 80, floors={"chance": {"top1": 33.0}}), make("a", 60, "svm")]
    assert {row.label: row.average for row in table(both, average=True).rows} == {"a": 70, "chance": None}
    nothing = table([make("a", 80), make("b", 60, "svm")], average=True)
    assert nothing.averaged == 0 and all(row.average is None for row in nothing.rows)
    assert "No average" in nothing.notes[-1]
    assert all(row.average is None for row in table(results).rows)


def test_a_value_that_is_not_computable_is_a_cell_without_value():
    board = table([make("a", None), make("b", 10)])
    assert labels(board) == ["b", "a"] and values(board)["a", "avgpool"] == [None]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("photos/ (train)", "photos"),
        ("pictures/photos/ (test)", "photos"),
        ("pictures/photos/ (val), 60 of 180", "photos, 60 of 180"),
        ("photos.kwcoco.json", "photos.kwcoco.json"),
        ("torchvision:CIFAR10@/data (test)", "torchvision:CIFAR10@/data"),
        ("sklearn:digits", "sklearn:digits"),
        ("/", "/"),
    ],
)
def test_data_is_called_by_its_own_name(name, expected):
    assert data_name(name) == expected


def test_labels_of_namesakes_hold_only_the_parts_that_differ():
    other = {**PREPROCESSING, "crop": [192, 192]}
    board = table([make("a", 80), make("a", 70, preprocessing=other)])
    assert labels(board) == ["a [crop 224]", "a [crop 192]"]
    plain = {**PREPROCESSING, "crop": None, "mean": [0.5, 0.5, 0.5]}
    board = table([make("a", 80), make("a", 70, preprocessing=plain)])
    assert labels(board) == ["a [crop 224, usual mean]", "a [no crop, mean 0.5]"]


def test_preprocessing_in_words():
    assert preprocessing_text(PREPROCESSING) == "resize 256 bilinear, crop 224"
    odd = {"resize": None, "crop": [10, 20], "interpolation": "nearest", "mean": [0.5], "std": [0.25], "bands": "RGBN"}
    assert preprocessing_text(odd) == "crop 10x20, mean 0.5, std 0.25, bands RGBN"
    assert preprocessing_text({}) == ""


def test_numbers_in_names_are_ordered_as_numbers():
    assert sorted(["k=200", "k=20", "k=3"], key=natural) == ["k=3", "k=20", "k=200"]


def test_only_metrics_of_one_unit_and_direction_are_averaged():
    """RankMe 19.0 and top-1 95.8 once gave 57.41."""
    rank = make("a", protocol="geometry", headline="rankme", metrics={"rankme": MetricValue(value=19.0)})
    error = make("a", protocol="linear", headline="ece", metrics={"ece": MetricValue(value=4.0)})
    records = [make("a", 95.8), rank, error]
    for other, unit in ((rank, "RankMe, in directions"), (error, "%, less is better")):
        with pytest.raises(UsageError) as caught:
            table([records[0], other], average=True)
        text = str(caught.value)
        assert other.headline in text and "top1" in text and unit in text and "%, more is better" in text
    assert table([records[0], rank]).averaged == 0
    second = change(make("a", 85.8, protocol="svm"), headline="mAP", metrics={"mAP": MetricValue(value=85.8)})
    assert table([records[0], second], average=True).rows[0].average == pytest.approx(90.8)
    heights = [
        make("a", headline="mae", metrics={"mae": MetricValue(value=value)}, data__test__fingerprint=name * 32)
        for name, value in (("a", 1.0), ("b", 100.0))
    ]
    with pytest.raises(UsageError, match="units of the labels"):
        table(heights, average=True)


def test_embeddings_that_are_paired_by_their_rows_are_said():
    def record(name, known_by):
        one = make(name)
        return dataclasses.replace(one, data=dataclasses.replace(one.data, known_by=known_by))

    for known_by, said in (("rows", True), ("ids", False)):
        notes = table([record("a.npz", known_by), record("b.npz", known_by)]).notes
        assert any("Features without ids" in note for note in notes) == said
    assert not any("without ids" in note for note in table([record("a.npz", "rows")]).notes)


def test_a_damaged_record_is_left_out_and_named(tmp_path, capsys):
    for name in ("a.torch", "b.torch"):
        records.write_without_scores(make(name), tmp_path)
    broken = sorted((tmp_path / "knn").glob("a.torch-*.json"))[0]
    broken.write_text('{"schema": 1')
    (tmp_path / "other.json").write_text("[]")
    board = make_leaderboard(tmp_path)
    assert len(board.rows) == 1
    assert [note.partition(" is ")[0] for note in board.notes if note.startswith("Left out")] == [
        f"Left out: {broken}",
        f"Left out: {tmp_path / 'other.json'}",
    ]
    write_board([tmp_path])
    printed = " ".join(capsys.readouterr().out.split())
    assert "b.torch" in printed and "Left out:" in printed and "is damaged" in printed
    with pytest.raises(ResultError, match="is damaged"):
        records.read_tree(tmp_path)
    for file in (tmp_path / "knn").glob("b.torch-*.json"):
        file.unlink()
    for opened in (make_leaderboard, lambda folder: write_board([folder])):
        with pytest.raises(ResultError, match="is damaged"):
            opened(tmp_path)


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
    lines = [line for line in (tmp_path / "board.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    assert len({line.count("|") for line in lines}) == 1 and "91.2" in lines[2]


def test_a_board_of_several_people_tells_who_measured_when_and_on_what(tmp_path):
    machine = Hardware(device="cuda (H200)", cpu="cpu", threads=4)
    found, board = columns(
        [make("a", by="Ana, x", hardware=machine), make("a", 70, "svm", by="Bo"), make("b")], ["run"]
    )
    assert found == {"date": ("2026-01-31",) * 2, "by": ("Ana, x; Bo", None), "device": ("cuda (H200)", None)}
    to_csv(board, tmp_path / "wide.csv")
    assert list(pandas.read_csv(tmp_path / "wide.csv")["by"].fillna("")) == ["Ana, x; Bo", ""]
    to_csv(board, tmp_path / "long.csv", form="long")
    long = pandas.read_csv(tmp_path / "long.csv")
    assert set(long.loc[long["protocol"] == "svm", "by"]) == {"Bo"}
    to_html(board, tmp_path / "board.html")
    assert "Ana, x; Bo" in (tmp_path / "board.html").read_text(encoding="utf-8")


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
    assert low.rows[0].flags == ("not clearly above untrained",)


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
    assert flags["low"] == ("not clearly above untrained",)
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
    (note,) = table([first, second]).disagreements
    assert note.endswith(": the metrics disagree on the best row: a by top1, b by macro_f1.")
    more = {
        "top1": MetricValue(value=80),
        "macro_f1": MetricValue(value=60),
        "balanced_accuracy": MetricValue(value=99),
    }
    (note,) = table(
        [make("a", metrics=first.metrics | {"balanced_accuracy": MetricValue(value=1)}), make("b", metrics=more)]
    ).disagreements
    assert note.endswith(": a by top1, b by balanced_accuracy and 1 more."), "by count, not a list"
    (note,) = table([first, make("a", metrics=second.metrics, layer="res2")]).disagreements
    assert note.endswith(": a avgpool by top1, a res2 by macro_f1.")
    assert table([make("a", 80), make("b", 90)]).disagreements == ()


def test_by_a_metric_of_unknown_direction_nothing_is_called_best():
    results = [
        make(n, metrics={"my_loss": MetricValue(value=v)}, headline="my_loss") for n, v in (("b", 2.0), ("a", 1.0))
    ]
    board = table(results)
    assert labels(board) == ["a", "b"] and not any(row.cells[0].best for row in board.rows)
    assert "the direction of my_loss is unknown" in board.verdicts[0]


def test_rows_of_one_name_are_told_apart_by_their_layers():
    def untrained(layer, protocol):
        return make("resnet18 untrained", 30, protocol, layer=layer, weights__untrained=True)

    assert "| layer |" in markdown(table([untrained("fpn", "svm"), untrained("res5avg", "knn")]))
    assert "| layer |" not in markdown(table([untrained("res5avg", "svm"), untrained("res5avg", "knn")]))
