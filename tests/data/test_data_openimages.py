"""Open Images' tables: boxes in pixels, groups as crowds, verified labels with the rest unknown, from any container."""

import csv
import json
import tarfile
import zipfile

import numpy as np
import pytest
from helpers.annotated import pictures, write_open_images
from PIL import Image

from sslbench.cli.main import main
from sslbench.data.formats import openimages
from sslbench.data.objects import view
from sslbench.data.open import open_data, open_objects
from sslbench.errors import DataError, UsageError

SAMPLES = pictures(12)
BOXES, LABELS = "validation-annotations-bbox.csv", "oidv7-validation-annotations-human-imagelabels.csv"


def rows_of(file):
    with file.open(newline="") as opened:
        return list(csv.reader(opened))


def rewrite(file, rows):
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows(rows)


def corners(source):
    return {sample.partition(".")[0]: own.boxes.tolist() for sample, own in objects(source).items()}


def objects(source):
    return dict(zip(source.ids, source.target.objects, strict=True))


def test_boxes_are_those_that_were_written_and_groups_are_crowds(tmp_path):
    sources = open_objects(str(write_open_images(tmp_path, SAMPLES)))
    assert list(sources) == ["train", "val"]
    for stem, (_, boxes) in SAMPLES.items():
        own = objects(sources["train" if int(stem[1:]) < 6 else "val"])[f"{stem}.png"]
        np.testing.assert_allclose(own.boxes, [box[1:] for box in boxes], atol=1e-4)
        assert own.crowd.tolist() == [(x2 - x1) * (y2 - y1) < 60 for _, x1, y1, x2, y2 in boxes]
    assert sources["val"].target.classes == ("Cat", "Dog")


def test_verified_labels_count_and_all_others_are_unknown(tmp_path):
    sources = open_data(str(write_open_images(tmp_path, SAMPLES)))
    for source in sources.values():
        for sample, row in zip(source.ids, source.target.values.tolist(), strict=True):
            number = int(sample[1:].partition(".")[0])
            assert row == ([0, 1] if number % 2 else [1, -1])  # Cat, Dog; cats have no label of dogs
    (alone,) = open_data(str(tmp_path / LABELS)).values()
    np.testing.assert_array_equal(alone.target.values, sources["val"].target.values)
    rows = rows_of(tmp_path / LABELS)
    rewrite(tmp_path / LABELS, [*rows, ["p6", "crowdsource-verification", "/m/01yrx", "0"]])
    (alone,) = open_data(str(tmp_path / LABELS)).values()
    assert alone.target.values[alone.ids.index("p6.png")].tolist() == [-1, -1]
    assert any("1 labels are verified both" in note for note in alone.notes)


def test_classes_that_are_verified_to_be_absent_are_kept_with_the_boxes_and_in_a_copy(tmp_path):
    source = open_objects(str(write_open_images(tmp_path, SAMPLES)))["val"]
    cat = source.target.classes.index("Cat")
    assert [(source.ids[i], c) for i, c in source.target.federated.negative] == [(f"p{i}.png", cat) for i in (11, 7, 9)]
    copy = tmp_path / "copy.kwcoco.json"
    with pytest.raises(SystemExit) as ended:
        main(["data", "to-kwcoco", str(tmp_path), str(copy), "--boxes"])
    assert ended.value.code == 0
    again = open_objects(str(copy))["val"]
    assert again.ids == source.ids and again.fingerprint() == source.fingerprint()
    write_open_images(tmp_path / "plain", SAMPLES, labels=False)
    assert open_objects(str(tmp_path / "plain"))["val"].target.federated is None
    assert "counts as absent" in open_data(str(tmp_path / "plain"))["val"].notes[-1]


