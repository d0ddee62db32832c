"""One set of images and boxes in every layout in which annotations are exchanged: each gives the same boxes."""

import json
import shutil

import numpy as np
import pytest
from helpers.annotated import NAMES, pictures, save, write_coco, write_table, write_xml, write_yolo

from sslbench.cli.main import main
from sslbench.data.export import write_kwcoco
from sslbench.data.open import open_data, open_objects
from sslbench.data.splits.objects import split_objects
from sslbench.detection.checks import check_readable
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection import masks
from sslbench.targets.classes import Classes

SAMPLES = {"train": pictures(6, seed=1), "valid": pictures(4, seed=2), "test": pictures(4, seed=3)}
ALL = SAMPLES["train"]


def voc_without_lists(root):
    save(root / "JPEGImages", ALL)
    write_xml(root / "Annotations", ALL, size=False)


def two_folders(root):
    save(root / "pictures of 2024", ALL, ".jpg")
    write_xml(root / "boxes", ALL)


def one_folder(root):
    save(root, ALL, ".jpg")
    write_xml(root, ALL)


def roboflow_voc(root):
    for split, samples in SAMPLES.items():
        save(root / split, samples)
        write_xml(root / split, samples)


def roboflow_coco(root):
    for split, samples in SAMPLES.items():
        save(root / split, samples)
        write_coco(root / split / "_annotations.coco.json", samples)


def roboflow_yolo(root):
    for split, samples in SAMPLES.items():
        save(root / split / "images", samples)
        write_yolo(root / split / "labels", samples)
    lines = [f"{key}: ../{split}/images" for key, split in (("train", "train"), ("val", "valid"), ("test", "test"))]
    (root / "data.yaml").write_text("\n".join([*lines, "nc: 2", f"names: {list(NAMES)}"]))


def roboflow_table(root):
    for split, samples in SAMPLES.items():
        save(root / split, samples)
        write_table(root / split / "_annotations.csv", samples)


def tensorflow_tables(root):
    for split, samples in SAMPLES.items():
        save(root / "images" / split, samples)
        write_table(root / f"{split}_labels.csv", samples)


def yolo_lists(root):
    """Lists of images, relative to the list, to the folder of the data, or absolute."""
    for split, prefix in (("train", "./images/"), ("valid", "images/"), ("test", f"{root.resolve()}/images/")):
        save(root / "images" / f"of {split}", SAMPLES[split])
        write_yolo(root / "labels" / f"of {split}", SAMPLES[split])
        lines = [f"{prefix}of {split}/{stem}.png" for stem in SAMPLES[split]]
        (root / f"{split}.txt").write_text("\n".join(lines) + "\n")
    places = "train: train.txt\nval: valid.txt\ntest: test.txt"
    (root / "data.yaml").write_text(f"path: .\n{places}\nnames: {list(NAMES)}\n")


def standard_coco(root):
    for split, samples in SAMPLES.items():
        name = {"valid": "val"}.get(split, split) + "2017"
        save(root / name, samples)
        write_coco(root / "annotations" / f"instances_{name}.json", samples)
    (root / "annotations" / "captions_train2017.json").write_text('{"info": {}, "images": [], "annotations": []}')


def ultralytics(root):
    for split, samples in SAMPLES.items():
        save(root / "images" / split, samples)
        write_yolo(root / "labels" / split, samples)
    (root / "classes.txt").write_text("\n".join(NAMES))


def darknet(root):
    save(root, ALL)
    write_yolo(root, ALL)
    (root / "obj.names").write_text("\n".join(NAMES) + "\n\n")


def darknet_of_cvat(root):
    save(root / "obj_train_data", ALL)
    write_yolo(root / "obj_train_data", ALL)
    (root / "obj.names").write_text("\n".join(NAMES) + "\n")
    (root / "obj.data").write_text("classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n")
    (root / "train.txt").write_text("".join(f"data/obj_train_data/{stem}.png\n" for stem in ALL))


def fiftyone(root):
    save(root / "data", ALL)
    write_coco(root / "labels.json", ALL)


def cvat(root):
    save(root / "images", ALL)
    write_coco(root / "annotations" / "instances_default.json", ALL)


def in_halves():
    """The pictures in two folders, of which neither is a split."""
    items = list(ALL.items())
    return {"camera 1": dict(items[:3]), "camera 2": dict(items[3:])}


