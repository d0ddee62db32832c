"""Booleans in manifests: 0, 1, true and false are read in every kind of manifest, and nothing else is guessed."""

import json

import pytest
from helpers import containers

from sslbench.data.labels import boolean
from sslbench.data.open import open_as, open_data, open_objects
from sslbench.errors import DataError
from sslbench.targets.label_maps import LabelMaps

TRUE, FALSE = (1, True, 1.0, "1", "true", "True", " 1 "), (0, False, 0.0, "0", "false", "FALSE", None)
NEITHER = (2, -1, 0.5, float("nan"), "", "no", "yes", "2", "None", [], [1], {}, {"a": 1})


@pytest.mark.parametrize(("values", "expected"), [(TRUE, True), (FALSE, False)])
def test_what_is_read(values, expected):
    assert [boolean(value, "a.json", "iscrowd") for value in values] == [expected] * len(values)


def test_everything_else_is_refused_with_its_place():
    for value in NEITHER:
        with pytest.raises(DataError, match=r"^a\.json, annotation 3: iscrowd is .*\nIt should be 0, 1, true or false"):
            boolean(value, "a.json, annotation 3", "iscrowd")


def manifest(folder, **annotation):
    """A COCO manifest of two images with one annotation each, of which the second has further keys."""
    (folder / "a.png").write_bytes(containers.png(1))
    (folder / "b.png").write_bytes(containers.png(2))
    box = {"bbox": [1, 1, 8, 8], "category_id": 1}
    content = {
        "images": [{"id": i, "file_name": name, "width": 20, "height": 20} for i, name in ((1, "a.png"), (2, "b.png"))],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, **box}, {"id": 7, "image_id": 2, **box, **annotation}],
    }
    file = folder / "photos.json"
    file.write_text(json.dumps(content))
    return str(file)


@pytest.mark.parametrize("key", ["iscrowd", "ignore", "difficult"])
def test_marks_of_a_coco_manifest(tmp_path, key):
    for value, marked in (("0", False), ("false", False), (0, False), ("1", True), (True, True)):
        spec = manifest(tmp_path, **{key: value})
        (objects,) = open_objects(spec).values()
        counted = objects.target.objects[1]
        assert (counted.crowd if key == "iscrowd" else counted.difficult).tolist() == [marked]
        (labelled,) = open_data(spec).values()
        assert labelled.target.text(1) == ("?cat" if marked else "cat")
    for opened in (open_data, open_objects):
        with pytest.raises(DataError, match=rf"photos\.json, annotation 7: {key} is 'no'"):
            opened(manifest(tmp_path, **{key: "no"}))


def voc(folder, difficult):
    year = folder / "VOC2007"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (year / name).mkdir(parents=True)
    (year / "JPEGImages" / "1.png").write_bytes(containers.png(1))
    (year / "ImageSets" / "Main" / "trainval.txt").write_text("1\n")
    (year / "ImageSets" / "Main" / "cat_trainval.txt").write_text("1 1\n")
    box = "<xmin>1</xmin><ymin>1</ymin><xmax>8</xmax><ymax>8</ymax>"
    text = f"<a><object><name>cat</name>{difficult}<bndbox>{box}</bndbox></object></a>"
    (year / "Annotations" / "1.xml").write_text(text)
    return str(year)


def test_difficult_objects_of_voc(tmp_path):
    for i, (text, difficult) in enumerate(
        (
            ("", False),
            ("<difficult/>", False),
            ("<difficult>0</difficult>", False),
            ("<difficult> 1\n</difficult>", True),
            ("<difficult>true</difficult>", True),
        )
    ):
        sources = open_objects(voc(tmp_path / str(i), text))
        found = [
            flag for source in sources.values() for part in source.target.objects for flag in part.difficult.tolist()
        ]
        assert found and set(found) == {difficult}, text


def test_difficult_that_is_no_boolean_is_named_with_its_object(tmp_path):
    with pytest.raises(DataError, match=r"\.xml, object 1: difficult is 'Unspecified'"):
        open_objects(voc(tmp_path, "<difficult>Unspecified</difficult>"))


def test_flags_of_a_table_may_be_written_in_words(tmp_path):
    (tmp_path / "a.png").write_bytes(containers.png(1))
    (tmp_path / "b.png").write_bytes(containers.png(2))
    (tmp_path / "t.csv").write_text("path,cat,dog\na.png,true,FALSE\nb.png,0,1\n")
    (source,) = open_data(str(tmp_path / "t.csv")).values()
    assert source.target.classes == ("cat", "dog")
    assert source.target.values.tolist() == [[1, 0], [0, 1]]


def panoptic(folder, category, segment):
    """COCO's panoptic layout with one picture of one segment."""
    from PIL import Image

    (folder / "val2017").mkdir()
    (folder / "annotations" / "panoptic_val2017").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "val2017" / "1.jpg")
    Image.new("RGB", (8, 8), (1, 0, 0)).save(folder / "annotations" / "panoptic_val2017" / "1.png")
    content = {
        "images": [{"id": 1, "file_name": "1.jpg", "width": 8, "height": 8}],
        "categories": [{"id": 1, "name": "sky", **category}],
        "annotations": [
            {"image_id": 1, "file_name": "1.png", "segments_info": [{"id": 1, "category_id": 1, "area": 64, **segment}]}
        ],
    }
    file = folder / "annotations" / "panoptic_val2017.json"
    file.write_text(json.dumps(content))
    return str(file)


@pytest.mark.parametrize(
    ("category", "segment", "message"),
    [
        ({"isthing": "no"}, {}, r"panoptic_val2017\.json, category 1: isthing is 'no'"),
        ({}, {"iscrowd": "no"}, r"a segment of annotations\[0\] with the id 1: iscrowd is 'no'"),
    ],
)
def test_marks_of_a_panoptic_manifest_are_named(tmp_path, category, segment, message):
    with pytest.raises(DataError, match=message):
        open_as(panoptic(tmp_path, category, segment), LabelMaps)


def test_marks_of_a_panoptic_manifest_may_be_text(tmp_path):
    (maps,) = open_as(panoptic(tmp_path, {"isthing": "0"}, {"iscrowd": "0"}), LabelMaps).values()
    assert len(maps) == 1
