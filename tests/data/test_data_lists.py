"""Tables without a header: paths in a .txt, records and mappings in JSON."""

import base64
import json

import pytest
from helpers.containers import png

from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
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
