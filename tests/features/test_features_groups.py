"""Columns of the data in a feature store's index.csv, and scores per group of embeddings that come with them."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.cli.main import main
from sslbench.data.labels import single_labels
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import RunSettings, evaluate_features, make_task
from sslbench.features.array import Features
from sslbench.features.external import FeaturePair, read_train_test
from sslbench.results.records import read_tree

RUN = RunSettings(device="cpu", workers=0, floors=False)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Forty bright and dark pictures from two sites, in a CSV; rows are not in the order of the ids."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    rows = []
    for i in rng.permutation(40).tolist():
        pixels = (rng.integers(0, 90, (8, 8, 3)) + 150 * (i % 2)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i:02d}.png")
        rows.append((f"{i:02d}.png", ("dark", "bright")[i % 2], ("north", "south", "")[(i // 2) % 3], i))
    with (tmp_path / "all.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "site", "number"), *rows])
    return {name: site for name, _, site, _ in rows}


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def extracted(*words):
    arguments = ["extract", "--weights", "pixels:4", "--data", "all.csv", "--store", "store", *words]
    assert run(*arguments, "--device", "cpu", "--workers", "0") == 0


def index():
    (file,) = Path("store").glob("*/index.csv")
    with file.open(newline="") as handle:
        return file, list(csv.DictReader(handle))


def test_extract_writes_the_columns_and_eval_scores_by_them(table, capsys):
    extracted("--groups", "site")
    file, rows = index()
    assert {row["id"]: row["site"] for row in rows} == table
    arguments = ["eval", "knn", "k=3", "--features", str(next(file.parent.glob("*.npy"))), "--labels", str(file)]
    assert run(*arguments, "--groups", "site", "--out", "r") == 0
    (result,) = read_tree("r")
    found = {group.name: group.metric.n for group in result.groups["site"]}
    assert set(found) == {"north", "south", "(empty)"}
    assert sum(found.values()) == result.data.test.n_used == 8
    assert "north" in capsys.readouterr().out


def test_columns_are_added_to_features_that_are_there(table, capsys):
    extracted()
    file, before = index()
    assert "site" not in before[0]
    stamp = next(file.parent.glob("*.npy")).stat().st_mtime_ns
    extracted("--groups", "site")
    _, after = index()
    assert [{**row, "site": table[row["id"]]} for row in before] == after
    extracted()
    assert index()[1] == after, "columns that are there stay"
    assert next(file.parent.glob("*.npy")).stat().st_mtime_ns == stamp


def test_images_that_were_left_out_have_no_line(table):
    Path("07.png").write_bytes(b"")
    extracted("--groups", "site", "--on-error", "skip")
    _, rows = index()
    assert len(rows) == 39 and {row["id"]: row["site"] for row in rows} == {
        k: v for k, v in table.items() if k != "07.png"
    }


def test_a_column_that_is_not_there_is_named_with_the_remedy(table, capsys):
    extracted()
    file, _ = index()
    arguments = ["eval", "knn", "--features", str(next(file.parent.glob("*.npy"))), "--out", "r"]
    assert run(*arguments, "--labels", str(file), "--groups", "site") == 2
    text = capsys.readouterr().err
    assert "has no column 'site'" in text and "sslbench extract --groups site" in text
    assert run(*arguments, "--groups", "site") == 2
    assert "needs --labels" in capsys.readouterr().err


def made(tmp_path, groups, n=20):
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    lines = [(f"{(i * 7) % n:03d}", "ab"[i % 2], groups[i]) for i in range(n)]
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label", "site"), *lines])
    return read_train_test(
        *(tmp_path / "x.npy", tmp_path / "x.csv", None, None),
        label_column=None,
        test_fraction=0.5,
        seed=0,
        attribute_columns=("site",),
    ), {name: site for name, _, site in lines}


def test_groups_follow_the_ids_and_not_the_lines(tmp_path):
    pair, sites = made(tmp_path, [str(i % 3) for i in range(20)])
    for part in (pair.train, pair.test, pair.whole):
        assert part.attributes["site"] == tuple(sites[name] for name in part.ids)
    assert pair.test.select(np.array([2, 0])).attributes["site"] == tuple(sites[pair.test.ids[i]] for i in (2, 0))


def test_columns_that_divide_into_nothing_are_refused(tmp_path):
    pair, _ = made(tmp_path, [str(i) for i in range(20)])
    with pytest.raises(DataError, match=r"x\.npy: the column 'site' has 10 different values among 10 samples"):
        evaluate_features(pair, [make_task("knn", {"k": (1,)})], RUN, out=tmp_path / "r", command="test")
    assert not (tmp_path / "r").exists()


def test_a_table_without_the_column_is_refused_by_extract(table):
    with pytest.raises(UsageError, match="no column 'sitte'"):
        open_data("all.csv", attribute_columns=("sitte",))


def test_features_without_columns_are_as_before():
    features = Features(np.zeros((2, 3)), single_labels(["a", "b"]), ("x", "y"))
    assert features.attributes == {} and features.select(np.array([1])).attributes == {}


def test_rows_of_a_table_of_labels_belong_together_where_a_column_says_so(tmp_path):
    made(tmp_path, [str(i // 4) for i in range(20)])
    given = {"label_column": None, "test_fraction": 0.4, "seed": 0}
    plain = read_train_test(tmp_path / "x.npy", tmp_path / "x.csv", None, None, **given)
    pair = read_train_test(tmp_path / "x.npy", tmp_path / "x.csv?group=site", None, None, **given)
    assert plain.train.groups is None and "by site" in pair.how
    sites = {name: site for name, _, site in list(csv.reader((tmp_path / "x.csv").open()))[1:]}
    own = [{sites[name] for name in part.ids} for part in (pair.train, pair.test)]
    assert own[0] and own[1] and not own[0] & own[1]
    for part in (pair.train, pair.test):
        for i, j in ((0, 1), (0, len(part) - 1), (2, 3)):
            assert (part.groups[i] == part.groups[j]) == (sites[part.ids[i]] == sites[part.ids[j]])
    (result,) = evaluate_features(pair, [make_task("knn", {"k": (1,)})], RUN, out=tmp_path / "r", command="test")
    assert (result.data.train.groups, result.data.test.groups) == (len(own[0]), len(own[1]))
    for option, words in (
        ("?group=place", "no column 'place'"),
        ("?groups=site", r"The only option is \?group=COLUMN"),
    ):
        with pytest.raises(UsageError, match=words):
            read_train_test(tmp_path / "x.npy", tmp_path / f"x.csv{option}", None, None, **given)


@pytest.mark.parametrize(("value", "said"), [(0.0, "same features, all zeros"), (0.5, "same features, so")])
def test_features_without_differences_are_said(tmp_path, value, said, caplog):
    x = np.full((12, 3), value, np.float32)
    labels = single_labels(["a", "b"] * 6)
    train, test = (Features(x, labels, tuple(f"{part}{i}" for i in range(12))) for part in ("r", "s"))
    pair = FeaturePair(train, test, how="", name="x", data="x", known_by="ids")
    (result,) = evaluate_features(pair, [make_task("knn", {"k": (1,)})], RUN, out=tmp_path / "r", command="test")
    (note,) = (note for note in result.notes if "same features" in note)
    assert said in note and "train and of test" in note and note in caplog.text
