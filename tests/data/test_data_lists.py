"""Tables without a header: paths in a .txt, records and mappings in JSON."""

import json

import pytest
from helpers.containers import png

from sslbench.data.open import open_data
from sslbench.errors import DataError


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
    return {name: source.labels.text(i) for i, name in enumerate(source.ids)}


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
    assert source.ids == ("b.png", "my cat.png") and source.labels.kind == "none"


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
