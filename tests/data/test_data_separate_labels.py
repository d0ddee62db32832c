"""Labels from another place than their images: ?labels=PLACE."""

import json
import logging

import numpy as np
import pytest
from helpers import runs
from PIL import Image

from sslbench.data.catalog import beside
from sslbench.data.location import absolute
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.pretraining import PretrainRequest, pretrain

LABELS = {"1.png": "cat", "2.png": "dog", "3.png": "cat", "4.png": "owl"}


def save(*names):
    for i, name in enumerate(names):
        name.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 20 * i, np.uint8)).save(name)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(*(tmp_path / "photos" / name for name in LABELS))
    return tmp_path


def table(path, rows, header="path,label"):
    path.write_text("\n".join([header, *(",".join(row) for row in rows.items())]) + "\n")


def labelled(spec, split="all", **columns):
    source = open_data(spec, **columns)[split]
    return dict(zip(source.ids, (source.target.text(i) for i in range(len(source))), strict=True))


def test_the_place_is_a_list_a_table_json_or_a_folder_of_the_same_names(photos):
    table(photos / "by_path.csv", {f"/old/place/{name}": label for name, label in reversed(LABELS.items())})
    table(photos / "by_id.csv", {name[0]: label for name, label in LABELS.items()}, "id,class")
    (photos / "map.json").write_text(json.dumps(LABELS))
    (photos / "lines.txt").write_text("".join(f"photos/{name} {label}\n" for name, label in LABELS.items()))
    np.save(photos / "order.npy", np.array(list(LABELS.values())))
    save(*(photos / "classes" / label / f"{name[0]}.jpg" for name, label in LABELS.items()))
    places = ["by_path.csv", "by_id.csv", "map.json", "lines.txt", "order.npy", "classes/"]
    assert {place: labelled(f"photos/?labels={place}") for place in places} == dict.fromkeys(places, LABELS)
    keys = {open_data(f"photos/?labels={place}")["all"].fingerprint() for place in places}
    table(photos / "by_path.csv", LABELS | {"4.png": "dog"})
    assert len(keys) == 1 and open_data("photos/?labels=by_path.csv")["all"].fingerprint() not in keys


def test_several_labels_numbers_and_the_column_of_labels(photos):
    rows = {name: f"{label};pet,{i}.5,{i % 2}" for i, (name, label) in enumerate(LABELS.items())}
    table(photos / "t.csv", rows, "path,label,height,left")
    assert open_data("photos/?labels=t.csv")["all"].target.text(0) == "cat;pet"
    assert labelled("photos/?labels=t.csv", label_column="left")["2.png"] == "1"
    assert open_data("photos/?labels=t.csv", value_columns=["height"])["all"].target.values[:, 0].tolist()[2:] == [
        2.5,
        3.5,
    ]
    np.save(photos / "flags.npy", np.array([[1, 0], [0, 1], [1, 1], [-1, 0]]))
    assert open_data("photos/?labels=flags.npy")["all"].target.values[3].tolist() == [-1, 0]
    with pytest.raises(UsageError, match=r"flags.npy has no column 'left': only tables have columns"):
        open_data("photos/?labels=flags.npy", label_column="left")
    with pytest.raises(UsageError, match=r"t.csv has no column 'labl'"):
        open_data("photos/?labels=t.csv", label_column="labl")


def test_the_labels_replace_those_of_the_images_and_go_with_their_tiles(photos):
    save(photos / "tree" / "a" / "1.png", photos / "tree" / "b" / "2.png")
    table(photos / "t.csv", {"1.png": "cat", "2.png": "dog", "9.png": "owl"})
    source = open_data("tree/?labels=t.csv")["all"]
    assert [source.target.text(i) for i in range(2)] == ["cat", "dog"]
    assert source.notes == (
        "tree/: the labels are those of t.csv",
        "t.csv: 1 label of images that are not there: 9.png",
        "t.csv: labels are matched by parts of the names: 1.png is a/1.png",
    )
    save(photos / "same" / "a" / "1.png", photos / "same" / "b" / "1.png")
    table(photos / "s.csv", {"/old/b/1.png": "dog", "/old/a/1.png": "cat"})
    same = open_data("same/?labels=s.csv")["all"]
    assert [same.target.text(i) for i in range(2)] == ["cat", "dog"]
    assert same.notes[-1].endswith("by parts of the names: old/a/1.png is a/1.png")
    tiles = open_data("tree/?labels=t.csv&unit=tile&size=4")["all"]
    assert [tiles.target.text(i) for i in range(8)] == ["cat"] * 4 + ["dog"] * 4


