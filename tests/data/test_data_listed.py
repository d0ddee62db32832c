"""Paths in lists of all kinds: written on another machine, without suffix, in folders beside the list."""

import csv
import json

import numpy as np
import pytest
from helpers.containers import png

from sslbench.data.containers.listed import find_listed, plain_path
from sslbench.data.in_memory import sources_of
from sslbench.data.open import open_as, open_data, open_objects
from sslbench.errors import DataError, UsageError
from sslbench.targets.label_maps import LabelMaps
from sslbench.targets.pixel_values import Depth
from sslbench.targets.triplets import Triplets
from sslbench_visbench.targets import CameraPairs

NAMES = ("a", "b", "c", "d")
SPELLINGS = {
    "as written": "photos/{}.png",
    "backslashes": "photos\\{}.png",
    "a drive": "C:\\Users\\me\\data\\photos\\{}.png",
    "a drive and slashes": "D:/data/photos/{}.png",
    "another home": "/home/me/data/photos/{}.png",
    "a step up": "..\\..\\media\\upload\\4\\{}.png",
    "local files of Label Studio": "/data/local-files/?d=my%20project/photos/{}.png",
    "a project inside": "photos\\1/{}.png",
    "a URI": "file:///mnt/data/photos/{}.png",
    "an address": "https://example.org/bucket/photos/{}.png?x=1",
    "another case": "Photos/{}.PNG",
    "no suffix": "photos/{}",
    "characters of addresses": "photos%2F{}.png",
    "nothing but a name": "{}",
    "a name with a suffix": "{}.png",
}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "photos").mkdir()
    for i, name in enumerate(NAMES):
        (tmp_path / "photos" / f"{name}.png").write_bytes(png(i))
    return tmp_path


def write(file, columns, rows, separator=","):
    with file.open("w", newline="") as stream:
        csv.writer(stream, delimiter=separator).writerows([columns, *rows])
    return str(file)


def table(root, names):
    return open_data(write(root / "t.csv", ["path", "label"], [(n, "x") for n in names]))["all"]


def separated_by_tabs(root, names):
    return open_data(write(root / "t.tsv", ["path", "label"], [(n, "x") for n in names], "\t"))["all"]


def records(root, names):
    (root / "t.json").write_text(json.dumps([{"image": name, "label": "x"} for name in names]))
    return open_data(str(root / "t.json"))["all"]


def lines(root, names):
    (root / "t.txt").write_text("\n".join(f"{name} x" for name in names))
    return open_data(str(root / "t.txt"))["all"]


def manifest(root, names):
    content = {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(names)],
        "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 1, 2, 2]} for i in range(len(names))],
        "categories": [{"id": 1, "name": "x"}],
    }
    (root / "m.json").write_text(json.dumps(content))
    assert len(open_objects(str(root / "m.json"))["all"]) == len(names)
    return open_data(str(root / "m.json"))["all"]


def table_of_boxes(root, names):
    columns = ["filename", "class", "xmin", "ymin", "xmax", "ymax"]
    return open_objects(write(root / "b.csv", columns, [(name, "x", 1, 1, 3, 3) for name in names]))["all"]


def lists_of_vissl(root, names):
    np.save(root / "images.npy", np.array(names))
    return open_data(f"vissl:{root / 'images.npy'}")["all"]


