"""A record says all that a number depends on; a table shares a column only where numbers compare, and shows holes."""

import csv
import json
from pathlib import Path

import pytest
from helpers.record_trees import make

from sslbench.results import records

EVAL = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos", "--workers", "0")


def change(file, **values):
    """Write other values into a record: `a__b=1` changes content["a"]["b"]."""
    content = json.loads(file.read_text())
    for key, value in values.items():
        *folders, last = key.split("__")
        inner = content
        for folder in folders:
            inner = inner[folder]
        inner[last] = value
    content["checksum"] = ""
    file.write_text(json.dumps(content))


@pytest.fixture
def board(world, sslbench):
    """Records of two networks by knn, and of one of them by lsr."""
    assert sslbench("eval", "knn", "lsr", *EVAL, "knn.k=3", "--no-floors")[0] == 0
    assert sslbench("eval", "knn", *EVAL, "k=3", "--no-floors", "--precision", "bf16", "--name", "second")[0] == 0
    return world


def test_one_json_holds_everything_that_the_number_depends_on(board):
    content = json.loads(next(Path("results/knn").glob("w.pth-*.json")).read_text())
    assert content["metrics"]["top1"]["low"] <= content["metrics"]["top1"]["value"]
    assert content["protocol"]["name"] == "knn" and content["protocol"]["version"] >= 1
    assert len(content["weights"]["sha256"]) == 64
    assert content["data"]["train"]["fingerprint"] and content["data"]["test"]["fingerprint"]
    assert content["preprocessing"]["resize"] == [16, 16] and content["seed"] == 0
    assert {"torch", "numpy", "sslbench", "python"} <= set(content["versions"])
    assert {"hardware", "timings", "working_folder", "selected", "created"} <= set(content)


def test_a_hole_is_a_hole_in_every_format_and_no_mean_goes_over_it(tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    for name, top1, protocol in (("first", 80.0, "knn"), ("first", 20.0, "lsr"), ("second", 60.0, "knn")):
        records.write_without_scores(make(name, top1, protocol), Path("results"))
    words = ("--csv", "b.csv", "--markdown", "b.md", "--latex", "b.tex", "--html", "b.html", "--average")
    code, _, err = sslbench("leaderboard", "results", *words)
    assert code == 0, err
    with Path("b.csv").open() as file:
        rows = {row["weights"]: row for row in csv.DictReader(file)}
    assert (rows["first"]["lsr/photos"], rows["second"]["lsr/photos"]) == ("20", "")
    assert (rows["first"]["average"], rows["second"]["average"]) == ("80", "60"), "over knn alone"
    for name in ("b.md", "b.tex", "b.html"):
        assert "second" in Path(name).read_text()


def test_versions_of_a_protocol_are_refused_with_both_and_never_share_a_column(board, sslbench):
    first, second = (next(Path("results/knn").glob(f"{name}-*.json")) for name in ("w.pth", "second"))
    version = json.loads(second.read_text())["protocol"]["version"]
    change(second, protocol__version=version + 1)
    code, out, err = sslbench("compare", first, second)
    assert (code, out) == (1, "") and f"{version} / {version + 1}" in err
    sslbench("leaderboard", "results", "--csv", "b.csv")
    header = Path("b.csv").read_text().splitlines()[0]
    assert {f"knn/photos [v{version}]", f"knn/photos [v{version + 1}]"} <= set(header.split(","))
