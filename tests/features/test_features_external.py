"""Labels of embeddings made elsewhere: several per row, parts named by a column."""

import csv

import numpy as np
import pytest

import sslbench
from sslbench.data.open import open_data
from sslbench.data.splits import match_classes
from sslbench.errors import DataError, ResultError
from sslbench.evaluation.request import make_task
from sslbench.evaluation.run import describe_embeddings
from sslbench.evaluation.settings import RunSettings
from sslbench.features.external import read_in_memory, read_train_test
from sslbench.targets.multilabel import MultiLabel


def pair(folder, train, test=None, column=None):
    """Write features and labels (rows of the cells of `column`) and read them."""
    paths = []
    for name, rows in (("train", train), ("test", test)):
        if rows is None:
            paths += [None, None]
            continue
        paths += [folder / f"{name}.npy", folder / f"{name}.csv"]
        np.save(paths[-2], np.arange(2.0 * len(rows), dtype=np.float32).reshape(-1, 2))
        with paths[-1].open("w", newline="") as file:
            csv.writer(file).writerows([("label", *([column] if column else [])), *rows])
    return read_train_test(*paths, label_column=None, test_fraction=0.5, seed=0)


def test_the_identity_of_samples_stays_the_same_in_later_versions(tmp_path):
    found = pair(tmp_path, [["a"], ["b"]] * 3, [["a"], ["b"]])
    assert found.fingerprints == ("c972f032266cdfdc33537d7887043385", "a29a7d98d63beb70ce9acc86acd2dfb8")


def test_cells_with_several_labels_are_not_classes_of_their_own(tmp_path):
    read = pair(tmp_path, [["cat;dog"], ["dog"], ["cat;?bird"], ["bird"]], [["dog"], ["cat|dog"]])
    assert read.train.target.name == read.test.target.name == MultiLabel.name
    assert read.train.target.classes == read.test.target.classes == ("bird", "cat", "dog")
    assert read.train.target.values.tolist() == [[0, 1, 1], [0, 0, 1], [-1, 1, 0], [1, 0, 0]]
    # bird does not occur in the table of test: ignored, as `match_classes` has it for tables of images.
    assert read.test.target.values.tolist() == [[-1, 0, 1], [-1, 1, 1]]


def test_several_labels_are_matched_as_those_of_tables_of_images(tmp_path):
    cells = [["cat;dog"], ["dog"], ["cat;?bird"], ["bird"]], [["dog"], ["cat|dog"]]
    read = pair(tmp_path, *cells)
    sources = []
    for name, rows in zip(("train", "test"), cells, strict=True):
        lines = ["path,label", *(f"{name}{i}.npy,{row[0]}" for i, row in enumerate(rows))]
        for i in range(len(rows)):
            np.save(tmp_path / f"{name}{i}.npy", np.zeros((4, 4, 3), np.uint8))
        (tmp_path / f"images_{name}.csv").write_text("\n".join(lines))
        sources.append(open_data(str(tmp_path / f"images_{name}.csv"))["all"])
    for ours, theirs in zip((read.train, read.test), match_classes(*sources), strict=True):
        assert ours.target.classes == theirs.target.classes
        np.testing.assert_array_equal(ours.target.values, theirs.target.values)


def test_one_cell_with_several_labels_decides_for_both_tables(tmp_path):
    read = pair(tmp_path, [["cat"], ["dog"]], [["cat;dog"]])
    assert read.train.target.values.tolist() == [[1, 0], [0, 1]]
    assert read.test.target.values.tolist() == [[1, 1]]


def test_other_names_of_classes_are_other_data(tmp_path):
    named = [pair(tmp_path, [["a"], [other]] * 3, [["a"], [other]]).fingerprints for other in "bc"]
    assert not set(named[0]) & set(named[1])


def test_rows_without_a_label_are_refused_with_the_first_line(tmp_path):
    with pytest.raises(DataError, match=r"train.csv: 2 rows have no label, first line 3"):
        pair(tmp_path, [["a"], [""], ["b"], [""], ["a"], ["b"]])


def test_labels_that_train_lacks_are_refused(tmp_path):
    with pytest.raises(DataError, match="lacks: bird"):
        pair(tmp_path, [["cat;dog"]], [["bird"]])


