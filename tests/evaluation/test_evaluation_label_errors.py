"""Labels that are probably wrong: planted ones are found, with their true class, and drawn."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sslbench.data.labels import single_labels
from sslbench.errors import DataError
from sslbench.evaluation.label_errors import label_errors
from sslbench.features.store import StoredPair


class Part:
    """A part of a data set without images."""

    name, rank, groups = "made", None, None

    def __init__(self, labels, groups=None):
        self.target = single_labels(labels)
        self.ids = tuple(f"{i:04}" for i in range(len(labels)))
        self.attributes, self.groups = {}, groups


def made(n, seed, wrong=0):
    """Returns features of three classes that hardly overlap, and labels of which the first `wrong` are others."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % 3
    x = (3 * np.eye(3)[truth] + 0.4 * rng.standard_normal((n, 3))).astype(np.float32)
    labels = np.where(np.arange(n) < wrong, (truth + 1) % 3, truth)
    return x, [f"class {label}" for label in labels], [f"class {label}" for label in truth]


def test_planted_errors_of_both_parts_are_found_with_their_true_class_and_nothing_else(monkeypatch):
    monkeypatch.setattr("sslbench.evaluation.label_errors.source_groups", lambda source: source.groups)
    monkeypatch.setattr("sslbench.evaluation.label_errors.match_classes", lambda train, test: (train, test))
    (x, labels, truth), (x_test, labels_test, truth_test) = made(150, 0, 9), made(60, 1, 4)
    found = label_errors(Part(labels), Part(labels_test), StoredPair(x, x_test, "made"))
    planted = {("train", i) for i in range(9)} | {("test", i) for i in range(4)}
    assert {(e.part, e.row) for e in found} <= planted and len(found) >= 11
    for error in found:
        own, true = (labels, truth) if error.part == "train" else (labels_test, truth_test)
        assert (error.label, error.suggested) == (own[error.row], true[error.row])
        assert error.of_label < error.of_suggested
    margins = [error.of_label - error.of_suggested for error in found]
    assert margins == sorted(margins)


def test_images_of_a_group_do_not_confirm_a_wrong_label_of_each_other(monkeypatch):
    monkeypatch.setattr("sslbench.evaluation.label_errors.source_groups", lambda source: source.groups)
    monkeypatch.setattr("sslbench.evaluation.label_errors.match_classes", lambda train, test: (train, test))
    x, labels, _ = made(150, 0)
    # Five copies of one image of class 0 with the label 1, far from all others on an axis of their own.
    copies = np.concatenate([np.tile([[3.0, 0, 0, 9]], (5, 1)), np.pad(x, ((0, 0), (0, 1)))]).astype(np.float32)
    all_labels = ["class 1"] * 5 + labels
    groups = np.concatenate([np.zeros(5), np.arange(1, 151)]).astype(np.int64)
    x_test, labels_test, _ = made(30, 2)
    stored = StoredPair(copies, np.pad(x_test, ((0, 0), (0, 1))), "made")
    rows = {e.row for e in label_errors(Part(all_labels, groups), Part(labels_test), stored) if e.part == "train"}
    assert rows >= set(range(5))


def test_labels_without_meaning_are_suspected_as_often_in_train_as_in_test_and_planted_ones_at_chance(monkeypatch):
    """The probe of a fold fits 200 features to labels by heart, so images that it was trained on would not be found."""
    monkeypatch.setattr("sslbench.evaluation.label_errors.source_groups", lambda source: source.groups)
    monkeypatch.setattr("sslbench.evaluation.label_errors.match_classes", lambda train, test: (train, test))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 300, 200)).astype(np.float32)
    parts = [Part([f"class {label}" for label in rng.permutation(np.arange(300) % 3)]) for _ in x]
    found = label_errors(*parts, StoredPair(*x, "made"))
    train = sum(error.part == "train" for error in found)
    planted = sum(error.row < 100 for error in found)  # any third of the images
    # Standard deviations of a difference of two numbers of 300, at most, and of a share of all that are found.
    assert len(found) > 100 and abs(2 * train - len(found)) < 4 * np.sqrt(150)
    assert abs(planted - len(found) / 3) < 4 * np.sqrt(len(found) * 2 / 9)


def test_features_that_are_no_numbers_are_refused_in_both_parts(monkeypatch):
    monkeypatch.setattr("sslbench.evaluation.label_errors.source_groups", lambda source: source.groups)
    monkeypatch.setattr("sslbench.evaluation.label_errors.match_classes", lambda train, test: (train, test))
    (x, labels, _), (x_test, labels_test, _) = made(30, 0), made(15, 1)
    for part in (x, x_test):
        part[3, 1], kept = np.nan, part[3, 1]
        with pytest.raises(DataError, match="finite"):
            label_errors(Part(labels), Part(labels_test), StoredPair(x, x_test, "made"))
        part[3, 1] = kept


def test_check_data_writes_and_draws_them_and_needs_features_of_classes(tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    for part, n, more in (("train", 12, 0), ("val", 6, 20)):
        for label, level in {"dark": 40 + more, "light": 200 + more}.items():
            for i in range(n):
                folder = Path("photos", part, "light" if (part, label, i) == ("train", "dark", 0) else label)
                folder.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (level + i, level, level)).save(folder / f"{label}{i}.png")
    words = ("check-data", "photos", "--near-copies", "none", "--store", "store", "--label-errors", "out/errors.csv")
    code, out, err = sslbench(*words)
    assert (code, out) == (2, "") and "store has no features of all images" in err and "extract" in err
    assert not Path("out").exists()
    assert sslbench("extract", "--weights", "pixels", "--data", "photos", "--store", "store")[0] == 0
    code, out, err = sslbench(*words)
    assert code == 0 and "1 of 36 labels are probably wrong" in out and "light/dark0.png: light, or dark" in out, err
    table = pd.read_csv("out/errors.csv")
    assert table[["part", "id", "label", "suggested"]].to_numpy().tolist() == [
        ["train", "light/dark0.png", "light", "dark"]
    ]
    assert Path(table.path[0]).exists() and Image.open("out/errors.png").size[0] > 0


@pytest.mark.parametrize("flag", [["--boxes"], ["--label-maps"]])
def test_other_checks_refuse_it(tmp_path, monkeypatch, sslbench, flag):
    monkeypatch.chdir(tmp_path)
    Path("photos/images").mkdir(parents=True)
    code, out, err = sslbench("check-data", "photos", *flag, "--label-errors", "e.csv")
    assert code != 0 and out == "" and not Path("e.csv").exists(), err
