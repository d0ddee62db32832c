"""Several labels, rare classes and numbers are recognised, scored as their field does, and written per image."""

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics

from sslbench.results import records

OWN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--workers", "0", "--no-floors")


@pytest.fixture
def table(world):
    """Writes labels.csv of all images: each gets what the function gives for its number and colour."""
    paths = sorted((world / "photos").rglob("*.png"))

    def write(columns, row):
        with Path("labels.csv").open("w", newline="") as file:
            lines = [(path, *row(i, path.parent.name)) for i, path in enumerate(paths)]
            csv.writer(file).writerows([("path", *columns), *lines])
        return ("--data", "labels.csv")

    return write


def only():
    [record] = records.read_tree(Path("results"))
    return record, records.read_scores(records.scores_path(record))


@pytest.mark.parametrize("layout", ["joined", "columns"])
def test_several_labels(table, sslbench, layout):
    def joined(i, colour):
        return (f"{colour};even" if i % 2 else colour,)

    def columns(i, colour):
        return (*(int(colour == name) for name in ("blue", "green", "red")), i % 2)

    if layout == "joined":
        words = (*table(("tags",), joined), "--label-col", "tags")
    else:
        words = (*table(("blue", "green", "red", "even"), columns), "--label-col", "blue,green,red,even")
    code, out, err = sslbench("eval", "knn", "k=5", *OWN, *words)
    assert code == 0 and "mAP" in out, err
    record, scores = only()
    assert record.data.labels == "multi" and set(record.per_class) == {"blue", "green", "red", "even"}
    assert {"mAP", "micro_f1", "macro_f1", "macro_auroc"} <= set(record.metrics)
    true = scores.labels == 1
    area = metrics.roc_auc_score(true, scores.scores, average="macro")
    assert record.metrics["macro_auroc"].value / 100 == pytest.approx(area, abs=1e-9)
    precision = metrics.average_precision_score(true, scores.scores, average="macro")
    assert record.metrics["mAP_noninterpolated"].value / 100 == pytest.approx(precision, abs=1e-9)
    [written] = Path("results").rglob("*.predictions.csv")
    rows = list(csv.DictReader(written.read_text().splitlines()))
    assert {"id", "labels", "score:even"} <= set(rows[0]) and len(rows) == record.data.test.n_used


def test_a_class_without_positives_in_test_is_no_number(world, sslbench):
    folder = Path("photos")
    for part in ("train", "test"):
        with Path(f"{part}.csv").open("w", newline="") as file:
            rows = [
                (path, "blue;rare" if part == "train" and path.parent.name == "blue" else f"{path.parent.name};all")
                for path in sorted((folder / part).rglob("*.png"))
            ]
            csv.writer(file).writerows([("path", "tags"), *rows])
    words = ("--data", "train.csv", "--test-data", "test.csv", "--label-col", "tags")
    code, _, err = sslbench("eval", "knn", "k=5", *OWN, *words)
    assert code == 0, err
    record, _ = only()
    assert record.per_class["rare"] is None
    assert "1 class is in train.csv but not in test.csv: rare" in err


def test_one_in_a_hundred_is_scored_by_more_than_accuracy(tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = (np.arange(1000) % 100 == 0).astype(np.int64)
    np.save("y.npy", y)
    np.save("x.npy", (rng.normal(size=(1000, 4)) + 2 * y[:, None]).astype(np.float32))
    code, out, err = sslbench("eval", "linear", "--features", "x.npy", "--labels", "y.npy")
    assert code == 0, err
    record, scores = only()
    assert record.headline == "balanced_accuracy"
    assert out.index("balanced_accuracy") < out.index("macro_auroc") < out.index("top1")
    assert "imbalanced: 792 images of '0', 8 of '1'" in err
    predicted = scores.scores.argmax(axis=1)
    expected = metrics.balanced_accuracy_score(scores.labels, predicted)
    assert record.metrics["balanced_accuracy"].value / 100 == pytest.approx(expected, abs=1e-9)
    area = metrics.roc_auc_score(scores.labels, scores.scores[:, 1] - scores.scores[:, 0])
    assert record.metrics["macro_auroc"].value / 100 == pytest.approx(area, abs=1e-6)


def test_numbers_are_ridge_regression(table, sslbench):
    values = {"blue": 1, "green": 2, "red": 3}
    words = (*table(("weight",), lambda i, colour: (values[colour] + i / 100,)), "--value-col", "weight")
    code, out, err = sslbench("eval", "linear", *OWN, *words)
    assert code == 0 and "r2" in out and "alpha" in out, err
    record, scores = only()
    expected = metrics.r2_score(scores.labels, scores.scores)
    factor = record.metrics["r2"].value / expected
    assert record.headline == "r2" and (factor == pytest.approx(100) or factor == pytest.approx(1))