def test_a_class_that_only_the_rows_of_test_have_is_refused(tmp_path):
    rows = [["cat", "train"], ["dog", "train"], ["cat", "test"], ["bird", "test"]]
    with pytest.raises(DataError, match="lacks: bird"):
        pair(tmp_path, rows, column="split")


def test_val_is_scored_where_there_is_no_test(tmp_path):
    rows = [["cat", "train"], ["dog", "Train"], ["cat", "validation"], ["dog", "val"]]
    read = pair(tmp_path, rows, column="split")
    assert read.train.ids == ("000000000", "000000001") and read.test.ids == ("000000002", "000000003")
    assert read.whole is None and "val is scored" in read.how


def test_renamed_class_folders_in_ids_move_no_part(tmp_path):
    """Draws follow the file names, as those of images do."""
    files = [f"{file:02d}.png" for file in np.random.default_rng(0).permutation(20)]
    found = []
    for folders in (("ant", "bee"), ("b", "a")):
        rows = [[folders[i % 2], f"{folders[i % 2]}/{file}"] for i, file in enumerate(files)]
        read = pair(tmp_path, rows, column="id")
        drawn = [[part.ids[row].rpartition("/")[2] for row in part.order] for part in (read.train, read.test)]
        found.append((*drawn, *(sorted(part.x[:, 0]) for part in (read.train, read.test))))
    assert found[0] == found[1] and found[0][0] == sorted(found[0][0])


def test_rows_of_other_parts_are_counted(tmp_path):
    rows = [["cat", "train"], ["cat", "val"], ["cat", "test"], ["cat", ""]]
    read = pair(tmp_path, rows, column="split")
    assert read.test.ids == ("000000002",)
    assert read.how == "the split column of the labels; not used: val (1 rows), (empty) (1 rows)"


def test_parts_without_train_and_test_are_refused(tmp_path):
    with pytest.raises(DataError, match="names the parts a, b"):
        pair(tmp_path, [["cat", "a"], ["cat", "b"]], column="split")


def test_one_part_is_split(tmp_path):
    read = pair(tmp_path, [["cat", "all"], ["cat", "all"]], column="split")
    assert read.whole is not None and len(read.train) == len(read.test) == 1


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_record_of_one_part_names_the_data_of_that_part(tmp_path, part):
    read = pair(tmp_path, [["cat"], ["dog"], ["cat"]], [["dog"], ["cat"]])
    wanted = {"train": (read.fingerprints[0], 3), "test": (read.fingerprints[1], 2)}[part]
    assert read.fingerprints[0] != read.fingerprints[1]
    data = describe_embeddings(read, make_task("geometry", {"part": part}), RunSettings(device="cpu"), "")[0].data
    assert [(used.fingerprint, used.n) for used in (data.train, data.test)] == [wanted, wanted]
    assert data.how == f"{part} alone" and data.test.name == f"{read.data} ({part})"


def test_parts_may_share_ids_and_columns_that_name_rows_are_no_features(tmp_path, caplog):
    """Class folders below train/ and test/ often hold files of the same names."""
    lines = [",image_id,id,label,split,a,b"]
    for row, (part, label) in enumerate((p, c) for p in ("train", "test") for c in "xyxy"):
        lines.append(f"{row},{row},{label}/{row % 4}.png,{label},{part},{row}.5,{row % 2}.0")
    table = tmp_path / "t.csv"
    table.write_text("\n".join(lines) + "\n")
    caplog.set_level("INFO", "sslbench")
    found = read_train_test(table, table, None, None, label_column=None, test_fraction=0.5, seed=0)
    assert found.train.ids == found.test.ids == ("x/0.png", "x/2.png", "y/1.png", "y/3.png")
    assert found.train.x.tolist() == [[0.5, 0.0], [2.5, 0.0], [1.5, 1.0], [3.5, 1.0]]
    assert found.test.x[:, 0].tolist() == [4.5, 6.5, 5.5, 7.5]
    assert "2 features, the columns 'a' to 'b'; not taken: without a name, image_id, id, label, split" in caplog.text