def voc_in_folders(root):
    for folder, samples in in_halves().items():
        save(root / "JPEGImages" / folder, samples, ".jpg")
        write_xml(root / "Annotations" / folder, samples)


def voc_xml_in_folders(root):
    save(root / "images", ALL)
    for folder, samples in in_halves().items():
        write_xml(root / "xml" / folder, samples)


WHOLE = (
    *(voc_without_lists, two_folders, one_folder, voc_in_folders, voc_xml_in_folders),
    *(darknet, darknet_of_cvat, fiftyone, cvat),
)
SPLIT = (
    roboflow_voc,
    roboflow_coco,
    roboflow_yolo,
    roboflow_table,
    tensorflow_tables,
    yolo_lists,
    standard_coco,
    ultralytics,
)


def boxes_of(source):
    """Stem -> the boxes of an image with their classes, sorted."""
    found = {}
    for name, objects in zip(source.ids, source.target.objects, strict=True):
        rows = zip((source.target.classes[c] for c in objects.classes), objects.boxes.tolist(), strict=True)
        found[name.rpartition("/")[2].rpartition(".")[0]] = sorted((c, *map(float, np.round(b, 3))) for c, b in rows)
    return found


def truth(samples):
    return {stem: sorted((c, *map(float, b)) for c, *b in boxes) for stem, (_, boxes) in samples.items()}


@pytest.mark.parametrize("write", WHOLE, ids=lambda write: write.__name__)
def test_a_folder_without_splits_gives_the_boxes_that_were_written(tmp_path, write):
    write(tmp_path / "set")
    found = open_objects(str(tmp_path / "set"))
    assert list(found) == ["all"] and found["all"].target.classes == NAMES
    assert boxes_of(found["all"]) == truth(ALL)
    assert found["all"].target.sizes.tolist() == [[30, 40]] * len(ALL)


@pytest.mark.parametrize("write", SPLIT, ids=lambda write: write.__name__)
def test_a_folder_with_splits_gives_the_boxes_that_were_written(tmp_path, write):
    write(tmp_path / "set")
    found = open_objects(str(tmp_path / "set"))
    assert {split: boxes_of(source) for split, source in found.items()} == {
        "train": truth(SAMPLES["train"]),
        "val": truth(SAMPLES["valid"]),
        "test": truth(SAMPLES["test"]),
    }
    assert {source.target.classes for source in found.values()} == {NAMES}


def test_folders_of_classes_with_xml_have_boxes_and_stay_classes(tmp_path):
    for folder, samples in in_halves().items():
        save(tmp_path / folder, samples)
        write_xml(tmp_path / folder, samples)
    source = open_objects(str(tmp_path))["all"]
    assert boxes_of(source) == truth(ALL) and source.target.classes == NAMES
    assert any("the classes are those in the XML" in note for note in source.notes)
    samples = open_data(str(tmp_path))["all"]
    assert samples.target.classes == ("camera 1", "camera 2")
    assert any("the XML beside the images has boxes" in note for note in samples.notes)


def test_folders_of_classes_inside_of_splits_have_boxes_and_stay_classes(tmp_path):
    for split, samples in SAMPLES.items():
        for name, picture in samples.items():
            save(tmp_path / split / f"of {name}", {name: picture}, ".jpg")
            write_xml(tmp_path / split / f"of {name}", {name: picture})
    found = open_objects(str(tmp_path))
    wanted = {"train": SAMPLES["train"], "val": SAMPLES["valid"], "test": SAMPLES["test"]}
    assert {split: boxes_of(source) for split, source in found.items()} == {s: truth(p) for s, p in wanted.items()}
    assert found["train"].ids[0] == "of p0/p0.jpg"
    samples = open_data(str(tmp_path))["train"]
    assert samples.target.classes == tuple(f"of {name}" for name in SAMPLES["train"])
    assert any("the XML beside the images has boxes" in note for note in samples.notes)
    (tmp_path / "validation").symlink_to(tmp_path / "valid")
    with pytest.raises(DataError, match="two folders for the val split"):
        open_objects(str(tmp_path))


def grouped_table(root):
    save(root, ALL)
    columns = ("filename", "class", "xmin", "ymin", "xmax", "ymax")
    write_table(root / "boxes.csv", ALL, columns)
    lines = (root / "boxes.csv").read_text().splitlines()
    patients = [f"{line},{'ann' if line < 'p3' else 'bob'}" for line in lines[1:]]
    (root / "boxes.csv").write_text("\n".join([f"{lines[0]},Patient", *patients]) + "\n")
    return root / "boxes.csv"


