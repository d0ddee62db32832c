"""What may stand in one column, what may not, and what a reader is told about it."""

import dataclasses
import itertools
import math
import random

import pytest
from helpers.record_trees import PREPROCESSING, body, change, labels, make
from hypothesis import given
from hypothesis import strategies as st

from sslbench.api import make_leaderboard
from sslbench.cli.commands.leaderboard import write_board
from sslbench.errors import ResultError, UsageError
from sslbench.evaluation.trainings import together
from sslbench.identity import comparability_key
from sslbench.leaderboard import table
from sslbench.leaderboard.columns import data_name, natural, preprocessing_text
from sslbench.leaderboard.model import value
from sslbench.results import BenchmarkUsed, ExcludedImage, MetricValue, records


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