UNUSABLE = {
    "one class": (np.zeros(60, int), "one class only"),
    "no sample of any class": (np.zeros((60, 2), int), "no image of any class"),
    "a class per row": (np.arange(60), "too few of each class"),
    "one value": (np.full(60, 0.5), "same value"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_labels_of_features_are_checked_like_those_of_images(case, tmp_path):
    labels, words = UNUSABLE[case]
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    protocol = {"protocols": "linear", "settings": {}} if labels.dtype == float else {}
    with pytest.raises(DataError, match=words):
        sslbench.evaluate(None, (x, labels), out=tmp_path, **{**QUICK, **protocol})


QUICK = {"protocols": "knn", "settings": {"knn": {"k": 3}}, "device": "cpu", "floors": False, "overlaps": False}


class TestIdentity:
    """Embeddings of several networks are those of the same samples by their ids and labels, not by the features."""

    @pytest.fixture
    def two(self):
        rng = np.random.default_rng(0)
        y = np.arange(300) % 3
        return [(np.eye(3)[y] * 4 + rng.normal(0, noise, (300, 3))).astype(np.float32) for noise in (0.5, 3.0)], y

    def test_two_embeddings_are_compared_and_share_a_column(self, two, tmp_path):
        (good, poor), y = two
        a, b = (
            sslbench.evaluate(None, (x, y), name=name, out=tmp_path, **QUICK)[0]
            for x, name in ((good, "good"), (poor, "poor"))
        )
        assert sslbench.compare(a, b).verdict == "A better"
        board = sslbench.make_leaderboard(tmp_path)
        assert len(board.columns) == 1 and [row.weights for row in board.rows] == ["good", "poor"]
        assert a.weights.sha256 != b.weights.sha256 and a.id != b.id
        assert a.data.test.name == b.data.test.name == "labels in memory (test)" and a.data.known_by == "rows"
        (other,) = sslbench.evaluate(None, (good, y[::-1].copy()), name="good", out=tmp_path, **QUICK)
        with pytest.raises(ResultError, match="test data: labels in memory"):
            sslbench.compare(a, other)

    def test_rows_with_ids_may_come_in_any_order(self, two, tmp_path):
        (good, poor), y = two
        order = np.random.default_rng(1).permutation(300)
        ids = np.array([f"{i}.png" for i in range(300)])
        np.savez(tmp_path / "a.npz", features=good, label=y, id=ids)
        np.savez(tmp_path / "shuffled.npz", features=good[order], label=y[order], id=ids[order])
        np.savez(tmp_path / "b.npz", features=poor[order], label=y[order], id=ids[order])
        np.savez(tmp_path / "others.npz", features=good, label=y, id=ids[::-1])
        a, shuffled, b, others = (
            read_train_test(path, path, None, None, label_column=None, test_fraction=0.2, seed=0)
            for path in (tmp_path / f"{name}.npz" for name in ("a", "shuffled", "b", "others"))
        )
        assert a.fingerprints == b.fingerprints == shuffled.fingerprints and a.known_by == "ids"
        assert a.features_sha256 == shuffled.features_sha256 != b.features_sha256
        assert a.test.ids == b.test.ids and a.fingerprints[0] != a.fingerprints[1]
        assert not set(a.fingerprints) & set(others.fingerprints)

    def test_without_labels_nothing_but_the_features_tells_the_samples(self, two):
        a, b = (read_in_memory((x, None), None, name="x", test_fraction=0.2, seed=0) for x in two[0])
        assert a.known_by == "features" and a.fingerprints != b.fingerprints


def test_the_same_features_as_train_and_test_are_refused_under_any_name(tmp_path):
    x, labels = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32), ["a", "b"] * 3
    copy = x.copy()
    with pytest.raises(DataError, match="the rows of test are those of train"):
        read_in_memory((x, labels), (copy, labels), name="x", test_fraction=0.5, seed=0)
    copy[-1] += 1
    assert len(read_in_memory((x, labels), (copy, labels), name="x", test_fraction=0.5, seed=0).test) == 6
    paths = [tmp_path / name for name in ("a.npy", "a.csv", "b.npy")]
    np.save(paths[0], x)
    np.save(paths[2], x)
    paths[1].write_text("\n".join(["label", *labels]))
    for test in (paths[0], paths[2]):
        with pytest.raises(DataError, match=f"a.npy against {test.name}: the rows of test"):
            read_train_test(paths[0], paths[1], test, paths[1], label_column=None, test_fraction=0.5, seed=0)


def test_labels_with_decimals_name_the_option_for_numbers(tmp_path, caplog):
    with caplog.at_level("WARNING", "sslbench"):
        pair(tmp_path, [["0.5"], ["1.25"], ["0.5"], ["1.25"]])
    assert "--value-col 'label'" in caplog.text