def grouped_manifest(root):
    save(root, ALL)
    write_coco(root / "boxes.json", ALL)
    content = json.loads((root / "boxes.json").read_text())
    for image in content["images"]:
        image["Patient"] = "ann" if image["file_name"] < "p3" else "bob"
    (root / "boxes.json").write_text(json.dumps(content))
    return root / "boxes.json"


@pytest.mark.parametrize("write", [grouped_table, grouped_manifest], ids=lambda write: write.__name__)
def test_groups_of_images_stay_together(tmp_path, write):
    file = write(tmp_path)
    source = open_objects(f"{file}?group=Patient")["all"]
    assert boxes_of(source) == truth(ALL)
    assert source.attributes[source.grouped_by] == ("ann",) * 3 + ("bob",) * 3
    assert source.fingerprint() != open_objects(str(file))["all"].fingerprint()
    assert source.truth().groups.tolist() == [0, 0, 0, 1, 1, 1]
    parts = split_objects(f"{file}?group=Patient", test_fraction=0.5)
    assert [set(part.attributes["Patient"]) for part in (parts.train, parts.test)] in (
        [{"ann"}, {"bob"}],
        [{"bob"}, {"ann"}],
    )
    assert "by Patient" in parts.how
    assert open_data(f"{file}?group=Patient")["all"].grouped_by == "Patient"
    with pytest.raises(UsageError, match=r"'Patent'(.|\n)*[Pp]atient"):
        open_objects(f"{file}?group=Patent")


def test_rows_of_one_image_are_of_one_group(tmp_path):
    file = grouped_table(tmp_path)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines, lines[1].replace("ann", "bob")]) + "\n")
    with pytest.raises(DataError, match=r"the rows of p0.png contradict each other: ann and bob"):
        open_objects(f"{file}?group=patient")


def test_lists_of_yolo_divide_one_folder(tmp_path):
    save(tmp_path / "images", ALL)
    write_yolo(tmp_path / "labels", ALL)
    parts = {"train": list(ALL)[:4], "val": list(ALL)[4:]}
    for split, stems in parts.items():
        (tmp_path / f"{split}.txt").write_text("\n".join(f"images/{stem}.png" for stem in stems))
    (tmp_path / "data.yaml").write_text(f"train: train.txt\nval: val.txt\nnames: {list(NAMES)}\n")
    found = open_objects(str(tmp_path / "data.yaml"))
    assert {s: boxes_of(part) for s, part in found.items()} == {
        s: truth({stem: ALL[stem] for stem in stems}) for s, stems in parts.items()
    }


def test_images_of_a_list_of_yolo_that_do_not_exist_are_named(tmp_path):
    yolo_lists(tmp_path)
    (tmp_path / "train.txt").write_text("images/nowhere.png\n")
    with pytest.raises(DataError, match=r"train.txt: 1 of 1 image file missing: images/nowhere.png"):
        open_objects(str(tmp_path))
    (tmp_path / "train.txt").write_text("\n")
    with pytest.raises(DataError, match=r"train.txt: the list of images is empty"):
        open_objects(str(tmp_path))


@pytest.mark.parametrize("write", (*WHOLE, *SPLIT), ids=lambda write: write.__name__)
def test_samples_have_the_classes_of_their_boxes_and_an_export_keeps_both(tmp_path, write):
    write(tmp_path / "set")
    spec, out = str(tmp_path / "set"), tmp_path / "out.kwcoco.json"
    samples = open_data(spec)
    first = samples.get("train", samples.get("all"))
    wanted = [NAMES.index(ALL[name.rpartition("/")[2].rpartition(".")[0]][1][0][0]) for name in first.ids]
    assert (
        isinstance(first.target, Classes) and first.target.classes == NAMES and first.target.values.tolist() == wanted
    )
    assert len(open_data(f"{spec}?unit=annotation&min_size=1")[next(iter(samples))]) == sum(
        map(len, truth(ALL).values())
    )
    write_kwcoco(samples, out)
    again = open_data(str(out))
    assert {s: (x.ids, x.target.classes, x.target.values.tolist()) for s, x in again.items()} == {
        s: (x.ids, x.target.classes, x.target.values.tolist()) for s, x in samples.items()
    }
    objects = open_objects(spec)
    write_kwcoco(objects, out, overwrite=True)
    assert {s: boxes_of(x) for s, x in open_objects(str(out)).items()} == {s: boxes_of(x) for s, x in objects.items()}


