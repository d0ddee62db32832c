"""Published rows: beside ours, never compared, and with their source wherever they are shown."""

import dataclasses

import pandas
import pytest
from helpers.record_trees import make

from sslbench.leaderboard import Published, table, to_csv, with_published
from sslbench.leaderboard.html import how_made
from sslbench.leaderboard.tables import markdown
from sslbench.results import BenchmarkUsed

OURS = BenchmarkUsed(name="linear/imagenet1k", version=3, sha256="")


def row(value, weights="SimCLR", benchmark="linear/imagenet1k", metric="top1", backbone="resnet50"):
    return Published(benchmark, weights, backbone, metric, value, "their linear", "Paper (2020)", "table 1")


def board():
    ours = [make(name, value, "linear", benchmark=OURS) for name, value in (("a", 60.0), ("b", 50.0))]
    return table([*ours, make("a", 40.0, floors={"chance": {"top1": 1.0}})], average=True)


def test_they_stand_between_ours_and_the_floors_best_first():
    shown = with_published(board(), [row(55.0), row(99.0, "SwAV"), row(55.5, "SwAV", backbone="resnet50w2")])
    assert [(r.label, r.kind) for r in shown.rows] == [
        *(("a", "result"), ("b", "result")),
        *(("SwAV (resnet50)", "published"), ("SwAV (resnet50w2)", "published"), ("SimCLR (resnet50)", "published")),
        ("chance", "floor"),
    ]
    assert shown.rows[2].flags == ("published: their linear",) and "not compared" in shown.notes[-1]


def test_they_are_never_best_tied_or_averaged_and_have_no_interval():
    shown = with_published(board(), [row(99.0)])
    cells = [cell for r in shown.rows if r.published for cell in r.cells if cell is not None]
    assert len(cells) == 1 and not cells[0].best and cells[0].tied is None and cells[0].metrics["top1"].low is None
    assert [r.average for r in shown.rows if r.published] == [None]
    ours, before = shown.rows[0], board().rows[0]
    assert ours == before, "nothing about our own rows changes"
    assert "**99.00**" not in markdown(shown) and "| 99.00 |" in markdown(shown)


def test_only_the_same_benchmark_and_metric_are_beside():
    others = [row(70.0, benchmark="linear/cifar10"), row(71.0, metric="top5"), row(72.0, benchmark="knn/imagenet1k")]
    shown = with_published(board(), others)
    assert shown.rows == board().rows and "No published numbers" in shown.notes[-1]


@pytest.mark.parametrize("fingerprint", ["00" * 16, "ff" * 16])
def test_they_stand_in_the_column_of_the_benchmarks_own_data(fingerprint):
    """Another data set measured under the benchmark's name has a column of its own, before or after it."""
    own = make("a", 60.0, "linear", benchmark=OURS)
    changed = dataclasses.replace(OURS, modified=True)
    other = make("a", 95.0, "linear", benchmark=changed, data__test__fingerprint=fingerprint)
    shown = with_published(table([own, other]), [row(55.0)])
    ours, published = shown.rows
    beside = next(i for i, cell in enumerate(published.cells) if cell is not None)
    assert ours.cells[beside].metrics["top1"].value == 60.0


def test_one_source_with_two_benchmarks_is_one_row():
    knn = BenchmarkUsed(name="knn/imagenet1k", version=1, sha256="")
    both = table([make("a", 60.0, "linear", benchmark=OURS), make("a", 50.0, benchmark=knn)])
    shown = with_published(both, [row(55.0), row(45.0, benchmark="knn/imagenet1k")])
    (published,) = [r for r in shown.rows if r.published]
    assert [cell.metrics["top1"].value for cell in published.cells] == [45.0, 55.0]


def test_the_long_csv_names_the_source_and_claims_nothing_of_ours(tmp_path):
    to_csv(with_published(board(), [row(55.0)]), tmp_path / "long.csv", form="long")
    frame = pandas.read_csv(tmp_path / "long.csv")
    (line,) = frame[frame.kind == "published"].to_dict("records")
    assert (line["value"], line["source"], line["protocol"]) == (55.0, "Paper (2020): table 1", "their linear")
    assert pandas.isna([line[n] for n in ("low", "settings", "n_train", "test_fingerprint", "protocol_version")]).all()
    assert line["benchmark"] == "linear/imagenet1k"


def test_how_it_was_made_is_its_source():
    shown = with_published(board(), [row(55.0)])
    published = next(r for r in shown.rows if r.published)
    cell = next(cell for cell in published.cells if cell is not None)
    assert how_made(published, cell) == [
        [("published in", "Paper (2020)"), ("where", "table 1"), ("protocol", "their linear")]
    ]
