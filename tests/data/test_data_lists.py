"""Lists of images: of text, of folders, of VISSL."""

import base64
import json
import os
import pickle

import numpy as np
import pytest
from helpers.containers import CLASSES, pictures, png, write_folder, write_vissl
from PIL import Image

from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled


@pytest.fixture
def listed(tmp_path):
    """`listed("t.txt", text or object)` writes the list beside a.png, b.png and 'my cat.png'."""
    for i, name in enumerate(("a.png", "b.png", "my cat.png")):
        (tmp_path / name).write_bytes(png(i))

    def write(name, content):
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return str(tmp_path / name)

    return write


def labelled(source):
    return {name: source.target.text(i) for i, name in enumerate(source.ids)}


def test_paths_and_labels(listed):
    for name, content, expected in (
        ("t.txt", "b.png dog\na.png\tcat\n\n", {"a.png": "cat", "b.png": "dog"}),
        ("t.txt", "my cat.png   3\na.png 4", {"a.png": "4", "my cat.png": "3"}),
        ("t.json", {"b.png": "dog", "a.png": 7}, {"a.png": "7", "b.png": "dog"}),
        ("t.json", {"b.png": ["x", "y"], "a.png": ["x"]}, {"a.png": "x", "b.png": "x;y"}),
        ("t.json", [{"image": "b.png", "class": "dog"}, {"image": "a.png", "class": "cat", "box": {"x": 1}}], None),
        ("t.jsonl", '{"file_name": "a.png", "label": "cat"}\n{"file_name": "b.png", "label": "dog"}\n', None),
    ):
        source = open_data(listed(name, content))["all"]
        assert labelled(source) == (expected or {"a.png": "cat", "b.png": "dog"})
        assert source.images.read(0) == png(0)


def test_paths_only_have_no_labels(listed):
    source = open_data(listed("t.txt", "my cat.png\nb.png\n"))["all"]
    assert source.ids == ("b.png", "my cat.png") and isinstance(source.target, Unlabelled)


def test_splits_in_records(listed):
    records = [{"path": p, "label": "x", "split": s} for p, s in (("a.png", "training"), ("b.png", "test"))]
    assert tuple(open_data(listed("t.json", records))) == ("train", "test")


def test_lists_that_cannot_be_used_say_where(listed):
    for name, content, message in (
        ("t.txt", "a.png cat\nb.png\n", "some lines have no label: line 2"),
        ("t.txt", "", "has no rows"),
        ("t.json", '[{"path": "a.png",', "t.json is not JSON"),
        ("t.json", [{"path": "a.png"}, 3], "is not a list of records"),
        ("t.json", '{"a.png": "x", "a.png": "y"}', "the key 'a.png' occurs twice"),
        ("t.json", [{"path": "a.png", "label": "x"}, {"path": "b.png"}], "is empty in entry 2"),
        ("t.json", [{"path": "\ud800.png", "label": "x"}], "1 of 1 image file missing"),
        ("t.jsonl", '{"path": "a.png"}\nnope\n', "line 2 is not JSON"),
    ):
        with pytest.raises(DataError, match=message):
            open_data(listed(name, content))


def test_keys_of_nested_records_are_columns(listed):
    for name, content in (
        ("t.jsonl", '{"image": {"path": "a.png"}, "label": "cat"}\n{"image": {"path": "b.png"}, "label": "dog"}\n'),
        ("t.json", [{"image": {"bytes": None, "path": p}, "label": {"name": k}} for p, k in ROWS]),
        ("t.json", [{"x": {"src": p}, "annotation": {"label": k}} for p, k in ROWS]),
        ("t.json", {p: {"label": k} for p, k in ROWS}),
        ("t.json", [{"images": [p], "label": k} for p, k in ROWS]),
    ):
        found = open_data(listed(name, content))["all"]
        assert labelled(found) == {"a.png": "cat", "b.png": "dog"}


ROWS = (("a.png", "cat"), ("b.png", "dog"))


def test_images_in_base64_are_told(listed):
    text = base64.b64encode(png(0)).decode()
    for image in (text, f"data:image/png;base64,{text}", {"bytes": text, "path": "x.png"}):
        with pytest.raises(UsageError, match=r"the column 'image(\.bytes)?' holds images in base64, not paths"):
            open_data(listed("t.json", [{"image": image, "label": "cat"}]))


def test_texts_of_missing_values_are_classes_with_a_note_and_empty_cells_are_none(listed):
    for text in ("NA", "nan", "None", "null"):
        source = open_data(listed("t.csv", f"path,label\na.png,{text}\nb.png,dog\n"))["all"]
        assert labelled(source)["a.png"] == text
        assert any(f"'{text}' is the class of 1 row" in note for note in source.notes)
    for name, content in (
        ("t.csv", "path,label\na.png,\nb.png,dog\n"),
        ("t.json", '[{"path": "a.png", "label": NaN}, {"path": "b.png", "label": "dog"}]'),
        ("t.json", '[{"path": "a.png", "label": null}, {"path": "b.png", "label": "dog"}]'),
    ):
        with pytest.raises(DataError, match=r"is empty in (line 2|entry 1)"):
            open_data(listed(name, content))


def test_headers_that_do_not_fit_say_how_to_write_them(listed):
    for content, remedy in (
        ("# mine\npath,label\na.png,cat\n", "should name the columns"),
        ("path,label\na.png,cat, large\n", "Quote cells that hold a separator"),
    ):
        with pytest.raises(DataError, match="but the header has") as error:
            open_data(listed("t.csv", content))
        assert remedy in error.value.remedy