@pytest.mark.parametrize(
    "columns",
    [
        ("filename", "cell_type", "xmin", "xmax", "ymin", "ymax"),
        ("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"),
        ("class", "ymax", "xmax", "ymin", "xmin", "filename"),
    ],
)
def test_the_order_of_the_columns_of_a_table_does_not_matter(tmp_path, columns):
    save(tmp_path / "photos", ALL)
    write_table(tmp_path / "lists" / "boxes.csv", ALL, columns)
    with pytest.raises(DataError, match=r"6 of 6 image files missing[^\n]*\n.*boxes.csv\?images=../photos"):
        open_objects(str(tmp_path / "lists" / "boxes.csv"))
    for folder in ("../photos", str(tmp_path / "photos")):
        source = open_objects(f"{tmp_path / 'lists' / 'boxes.csv'}?images={folder}")["all"]
        assert boxes_of(source) == truth(ALL) and source.target.sizes.tolist() == [[30, 40]] * 6


def test_images_of_a_manifest_may_lie_elsewhere(tmp_path):
    save(tmp_path / "photos", ALL)
    write_coco(tmp_path / "lists" / "m.json", ALL)
    spec = str(tmp_path / "lists" / "m.json")
    with pytest.raises(DataError, match=r"6 of 6 image files missing") as error:
        open_objects(spec)
    assert f"{spec}?images=FOLDER" in str(error.value) and "Looked for p0.png in" in str(error.value)
    assert boxes_of(open_objects(f"{spec}?images=../photos")["all"]) == truth(ALL)
    assert len(open_data(f"{spec}?images=../photos")["all"]) == 6
    with pytest.raises(UsageError, match=r"there is no folder .*nowhere"):
        open_objects(f"{spec}?images=nowhere")
    with pytest.raises(UsageError, match=r"takes no option, and '\?images='"):
        one_folder(tmp_path / "one")
        open_objects(f"{tmp_path / 'one'}?images=../photos")


def test_an_option_of_another_layout_does_not_hide_that_a_place_is_missing_or_has_no_boxes(tmp_path):
    save(tmp_path / "photos", ALL)
    with pytest.raises(UsageError, match="does not exist"):
        open_objects(f"{tmp_path / 'boxs.csv'}?images=photos")
    with pytest.raises(UsageError, match="no images with boxes of objects were found"):
        open_objects(f"{tmp_path / 'photos'}?group=patient")
    with pytest.raises(UsageError, match="unknown key 'imges'") as error:
        open_objects(f"{tmp_path / 'photos'}?imges=photos")
    assert "Did you mean 'images'?" in str(error.value)


def test_lvis_names_the_place_of_an_image_by_its_address(tmp_path):
    save(tmp_path / "coco" / "train2017", ALL)
    write_coco(tmp_path / "lvis" / "lvis_v1_train.json", ALL)
    file = tmp_path / "lvis" / "lvis_v1_train.json"
    content = json.loads(file.read_text())
    for image in content["images"]:
        image["coco_url"] = f"http://images.cocodataset.org/train2017/{image.pop('file_name')}"
    file.write_text(json.dumps(content))
    source = open_objects(str(file))["all"]
    assert source.ids[0] == "train2017/p0.png" and boxes_of(source) == truth(ALL)


def test_polygons_of_yolo_become_masks(tmp_path):
    save(tmp_path / "images", dict(list(ALL.items())[:2]))
    (tmp_path / "labels").mkdir()
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    corners = [(0.25, 0.2), (0.75, 0.2), (0.75, 0.8), (0.25, 0.8)]
    line = " ".join(f"{value:.4f}" for corner in corners for value in corner)
    (tmp_path / "labels" / "p0.txt").write_text(f"1 {line}\n")
    source = open_objects(str(tmp_path))["all"]
    assert source.target.objects[0].boxes.tolist() == [[10, 6, 30, 24]] and source.target.classes == ("dog",)
    assert source.target.objects[0].areas.tolist() == pytest.approx([20 * 18])
    bitmap = masks.decode(source.masks_of(0)[0])
    wanted = np.zeros((30, 40), bool)
    wanted[6:24, 10:30] = True
    assert np.array_equal(bitmap.astype(bool), wanted)
    assert len(source) == 2 and not len(source.target.objects[1])  # an image without a text file has no objects