def list_of_yolo(root, names):
    (root / "train.txt").write_text("\n".join(names))
    (root / "data.yaml").write_text("train: train.txt\nnames: [x]\n")
    for name in NAMES:
        (root / "photos" / f"{name}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    return open_objects(str(root / "data.yaml"))["train"]


def triplets(root, names):
    rows = [(names[0], names[1], names[2], "left"), (names[3], names[1], names[2], "right")]
    return open_as(write(root / "t.csv", ["ref", "left", "right", "choice"], rows), Triplets)["all"].target


def pairs_of_cameras(root, names):
    rows = [(names[0], names[1], 1, 0, 0, 0), (names[2], names[3], 1, 0, 0, 0)]
    return open_as(write(root / "p.csv", ["first", "second", "qw", "qx", "qy", "qz"], rows), CameraPairs)["all"].target


def depths(root, names):
    for name in NAMES:
        np.save(root / "photos" / f"{name}.npy", np.ones((6, 5), dtype=np.float32))
    rows = [(name, f"photos/{own}.npy") for name, own in zip(names, NAMES, strict=True)]
    return open_as(write(root / "d.csv", ["image", "depth"], rows), Depth)["all"]


KINDS = [
    *(table, separated_by_tabs, records, lines, manifest, table_of_boxes, lists_of_vissl, list_of_yolo),
    *(triplets, pairs_of_cameras, depths),
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_list_finds_its_images_however_they_are_written(root, kind, spelling):
    images = kind(root, [SPELLINGS[spelling].format(name) for name in NAMES]).images
    assert {images.read(i) for i in range(len(images))} == {png(i) for i in range(len(NAMES))}


def test_an_image_that_is_missing_is_never_another_of_its_name(root):
    (root / "backup").mkdir()
    (root / "backup" / "d.png").write_bytes(png(9))
    (root / "photos" / "d.png").unlink()
    with pytest.raises(DataError, match=r"1 of 4 image files missing: photos/d\.png"):
        table(root, [f"photos/{name}.png" for name in NAMES])


def test_images_of_the_same_name_are_refused_not_guessed(root):
    (root / "more").mkdir()
    for name in NAMES:
        (root / "more" / f"{name}.png").write_bytes(png(7))
    with pytest.raises(DataError, match=r"'a' may be .*more/a\.png or .*photos/a\.png\n.*t\.csv\?images=FOLDER"):
        table(root, NAMES)
    spec = f"{root / 't.csv'}?images=photos"
    assert open_data(spec)["all"].images.read(0) == png(0)
    for name in NAMES:
        (root / "photos" / f"{name}.jpg").write_bytes(png(8))
    with pytest.raises(DataError, match="4 of 4 image files missing"):
        open_data(spec)


def test_two_paths_that_would_be_one_file_are_refused(root):
    with pytest.raises(DataError, match=r"'x\\a\.png' and 'y\\a\.png' would both be a\.png"):
        table(root, ["x\\a.png", "y\\a.png", "x\\b.png"])
    with pytest.raises(DataError, match=r"lists 1 image more than once: photos/a\.png"):
        table(root, ["photos/a.png", "photos/b.png", "./photos/a.png"])


def test_the_message_names_the_places_and_what_would_match(root):
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "e.png").write_bytes(png(5))
    with pytest.raises(DataError) as error:
        table(root, ["x/e.png"])
    assert f"Looked for x/e.png, e.png in {root}" in str(error.value)
    assert f"There is {root}/deep/er/e.png: {root}/t.csv?images=deep/er." in str(error.value)
    with pytest.raises(DataError, match=r"There is .*photos/a\.png, not a\.tif"):
        table(root, ["photos/a.tif"])
    with pytest.raises(DataError, match=r"Did you mean 'a\.png' or"):
        table(root, ["photos/aa.png"])
    with pytest.raises(UsageError, match=r"there is no folder .*nowhere"):
        open_data(f"{root / 't.csv'}?images=nowhere")


def test_a_table_of_names_has_its_images_in_the_folder_called_like_it(root):
    for folder in ("train", "test"):
        (root / folder).mkdir()
        for i, name in enumerate(NAMES):
            (root / folder / f"{name}.png").write_bytes(png(i if folder == "train" else 9))
    for list_name in ("train.csv", "train_labels.csv"):
        spec = write(root / list_name, ["id", "breed"], [(name, "x") for name in NAMES])
        source = open_data(spec, image_column="id", label_column="breed")["all"]
        assert source.images.read(0) == png(0) and source.target.classes == ("x",)


def test_paths_that_begin_with_the_folder_of_the_table(root):
    source = table(root, [f"{root.name}/photos/{name}.png" for name in NAMES])
    assert source.images.read(3) == png(3)


def test_panoptic_files_of_another_machine(root):
    (root / "panoptic_val").mkdir()
    names = {"images": [], "annotations": []}
    for i, name in enumerate(NAMES):
        (root / "panoptic_val" / f"{name}.png").write_bytes(png(i))
        names["images"].append({"id": i, "file_name": f"C:\\data\\photos\\{name}.png"})
        names["annotations"].append({"image_id": i, "file_name": f"x\\{name}.png", "segments_info": []})
    content = {**names, "categories": [{"id": 1, "name": "x", "isthing": 1}]}
    (root / "panoptic_val.json").write_text(json.dumps(content))
    source = open_as(str(root / "panoptic_val.json"), LabelMaps)["all"]
    assert source.images.read(2) == png(2) and source.target.maps.maps.path(2).endswith("panoptic_val/c.png")


def test_the_reading_of_a_path_is_noted_and_as_written_is_not(root):
    assert not table(root, ["photos/a.png", "photos/b.png"]).notes
    (note,) = table(root, ["photos\\a.png", "photos\\b.png"]).notes
    assert "'photos\\a.png' and the other paths are read as photos/a.png" in note


def test_a_folder_is_no_image(root):
    (root / "a").mkdir()
    found = find_listed("list", ["a", "b"], [root / "photos", root])
    assert found.paths == ("a.png", "b.png") and found.ids == ["a.png", "b.png"]


def test_paths_as_they_would_be_written_here():
    assert plain_path("C:photos") == "C:photos" and plain_path("what?.png") == "what?.png"
    assert plain_path("s3://bucket/x/1.png") == "/x/1.png"


def test_accents_as_characters_of_their_own(root):
    for i, name in enumerate(("cafe\u0301", "e\u0301te\u0301")):  # as macOS writes them
        (root / "photos" / f"{name}.png").write_bytes(png(10 + i))
    source = table(root, ["photos/caf\u00e9.png", "photos/\u00e9t\u00e9.png"])
    assert {source.images.read(i) for i in range(2)} == {png(10), png(11)}


def test_names_of_splits_are_folders_where_the_names_alone_are_not_there(root):
    for split in ("train", "test"):
        (root / split).mkdir()
    (root / "train" / "x.png").write_bytes(png(5))
    (root / "test" / "x.png").write_bytes(png(6))
    (root / "test" / "y.png").write_bytes(png(7))
    spec = write(root / "t.csv", ["image", "label", "split"], [("x", 0, "train"), ("x", 0, "test"), ("y", 0, "test")])
    found = open_data(spec)
    assert found["train"].images.read(0) == png(5) and found["test"].images.read(0) == png(6)
    assert found["test"].ids == ("test/x.png", "test/y.png")


def test_lists_with_commas_and_lines_of_records(root):
    (root / "t.txt").write_text("photos/a.png,cat\nphotos/b.png,dog house\n")
    source = open_data(str(root / "t.txt"))["all"]
    assert source.ids == ("photos/a.png", "photos/b.png") and source.target.classes == ("cat", "dog house")
    (root / "t.ndjson").write_text('{"path": "photos/a.png", "label": "cat"}\n')
    assert open_data(str(root / "t.ndjson"))["all"].target.classes == ("cat",)


@pytest.mark.parametrize(
    "spelling", ["C:\\me\\set\\{}\\images", "/content/set/{}/images", "..\\{}\\images", "{}/images"]
)
def test_descriptions_of_yolo_from_another_machine(root, spelling):
    for i, split in enumerate(("train", "valid")):
        for kind in ("images", "labels"):
            (root / split / kind).mkdir(parents=True)
        (root / split / "images" / "a.png").write_bytes(png(i))
        (root / split / "labels" / "a.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    content = {"path": "C:\\me", "names": ["x"], "train": spelling.format("train"), "val": spelling.format("valid")}
    (root / "data.yaml").write_text(json.dumps(content))
    found = open_objects(str(root / "data.yaml"))
    assert found["train"].images.read(0) == png(0) and found["val"].images.read(0) == png(1)


def test_tables_of_boxes_of_kaggle(root):
    rows = [("a", "x", 1, 1, 3, 3), ("b", "x", 1, 1, 3, 3)]
    spec = write(root / "train.csv", ["image_id", "class_name", "x_min", "y_min", "x_max", "y_max"], rows)
    assert open_objects(spec)["all"].ids == ("a.png", "b.png")


def test_masks_of_a_manifest_whose_images_lie_elsewhere(root):
    (root / "lists").mkdir()
    row = {"bbox": [0, 0, 4, 4], "segmentation": [[0, 0, 4, 0, 4, 4]], "category_id": 1}
    content = {
        "images": [{"id": i, "file_name": f"{name}.png"} for i, name in enumerate(NAMES)],
        "annotations": [{"id": i, "image_id": i, **row} for i in range(4)],
        "categories": [{"id": 1, "name": "x"}],
    }
    (root / "lists" / "m.json").write_text(json.dumps(content))
    spec = str(root / "lists" / "m.json")
    with pytest.raises(DataError, match=r"m\.json\?images=\.\./photos"):
        open_as(spec, LabelMaps)
    assert len(open_as(f"{spec}?images=../photos", LabelMaps)["all"]) == 4


def test_a_frame_has_no_option(root, monkeypatch):
    frame = pytest.importorskip("pandas").DataFrame({"path": ["photos/a.png", "photos/x.png"]})
    monkeypatch.chdir(root)
    with pytest.raises(DataError, match=r"1 of 2 image files missing: photos/x\.png") as error:
        sources_of(frame, "frame")
    assert "?images" not in str(error.value)