@pytest.mark.parametrize("ends", [("XMin", "XMax"), ("YMax", "YMin")])
def test_the_class_of_a_box_without_area_is_unknown_in_its_image_and_not_absent(tmp_path, ends):
    root = write_open_images(tmp_path, SAMPLES, labels=False)
    table = root / BOXES
    head, *rows = rows_of(table)
    whole = open_objects(str(table))["all"]
    flat = [*rows[0]]
    flat[head.index("LabelName")] = next(row[2] for row in rows if row[2] != flat[2])
    flat[head.index(ends[0])] = flat[head.index(ends[1])] = "1"  # at the edge
    rewrite(table, [head, *rows, flat])
    source, labels = open_objects(str(table))["all"], open_data(str(table))["all"]
    at = source.ids.index(f"{flat[0]}.png")
    (old, new), size = (part.target.objects[at] for part in (whole, source)), source.target.sizes[at]
    assert new.boxes[:-1].tolist() == old.boxes.tolist() and new.crowd[-1]
    assert min(new.boxes[-1, 2:] - new.boxes[-1, :2]) == 1 and (new.boxes[-1, 2:] <= size[::-1]).all()
    assert labels.target.values[at].tolist() in ([1, -1], [-1, 1])
    assert f"{table}: 1 box without width or height, whose objects do not count: line {len(rows) + 2}" in source.notes
    rewrite(root / LABELS, [["ImageID", "Source", "LabelName", "Confidence"], [flat[0], "verification", flat[2], "1"]])
    federated = open_objects(str(root))["val"].target.federated
    assert federated.not_exhaustive.tolist() == [[at, source.target.objects[at].classes[-1]]]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_images_are_read_from_an_archive_where_they_are(tmp_path, kind):
    write_open_images(tmp_path, SAMPLES)
    plain = open_objects(str(tmp_path / BOXES))["all"]
    labels = open_data(str(tmp_path / LABELS))["all"]
    files = [tmp_path / "validation" / sample for sample in plain.ids]
    if kind == "tar":
        with tarfile.open(tmp_path / "v.tar", "w") as archive:
            for file in files:
                archive.add(file, f"validation/{file.name}")
    else:
        with zipfile.ZipFile(tmp_path / "v.zip", "w") as archive:
            for file in files:
                archive.write(file, f"validation/{file.name}")
    for file in files:
        file.unlink()
    packed = open_objects(f"{tmp_path / BOXES}?images=v.{kind}")["all"]
    assert packed.ids == plain.ids and corners(packed) == corners(plain)
    assert packed.images.read(1)[:4] == b"\x89PNG"
    again = open_data(f"{tmp_path / LABELS}?images=v.{kind}")["all"]
    assert again.ids == labels.ids and (again.target.values == labels.target.values).all()


def test_images_that_do_not_lie_here_are_left_out_and_blocks_make_no_difference(tmp_path, monkeypatch):
    root = write_open_images(tmp_path, SAMPLES)
    whole, labels = open_objects(str(root))["val"], open_data(str(root))["val"]
    monkeypatch.setattr(openimages, "_ROWS", 2)
    assert open_objects(str(root))["val"].fingerprint() == whole.fingerprint()
    assert open_data(str(root))["val"].fingerprint() == labels.fingerprint()
    (root / "validation" / "p7.png").unlink()
    part = open_objects(str(root))["val"]
    assert part.ids == tuple(sample for sample in whole.ids if sample != "p7.png")
    assert any("2 boxes of images that are not in" in note for note in part.notes)
    for file in (root / "validation").iterdir():
        file.rename(file.with_name(f"x{file.name}"))
    with pytest.raises(DataError, match="has no box of the 5 images in"):
        open_objects(str(root / BOXES))


def test_new_images_are_seen_although_large_tables_are_kept(tmp_path, monkeypatch):
    root = write_open_images(tmp_path / "oi", SAMPLES)
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(view, "LARGE", 0)
    monkeypatch.setattr(view, "SETTLED_NS", 0)
    hidden = (root / "validation" / "p7.png").read_bytes()
    (root / "validation" / "p7.png").unlink()
    kept = [open_objects(str(root))["val"] for _ in range(2)]
    assert kept[0].fingerprint() == kept[1].fingerprint() and len(kept[1]) == 5
    assert kept[1].target.federated is not None and len(open_data(str(root))["val"]) == 5
    (root / "validation" / "p7.png").write_bytes(hidden)
    assert len(open_objects(str(root))["val"]) == len(open_data(str(root))["val"]) == 6
    Image.open(root / "validation" / "p7.png").resize((20, 10)).save(root / "validation" / "p7.png")
    larger = open_objects(str(root))["val"]
    assert larger.target.sizes[larger.ids.index("p7.png")].tolist() == [10, 20]