def test_entries_that_occur_twice_in_a_manifest_have_its_remedy(listed):
    content = {"images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}], "annotations": []}
    content["categories"] = [{"id": 1, "name": "cat"}]
    content["annotations"] = [{"id": 1, "image_id": 1, "category_id": 1}]
    for table, entry, words in (
        ("images", {"id": 3, "file_name": "a.png"}, "in a manifest annotations"),
        ("images", {"id": 1, "file_name": "a.png"}, "an id of its own"),
        ("annotations", {"id": 1, "image_id": 2, "category_id": 1}, "an id of its own"),
        ("categories", {"id": 2, "name": "cat"}, "give the annotations of the others its id"),
    ):
        with pytest.raises(DataError, match=r"twice|more than once") as error:
            open_data(listed("m.json", {**content, table: [*content[table], entry]}))
        assert words in error.value.remedy
    with pytest.raises(DataError, match="no list 'images'") as error:
        open_data(listed("m.json", {"path": {"0": "a.png"}, "label": {"0": "cat"}}))
    assert "A table is a list of records" in error.value.remedy


def test_lists_of_pascal_voc_find_their_images(tmp_path):
    (tmp_path / "JPEGImages").mkdir()
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    for i in range(2):
        (tmp_path / "JPEGImages" / f"2007_00000{i}.png").write_bytes(png(i))
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("2007_000000\n2007_000001\n")
    source = open_data(str(tmp_path / "ImageSets" / "Main" / "train.txt"))["all"]
    assert source.ids == ("2007_000000.png", "2007_000001.png") and source.images.read(1) == png(1)


def test_a_table_of_boxes_without_header_is_told_one(listed):
    with pytest.raises(UsageError, match="has no header") as error:
        open_data(listed("t.csv", "a.png,1,2,3,4,cat\nb.png,1,2,3,4,dog\n"))
    assert "filename,xmin,ymin,xmax,ymax,class" in error.value.remedy


def test_records_may_be_a_list_or_lines_under_either_suffix(listed):
    rows = [json.dumps({"path": path, "label": label}) for path, label in ROWS]
    for name, content in (("t.json", "\n".join(rows) + "\n"), ("t.jsonl", f"[{', '.join(rows)}]")):
        assert labelled(open_data(listed(name, content))["all"]) == dict(ROWS)


def fill(folder, names):
    folder.mkdir(parents=True)
    for i, name in enumerate(names):
        Image.fromarray(np.full((4, 4, 3), i, np.uint8)).save(folder / name)


def labels_of(source):
    return {name: source.target.text(i) for i, name in enumerate(source.ids)}


def test_labels_json_labels_a_flat_folder(tmp_path):
    fill(tmp_path / "flat", ["0.png", "1.png", "2.png"])
    (tmp_path / "flat" / "labels.json").write_text(json.dumps({"0.png": "cat", "1.png": "dog", "2.png": "cat"}))
    source = open_data(f"{tmp_path}/flat/")["all"]
    assert labels_of(source) == {"0.png": "cat", "1.png": "dog", "2.png": "cat"}


def test_metadata_csv_labels_the_splits_of_an_imagefolder(tmp_path):
    for split, names in (("train", ["a.png", "b.png"]), ("test", ["c.png"])):
        fill(tmp_path / "flat" / split, names)
        lines = ["file_name,label,site", *(f"{name},{name[0]},home" for name in names)]
        (tmp_path / "flat" / split / "metadata.csv").write_text("\n".join(lines) + "\n")
    parts = open_data(f"{tmp_path}/flat", attribute_columns=["site"])
    assert labels_of(parts["train"]) == {"a.png": "a", "b.png": "b"}
    assert labels_of(parts["test"]) == {"c.png": "c"}
    assert parts["test"].attributes["site"] == ("home",)


def test_images_that_are_not_listed_are_left_out_with_a_note(tmp_path):
    fill(tmp_path / "flat", ["0.png", "1.png"])
    (tmp_path / "flat" / "metadata.jsonl").write_text('{"file_name": "0.png", "label": "cat"}\n')
    source = open_data(f"{tmp_path}/flat")["all"]
    assert source.ids == ("0.png",)
    assert any("listed in metadata.jsonl; 1 image not listed there left out: 1.png" in note for note in source.notes)


def test_two_lists_and_missing_images_are_refused(tmp_path):
    fill(tmp_path / "flat", ["0.png"])
    (tmp_path / "flat" / "labels.json").write_text('{"0.png": "cat", "gone.png": "dog"}')
    with pytest.raises(DataError, match=r"gone\.png"):
        open_data(f"{tmp_path}/flat")
    (tmp_path / "flat" / "metadata.csv").write_text("file_name,label\n0.png,cat\n")
    with pytest.raises(DataError, match="2 lists of its images"):
        open_data(f"{tmp_path}/flat")


def test_class_folders_keep_their_meaning_beside_a_list(tmp_path):
    fill(tmp_path / "photos" / "cat", ["0.png"])
    fill(tmp_path / "photos" / "dog", ["0.png"])
    (tmp_path / "photos" / "metadata.csv").write_text("file_name,label\ncat/0.png,x\n")
    source = open_data(f"{tmp_path}/photos")["all"]
    assert source.target.classes == ("cat", "dog")
    assert any("metadata.csv" in note for note in source.notes)


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