def test_labels_of_splits(photos):
    save(*(photos / "d" / split / f"{i}.png" for split in ("train", "val") for i in range(2)))
    table(photos / "paths.csv", {"training/0.png": "a", "training/1.png": "b", "val/0.png": "b", "val/1.png": "b"})
    rows = {"0.png,train": "a", "1.png,train": "b", "0.png,val": "b", "1.png,valid": "b"}
    table(photos / "column.csv", rows, "path,split,label")
    (photos / "lists").mkdir()
    np.save(photos / "lists" / "train_labels.npy", np.array([0, 1]))
    np.save(photos / "lists" / "val_labels.npy", np.array([1, -1]))
    (photos / "lists" / "classes.txt").write_text("a\nb\n")
    for place in ("paths.csv", "column.csv"):
        assert labelled(f"d/?labels={place}", "train") == {"0.png": "a", "1.png": "b"}
        assert labelled(f"d/?labels={place}", "val") == {"0.png": "b", "1.png": "b"}
    assert labelled("d/?labels=lists/", "train") == {"0.png": "a", "1.png": "b"}
    assert labelled("d/?labels=lists/", "val") == {"0.png": "b"}  # -1: without a label
    with pytest.raises(UsageError, match=r"is one list, and the images have the splits train, val"):
        open_data("d/?labels=lists/train_labels.npy")
    table(photos / "names.csv", {"0.png": "a", "1.png": "b"})
    with pytest.raises(DataError, match=r"names.csv: 0.png is the name of several images of d/ \(train\), d/ \(val\)"):
        open_data("d/?labels=names.csv")
    (photos / "lists" / "val_labels.npy").rename(photos / "lists" / "test_labels.npy")
    with pytest.raises(UsageError, match=r"lists/ has labels of train, test, and not of the images' split 'val'"):
        open_data("d/?labels=lists/")


def test_images_without_one_label_are_named(photos):
    table(photos / "few.csv", {"1.png": "cat", "2.png": "dog", "3.jpeg": "cat", "5.png": "owl"})
    with pytest.raises(DataError, match=r"few.csv has no label for 1 image of photos/: 4.png") as refused:
        open_data("photos/?labels=few.csv")
    assert "Every image needs one label" in refused.value.remedy
    table(photos / "twice.csv", LABELS | {"a/1.png": "cat", "b/1.png": "dog"})
    assert labelled("photos/?labels=twice.csv") == LABELS
    (photos / "twice.csv").write_text("path,label\n" + "".join(f"{name},x\n" for name in [*LABELS, "1.png"]))
    with pytest.raises(DataError, match=r"twice.csv: 1.png is listed 2 times"):
        open_data("photos/?labels=twice.csv")
    np.save(photos / "short.npy", np.arange(3))
    with pytest.raises(DataError, match=r"short.npy has 3 labels, photos/ has 4 images"):
        open_data("photos/?labels=short.npy")
    np.save(photos / "none.npy", np.zeros(0, np.int64))
    with pytest.raises(DataError, match=r"none.npy has no labels"):
        open_data("photos/?labels=none.npy")
    with pytest.raises(UsageError, match=r"photos: labels of whole images are needed, not no labels"):
        open_data("photos/?labels=photos")
    with pytest.raises(UsageError, match=r"'shrt.npy' does not exist"):
        open_data("photos/?labels=shrt.npy")
    with pytest.raises(UsageError, match=r"'photos/' takes no options but those of any images") as refused:
        open_data("photos/?label=short.npy")
    assert "'labels'" in refused.value.remedy
    with pytest.raises(UsageError, match=r"gives the option 'labels' more than once"):
        open_data("photos/?labels=twice.csv&labels=short.npy")


def test_a_list_without_names_is_refused_where_the_order_of_the_images_is_doubtful(photos):
    np.save(photos / "order.npy", np.array(["x", "y"]))
    save(photos / "tree" / "a" / "1.png", photos / "tree" / "a-b" / "1.png")
    with pytest.raises(UsageError, match=r"by folders a/1.png comes before a-b/1.png"):
        open_data("tree/?labels=order.npy")
    save(photos / "numbered" / "2.png", photos / "numbered" / "10.png")
    with pytest.raises(UsageError, match=r"by numbers 2.png comes before 10.png"):
        open_data("numbered/?labels=order.npy")
    table(photos / "two.csv", {"photos/2.png": "b", "photos/1.png": "a"})
    with pytest.raises(UsageError, match=r"order.npy is in an order that the images of two.csv do not have"):
        open_data("two.csv?labels=order.npy")
    np.save(photos / "digits.npy", np.arange(1797) % 7)
    assert open_data("sklearn:digits?labels=digits.npy")["all"].target.text(8) == "1"


def test_the_place_is_found_from_other_folders_and_code_in_files_is_not_run(photos):
    table(photos / "t.csv", LABELS)
    assert absolute("photos/?labels=t.csv") == f"{photos}/photos/?labels={photos}/t.csv"
    assert beside("photos/?labels=t.csv&unit=tile", photos / "list.yaml").endswith(f"labels={photos}/t.csv&unit=tile")
    (photos / "list.yaml").write_text("sources: {a: 'photos?labels=my_pkg.module:t.csv'}\n")
    with pytest.raises(UsageError, match=r"names the Python code 'my_pkg.module'"):
        open_data("list.yaml")


def test_supervised_pretraining_learns_these_labels(photos, caplog):
    table(photos / "t.csv", LABELS)
    settings = runs.settings("supervised", epochs=1, batch_size=2, schedule={"warmup_epochs": 0})
    with caplog.at_level(logging.INFO, logger="sslbench"):
        outcome = pretrain(PretrainRequest(settings, data="photos/?labels=t.csv", out=photos / "out"), command="test")
    assert "photos/: the labels are those of t.csv" in caplog.messages
    assert outcome.steps == 2
