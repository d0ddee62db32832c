"""VISSL's lists of images and labels: .npy and .pkl, prefixes of paths, several labels with -1 for ignore."""

import os
import pickle

import numpy as np
import pytest
from helpers.containers import CLASSES, pictures, png, write_folder, write_vissl

from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled


def texts(source):
    return [source.target.text(i) for i in range(len(source))]


@pytest.fixture
def lists(tmp_path, monkeypatch):
    """`lists(labels)` writes i.npy with a.png, b.png, c.png, l.npy, and the images; gives the string."""
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate("abc"):
        (tmp_path / f"{name}.png").write_bytes(png(i))

    def write(labels, images=("a.png", "b.png", "c.png")):
        np.save("i.npy", np.array(images))
        np.save("l.npy", labels)
        return "vissl:i.npy,l.npy"

    return write


def test_numbers_without_names_are_the_classes(lists):
    source = open_data(lists(np.array([2, 10, 2])))["all"]
    assert source.ids == ("a.png", "b.png", "c.png")
    assert texts(source) == ["2", "10", "2"]
    assert isinstance(open_data("vissl:i.npy")["all"].target, Unlabelled)


def test_several_labels_with_ignored_ones(lists):
    source = open_data(lists(np.array([[1, 0], [-1, 1], [0, 0]])))["all"]
    assert isinstance(source.target, MultiLabel)
    assert source.target.values.tolist() == [[1, 0], [-1, 1], [0, 0]]
    with pytest.raises(DataError, match="other values than 1"):
        open_data(lists(np.array([[1, 0], [3, 1], [0, 0]])))


def test_lists_of_classes_names_and_columns(lists):
    rows = np.empty(3, dtype=object)
    rows[:] = [[1, 2], [2], []]
    assert texts(open_data(lists(rows))["all"]) == ["1;2", "2", ""]
    assert texts(open_data(lists(np.array(["x", "y", "x"])))["all"]) == ["x", "y", "x"]
    assert texts(open_data(lists(np.array([[1], [2], [1]])))["all"]) == ["1", "2", "1"]
    assert texts(open_data(lists(np.array([1.0, 2.0, 1.0])))["all"]) == ["1", "2", "1"]


def test_images_whose_label_is_minus_one_are_left_out_and_said(lists):
    source = open_data(lists(np.array([1, -1, 2])))["all"]
    assert source.ids == ("a.png", "c.png")
    assert "1 image left out, whose label is -1" in "\n".join(source.notes)


def test_pickled_lists_are_read_and_nothing_in_them_is_run(lists, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    lists(np.array([1, 2, 1]))
    (tmp_path / "i.pkl").write_bytes(pickle.dumps(["a.png", "b.png", "c.png"]))
    assert texts(open_data("vissl:i.pkl,l.npy")["all"]) == ["1", "2", "1"]
    (tmp_path / "i.pkl").write_bytes(pickle.dumps(["a.png", Evil()]))
    with pytest.raises(DataError, match=r"asks to call '(posix|nt).system'"):
        open_data("vissl:i.pkl,l.npy")
    np.save("i.npy", np.array(["a.png", Evil()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="asks to call"):
        open_data("vissl:i.npy,l.npy")
    assert not (tmp_path / "ran").exists()


def test_numbers_that_are_no_characters_are_refused(lists, tmp_path):
    spec = lists(np.array([1, 2, 1]))
    content = (tmp_path / "i.npy").read_bytes()
    (tmp_path / "i.npy").write_bytes(content[:-1] + b"\xf8")
    with pytest.raises(DataError, match="numbers in it that are no characters"):
        open_data(spec)


def test_a_folder_of_lists(tmp_path):
    write_folder(tmp_path, pictures())
    for split, names in (("train", list(pictures())[:8]), ("val", list(pictures())[8:])):
        np.save(tmp_path / f"{split}_images.npy", np.array(names))
        np.save(tmp_path / f"{split}_labels.npy", np.array([CLASSES.index(pictures()[n][1]) for n in names]))
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    for spec in (str(tmp_path), f"vissl:{tmp_path}"):
        sources = open_data(spec)
        assert tuple(sources) == ("train", "val")
        assert texts(sources["val"]) == [pictures()[name][1] for name in sources["val"].ids]


def test_paths_from_another_machine(tmp_path):
    (tmp_path / "photos").mkdir()
    write_vissl(tmp_path / "photos", pictures())
    (tmp_path / "lists").mkdir()
    np.save(tmp_path / "lists" / "i.npy", np.array([f"/cluster/data/{name}" for name in pictures()]))
    spec = f"vissl:{tmp_path}/lists/i.npy,{tmp_path}/photos/labels.npy"
    with pytest.raises(DataError, match=r"12 of 12 image files missing.*\n.*prefix=OLD->NEW"):
        open_data(spec)
    source = open_data(f"{spec},prefix=/cluster/data->{tmp_path}/photos,classes={tmp_path}/photos/classes.txt")["all"]
    assert source.ids == tuple(sorted(pictures()))
    assert texts(source) == [pictures()[name][1] for name in source.ids]
    assert "ids are relative to" in "\n".join(source.notes)


def test_lists_that_cannot_be_used(lists):
    for spec, error, message in (
        ("vissl:i.npy,gone.npy", UsageError, "there is no file gone.npy"),
        ("vissl:i.npy,l.npy,l.npy", UsageError, "does not name one or two lists"),
        ("vissl:i.txt", UsageError, "does not name one or two lists"),
        ("vissl:.", UsageError, "has no list such as train_images.npy"),
        ("vissl:i.npy,prefix=/a", UsageError, "Write prefix=/old/folder->/new/folder"),
        ("vissl:i.npy,prefix=/nowhere->/x", UsageError, r"no path begins with /nowhere\nThe first one is a.png"),
        ("vissl:i.npy,short.npy", DataError, "has 2 labels, i.npy has 3 images"),
        ("vissl:l.npy", DataError, "is not a list of paths"),
        ("vissl:broken.npy", DataError, "not a list written by numpy or pickle"),
        ("vissl:i.npy,odd.npy", DataError, "the label 0.5 is neither"),
        ("vissl:i.npy,l.npy,classes=few.txt", DataError, "names 1 classes, but there is a class number 2"),
    ):
        lists(np.array([1, 2, 1]))
        np.save("short.npy", np.array([1, 2]))
        np.save("odd.npy", np.array([0.5, 1, 2]))
        with open("broken.npy", "wb") as file, open("few.txt", "w") as few:  # noqa: PTH123
            file.write(b"\x93NUMPY\x01\x00")
            few.write("cat\n")
        with pytest.raises(error, match=message):
            open_data(spec)