def test_a_description_of_yolo_names_the_classes_by_number(tmp_path):
    save(tmp_path / "a" / "images", ALL)
    (tmp_path / "a" / "labels").mkdir()
    (tmp_path / "a" / "labels" / "p0.txt").write_text("1 0.5 0.5 0.2 0.2\n")
    file = tmp_path / "data of a.yaml"
    file.write_text("path: a\ntrain: images\nval: images\nnames:\n  0: cat\n  1: dog\n")
    source = open_objects(str(file))["train"]
    assert source.target.classes == ("dog",) and source.target.objects[0].boxes.tolist() == [[16, 12, 24, 18]]
    assert open_data(str(file))["val"].target.classes == ("dog",)


def test_a_line_that_is_no_box_of_yolo_is_named(tmp_path):
    for line, words in (
        ("0 0.5 0.5 0.2", "neither a box"),
        ("0 0.5 0.5 0.2 0.2 0.9", "these are predictions"),
        ("2 0.5 0.5 0.2 0.2", "the class is 2, and there are 2 classes"),
        ("-1 0.5 0.5 0.2 0.2", "the class is -1"),
        ("0.5 0.5 0.5 0.2 0.2", "the class is 0.5"),
        ("0 20 15 8 6", "20 is no share of the image"),
        ("0 nan 0.5 0.2 0.2", "nan is no share"),
        ("cat 0.5 0.5 0.2 0.2", "neither a box"),
    ):
        save(tmp_path / "images", ALL)
        write_yolo(tmp_path / "labels", ALL)
        (tmp_path / "classes.txt").write_text("cat\ndog\n")
        (tmp_path / "labels" / "p3.txt").write_text(f"0 0.5 0.5 0.2 0.2\n{line}\n")
        with pytest.raises(DataError, match=rf"p3\.txt, line 2: .*{words}"):
            open_objects(str(tmp_path))


def test_classes_of_yolo_without_names_are_asked_for(tmp_path):
    save(tmp_path / "images", ALL)
    write_yolo(tmp_path / "labels", ALL)
    with pytest.raises(DataError, match="there is no list of their names") as error:
        open_objects(str(tmp_path))
    assert "classes.txt" in str(error.value)


def test_annotations_without_an_image_and_images_without_annotations(tmp_path):
    two_folders(tmp_path)
    (tmp_path / "boxes" / "p1.xml").unlink()
    source = open_objects(str(tmp_path))["all"]
    assert len(source) == 5 and "1 image without an XML file left out: p1.jpg" in " ".join(source.notes)
    (tmp_path / "pictures of 2024" / "p0.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 5 XML files without an image: p0\.xml"):
        open_objects(str(tmp_path))