def test_layouts_of_other_tools_and_chosen_classes(tmp_path):
    write_open_images(tmp_path / "plain", SAMPLES)
    one = open_objects(str(tmp_path / "plain"))["val"].fingerprint()
    cvat = tmp_path / "cvat"
    (cvat / "images").mkdir(parents=True)
    (tmp_path / "plain" / "validation").rename(cvat / "images" / "validation")
    (cvat / "annotations").mkdir()
    for name in (BOXES, LABELS, "oidv7-class-descriptions.csv"):
        (tmp_path / "plain" / name).rename(cvat / "annotations" / name)
    assert open_objects(str(cvat))["val"].fingerprint() == one
    fiftyone = tmp_path / "fiftyone" / "validation"
    for name in ("labels", "metadata"):
        (fiftyone / name).mkdir(parents=True)
    (cvat / "images" / "validation").rename(fiftyone / "data")
    (cvat / "annotations" / BOXES).rename(fiftyone / "labels" / "detections.csv")
    (cvat / "annotations" / LABELS).rename(fiftyone / "labels" / "classifications.csv")
    (cvat / "annotations" / "oidv7-class-descriptions.csv").rename(fiftyone / "metadata" / "classes.csv")
    assert open_objects(str(fiftyone.parent))["val"].fingerprint() == one
    assert len(open_data(str(fiftyone / "labels" / "classifications.csv"))["all"]) == 6
    (fiftyone.parent / "some.txt").write_text("/m/01yrx\n")
    assert open_objects(f"{fiftyone.parent}?only=some.txt")["val"].target.classes == ("Cat",)
    assert open_data(f"{fiftyone.parent}?only=some.txt")["val"].target.classes == ("Cat",)
    (fiftyone.parent / "some.txt").write_text("Horse\n")
    with pytest.raises(UsageError, match="not among the classes of Open Images: Horse"):
        open_data(f"{fiftyone.parent}?only=some.txt")
    with pytest.raises(UsageError, match="there is no file"):
        open_data(f"{fiftyone.parent}?only=none.txt")
    (fiftyone / "metadata" / "classes.csv").unlink()
    unnamed = open_objects(str(fiftyone.parent))["val"]
    assert unnamed.target.classes == ("/m/01yrx", "/m/0bt9lr") and "2 labels without a name" in unnamed.notes[-1]


@pytest.mark.parametrize(
    "column, value, message",
    [
        ("XMin", "57", r"line 3: the corners are \[57.0"),
        ("XMin", "left", "could not convert string to float: 'left'"),
        ("YMax", "", "line 3: a cell is empty"),
        ("XMin", "nan", "line 3: a cell is empty"),
    ],
)
def test_damaged_boxes_are_named_with_their_line(tmp_path, column, value, message):
    file = write_open_images(tmp_path, SAMPLES) / BOXES
    rows = rows_of(file)
    rows[2][rows[0].index(column)] = value
    rewrite(file, rows)
    with pytest.raises(DataError, match=message):
        open_objects(str(file))


def test_what_cannot_be_used_is_refused_with_the_way_out(tmp_path):
    root = write_open_images(tmp_path, SAMPLES)
    rows = rows_of(root / LABELS)
    rewrite(root / "machine.csv", [rows[0], [*rows[1][:3], "0.7"]])
    with pytest.raises(DataError, match=r"line 2: Confidence is 0.7, not 0 or 1") as told:
        open_data(str(root / "machine.csv"))
    assert "human-imagelabels" in told.value.remedy
    with pytest.raises(UsageError, match="labels of whole images, but no boxes"):
        open_data(f"{root / LABELS}?unit=annotation")
    with pytest.raises(UsageError, match="no images with boxes of objects"):
        open_objects(str(root / LABELS))
    with pytest.raises(DataError, match="two tables of the val split"):
        rewrite(root / "val-labels.csv", rows)
        open_data(str(root))
    (root / "val-labels.csv").unlink()
    (root / "validation" / "p6.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1 image cannot be read, so their boxes have no size: p6\.png"):
        open_objects(str(root))


def test_labels_that_do_not_fit_into_memory_are_refused(tmp_path, monkeypatch):
    root = write_open_images(tmp_path, SAMPLES)
    monkeypatch.setattr(openimages, "_MOST_VALUES", 11)
    with pytest.raises(DataError, match="6 images and 2 classes do not fit") as told:
        open_data(str(root))
    assert "?only=" in told.value.remedy
    assert len(json.dumps(told.value.message)) < 400
