"""Folders of images with a list of their labels beside them."""

import json

import numpy as np
import pytest
from PIL import Image

from sslbench.data.open import open_data
from sslbench.errors import DataError


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