def test_boxes_that_are_shares_of_the_image_are_refused_with_the_remedy(tmp_path):
    save(tmp_path, ALL)
    write_coco(tmp_path / "m.json", ALL)
    content = json.loads((tmp_path / "m.json").read_text())
    for row in content["annotations"]:
        x, y, w, h = row["bbox"]
        row["bbox"] = [x / 40, y / 30, w / 40, h / 30]
    (tmp_path / "m.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"all 9 boxes lie between 0 and 1.*shares of the image") as error:
        open_objects(str(tmp_path / "m.json"))
    assert "Multiply x by the width" in str(error.value)
    content["annotations"][0]["bbox"] = [1, 1, 5, 5]  # not all of them: a box may be smaller than a pixel
    (tmp_path / "m.json").write_text(json.dumps(content))
    assert len(open_objects(str(tmp_path / "m.json"))["all"]) == 6


def test_several_sources_of_boxes_are_joined_by_the_names_of_their_classes(tmp_path):
    one_folder(tmp_path / "a")
    write_coco(tmp_path / "b" / "m.json", ALL)
    save(tmp_path / "b", ALL)
    content = json.loads((tmp_path / "b" / "m.json").read_text())
    content["categories"] = [{"id": 1, "name": "dog"}, {"id": 2, "name": "bird"}]
    (tmp_path / "b" / "m.json").write_text(json.dumps(content))
    source = open_objects(f"several:b={tmp_path / 'b' / 'm.json'},a={tmp_path / 'a'}")["all"]
    assert source.target.classes == ("cat", "dog", "bird") and list(source.ids) == sorted(source.ids)
    renamed = {"cat": "dog", "dog": "bird"}
    rows = list(zip(source.ids, source.target.objects, strict=True))
    for name, objects in rows:
        own = [c for c, *_ in ALL[name[2:4]][1]]
        there = [source.target.classes[c] for c in objects.classes]
        assert there == (own if name[0] == "a" else [renamed[c] for c in own])
    notes = " ".join(source.notes)
    assert "6 images of a, 6 images of b" in notes
    assert "b has no boxes of 1 class (cat): such objects in its images count as background" in notes
    assert source.attributes["origin"] == ("a",) * 6 + ("b",) * 6
    roboflow_voc(tmp_path / "c")
    with pytest.raises(UsageError, match="c has splits"):
        open_objects(f"several:a={tmp_path / 'a'},c={tmp_path / 'c'}")


def test_several_kinds_of_manifests_or_folders_are_named_not_guessed(tmp_path):
    standard_coco(tmp_path / "set")
    notes = tmp_path / "set" / "annotations"
    shutil.move(notes / "instances_train2017.json", notes / "mine_train.json")
    shutil.move(notes / "instances_val2017.json", notes / "yours_val.json")
    shutil.move(notes / "instances_test2017.json", notes / "yours_test.json")
    with pytest.raises(DataError, match=r"several kinds of manifests: mine_train\.json, yours_test\.json"):
        open_objects(str(tmp_path / "set"))
    two_folders(tmp_path / "two")
    save(tmp_path / "two" / "more", ALL)
    with pytest.raises(DataError, match="more/, pictures of 2024/ hold images"):
        open_objects(str(tmp_path / "two"))


def test_data_without_boxes_say_what_was_found_and_what_was_looked_for(tmp_path, class_folders):
    folder = class_folders(tmp_path / "photos", cat=2, dog=3)
    with pytest.raises(
        UsageError, match=r"boxes of objects were found in .*photos \(cat/: 2 \.png; dog/: 3 \.png\)"
    ) as error:
        open_objects(str(folder))
    for kind in ("YOLO", "Pascal VOC's XML", "COCO", "Table of boxes"):
        assert kind in str(error.value)


def rotated(folder, stem):
    """Mark a picture as rotated by 90 degrees."""
    picture, _ = ALL[stem]
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(folder / f"{stem}.jpg", exif=exif)


def checked(folder, decoded, capsys):
    """Exit code and output of the check of a folder."""
    with pytest.raises(SystemExit) as ended:
        main(["check-data", str(folder), "--boxes", "--decode", decoded, "--workers", "0", "--near-copies", "none"])
    return ended.value.code, " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("decoded", ["all", "0"])
def test_a_check_of_boxes_refuses_what_an_evaluation_refuses(tmp_path, decoded, capsys):
    """Sizes are compared for every image, whether or not it is decoded."""
    one_folder(tmp_path / "set")
    rotated(tmp_path / "set", "p1")
    ALL["p4"][0].resize((20, 15)).save(tmp_path / "set" / "p4.jpg")
    parts = split_objects(str(tmp_path / "set"), seed=0)
    with pytest.raises(DataError) as refused:
        check_readable([parts.train, parts.test])
    code, shown = checked(tmp_path / "set", decoded, capsys)
    assert code == 1
    for words in ("p1.jpg is 30 x 40 pixels, but the annotations are for 40 x 30", "p4.jpg is 20 x 15 pixels"):
        assert words in " ".join(str(refused.value).split()) and words in shown
    assert "p1.jpg" in shown and "it is turned by EXIF, and these are width and height of its stored pixels" in shown
    assert "p0.jpg is" not in shown and "p2.jpg is" not in shown


def test_images_that_are_lines_are_found_before_training(tmp_path, capsys):
    one_folder(tmp_path)
    ALL["p0"][0].resize((3000, 1)).save(tmp_path / "p0.jpg")
    file = tmp_path / "p0.xml"
    file.write_text(file.read_text().replace("<width>40</width><height>30", "<width>3000</width><height>1"))
    code, shown = checked(tmp_path, "0", capsys)
    assert code == 1 and "1 image too narrow for the usual recipes" in shown
