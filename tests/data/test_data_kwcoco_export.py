"""A manifest written of any source gives that source back."""

import io
import json

import numpy as np
import pytest
from click.testing import CliRunner
from helpers import containers
from helpers.containers import pictures
from PIL import Image

from sslbench.cli.main import cli
from sslbench.data.export import write_kwcoco
from sslbench.data.open import open_data, open_objects
from sslbench.errors import UsageError
from sslbench.targets.multilabel import MultiLabel

WRITE = {
    "folder": containers.write_folder,
    "csv": containers.write_csv,
    "txt": containers.write_txt,
    "records": containers.write_records,
    "coco": containers.write_coco,
    "voc": containers.write_voc,
    "vissl": containers.write_vissl,
    "tar": containers.write_tar,
    "shards": containers.write_shards,
    "zip": containers.write_zip,
    "tsv": containers.write_tsv,
    "tfds": containers.write_tfds,
    "parquet": containers.write_parquet,
    "saved": containers.write_saved,
}
FILES = ("folder", "csv", "txt", "records", "coco", "voc", "vissl")


def pixels(image):
    return image if isinstance(image, np.ndarray) else np.array(Image.open(io.BytesIO(image)))


def assert_same(before, after):
    assert list(before) == list(after)
    for split in before:
        a, b = before[split], after[split]
        assert a.ids == b.ids
        assert a.target.name == b.target.name and a.target.classes == b.target.classes
        assert np.array_equal(a.target.values, b.target.values)
        for i in range(len(a)):
            assert np.array_equal(pixels(a.images.read(i)), pixels(b.images.read(i)))


@pytest.mark.parametrize("kind", WRITE)
def test_the_manifest_of_every_kind_of_source_gives_it_back(tmp_path, kind):
    if kind in ("parquet", "saved"):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    (tmp_path / "in").mkdir()
    before = open_data(WRITE[kind](tmp_path / "in", pictures()))
    for suffix in (".kwcoco.json", ".kwcoco.zip"):
        folder = tmp_path / suffix.rpartition(".")[2]
        folder.mkdir()
        out, images = folder / f"m{suffix}", folder / "images"
        if kind not in FILES:
            with pytest.raises(UsageError, match="--extract"):
                write_kwcoco(before, out)
            assert list(folder.iterdir()) == []
        written = write_kwcoco(before, out, extract=images)
        after = open_data(str(out))
        assert_same(before, after)
        assert all(before[split].fingerprint() == after[split].fingerprint() for split in before)
        assert written.extracted == (0 if kind in FILES else 12)
        assert images.exists() == (kind not in FILES)


def test_splits_with_the_same_ids_and_classes_of_their_own_are_kept(tmp_path, class_folders):
    class_folders(tmp_path / "photos" / "train", cat=3, dog=2)
    class_folders(tmp_path / "photos" / "test", dog=1, eel=2)
    before = open_data(str(tmp_path / "photos"))
    write_kwcoco(before, tmp_path / "m.kwcoco.json")
    after = open_data(str(tmp_path / "m.kwcoco.json"))
    assert set(after["train"].ids) & set(after["test"].ids)
    assert_same(before, after)


def test_ignored_classes_numbers_unlabelled_images_and_further_columns_come_back(tmp_path, picture):
    for name in "abc":
        picture(tmp_path / f"{name}.png")
    (tmp_path / "multi.csv").write_text("path,label,site\na.png,cat;?dog,north\nb.png,dog,\nc.png,?cat,south\n")
    (tmp_path / "numbers.csv").write_text("path,age\na.png,1.5\nb.png,-2\nc.png,0.1\n")
    (tmp_path / "plain.txt").write_text("a.png\nb.png\nc.png\n")
    cases = {"multi.csv": {"attribute_columns": ["site"]}, "numbers.csv": {"value_columns": ["age"]}, "plain.txt": {}}
    for name, columns in cases.items():
        before = open_data(str(tmp_path / name), **columns)
        out = tmp_path / f"{name}.kwcoco.json"
        write_kwcoco(before, out)
        assert_same(before, open_data(str(out)))
    kept = open_data(str(tmp_path / "multi.csv.kwcoco.json"), attribute_columns=["site"])["all"]
    assert kept.attributes == {"site": ("north", "", "south")}


def test_arrays_become_pictures_without_loss(tmp_path):
    before = open_data("sklearn:digits")
    part = {"all": before["all"].select(range(40))}
    write_kwcoco(part, tmp_path / "d.kwcoco.json", extract=tmp_path / "digits")
    assert_same(part, open_data(str(tmp_path / "d.kwcoco.json")))


def test_boxes_masks_and_marks_are_kept(tmp_path):
    before = open_objects("kwcoco:shapes8-64")["all"]
    write_kwcoco({"all": before}, tmp_path / "s.kwcoco.json")
    after = open_objects(str(tmp_path / "s.kwcoco.json"))["all"]
    assert (
        after.ids == before.ids
        and after.target.classes == before.target.classes
        and after.target.class_numbers == before.target.class_numbers
    )
    for a, b in zip(before.target.objects, after.target.objects, strict=True):
        assert np.allclose(a.boxes, b.boxes) and np.array_equal(a.classes, b.classes)
        assert np.array_equal(a.areas, b.areas) and a.masks == b.masks
    assert np.array_equal(before.truth(masks=True).areas, after.truth(masks=True).areas)


def test_difficult_objects_of_voc_stay_so(tmp_path, picture):
    year = tmp_path / "VOC2007"
    for folder in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (year / folder).mkdir(parents=True)
    picture(year / "JPEGImages" / "1.png")
    (year / "ImageSets/Main/train.txt").write_text("1\n")
    (year / "ImageSets/Main/cat_train.txt").write_text("1 1\n")
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>4</ymax></bndbox>"
    size = "<size><width>6</width><height>5</height></size>"
    objects = "".join(f"<object><name>cat</name><difficult>{d}</difficult>{box}</object>" for d in (0, 1))
    (year / "Annotations/1.xml").write_text(f"<annotation><filename>1.png</filename>{size}{objects}</annotation>")
    write_kwcoco(open_objects(str(year)), tmp_path / "v.kwcoco.json")
    (after,) = open_objects(str(tmp_path / "v.kwcoco.json")).values()
    assert after.target.objects[0].difficult.tolist() == [False, True]
    assert after.target.objects[0].boxes.tolist() == [[0, 0, 3, 4]] * 2


def test_kwcoco_itself_reads_what_is_written(tmp_path, class_folders):
    kwcoco = pytest.importorskip("kwcoco")
    root = class_folders(tmp_path / "photos", cat=2, dog=1)
    write_kwcoco(open_data(str(root)), tmp_path / "m.kwcoco.json")
    manifest = kwcoco.CocoDataset(str(tmp_path / "m.kwcoco.json"))
    assert manifest.n_images == 3 and manifest.missing_images() == []
    assert sorted(cat["name"] for cat in manifest.cats.values()) == ["cat", "dog"]


def test_a_manifest_that_was_edited_is_read_like_any_other(tmp_path, class_folders):
    root = class_folders(tmp_path / "photos", cat=2, dog=1)
    write_kwcoco(open_data(str(root)), tmp_path / "m.kwcoco.json")
    content = json.loads((tmp_path / "m.kwcoco.json").read_text())
    content["categories"].append({"id": 9, "name": "eel"})
    content["annotations"].append({"id": 9, "image_id": 1, "category_id": 9})
    (tmp_path / "m.kwcoco.json").write_text(json.dumps(content))
    source = open_data(str(tmp_path / "m.kwcoco.json"))["all"]
    assert isinstance(source.target, MultiLabel) and source.target.text(0) == "cat;eel"
    assert source.ids == ("cat/0.png", "cat/1.png", "dog/0.png")


def test_paths_are_relative_to_the_manifest_or_absolute_on_request(tmp_path, class_folders):
    root = class_folders(tmp_path / "photos", cat=1, dog=1)
    (tmp_path / "lists").mkdir()
    for absolute, expected in ((False, "../photos/cat/0.png"), (True, str(root / "cat" / "0.png"))):
        out = tmp_path / "lists" / f"{absolute}.kwcoco.json"
        write_kwcoco(open_data(str(root)), out, absolute=absolute)
        assert json.loads(out.read_text())["images"][0]["file_name"] == expected
        assert open_data(str(out))["all"].ids == ("cat/0.png", "dog/0.png")


def test_what_exists_is_not_overwritten_unless_asked(tmp_path, class_folders):
    root = class_folders(tmp_path / "photos", cat=1, dog=1)
    out = tmp_path / "m.kwcoco.json"
    out.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        write_kwcoco(open_data(str(root)), out)
    assert out.read_text() == "mine"
    write_kwcoco(open_data(str(root)), out, overwrite=True)
    with pytest.raises(UsageError, match="end in"):
        write_kwcoco(open_data(str(root)), tmp_path / "m.yaml")
    (tmp_path / "ex" / "all").mkdir(parents=True)
    (tmp_path / "ex" / "all" / "x").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        write_kwcoco(open_data("sklearn:digits"), tmp_path / "d.json", extract=tmp_path / "ex")


def test_the_command_says_what_it_wrote(tmp_path, class_folders):
    root = class_folders(tmp_path / "photos", cat=2, dog=1)
    out = tmp_path / "m.kwcoco.zip"
    done = CliRunner().invoke(cli, ["data", "to-kwcoco", str(root), str(out)], catch_exceptions=False)
    assert done.exit_code == 0 and "3 images (all 3), 3 annotations" in done.output


def add_known_class(content):
    content["info"][0]["splits"]["all"]["classes"] = ["new"]
    content["annotations"].append({"id": 1, "image_id": 1, "category_id": 1})


def test_what_a_manifest_says_of_its_labels_counts_only_as_long_as_it_agrees(tmp_path, picture):
    for name in "abc":
        picture(tmp_path / f"{name}.png")
    for labels, change in (
        ("single", lambda m: m["annotations"].pop()),
        ("single", lambda m: m["annotations"].append({"id": 99, "image_id": 1, "category_id": 2})),
        ("single", lambda m: m["annotations"][0].update(iscrowd=1)),
        ("single", lambda m: m["annotations"].append({"id": 99, "image_id": 1, "category_id": 2, "iscrowd": 1})),
        ("single", lambda m: m["info"][0]["splits"]["all"]["classes"].remove("dog")),
        ("single", lambda m: m["info"][0]["splits"].update(all={"labels": "single"})),
        ("single", lambda m: m["info"][0]["splits"].pop("all")),
        ("single", lambda m: m["images"][0].pop("sslbench_id")),
        ("none", lambda m: m["annotations"].append({"id": 1, "image_id": 1, "category_id": 1})),
        ("none", add_known_class),
        ("value", lambda m: m["images"][0].pop("sslbench_values")),
        ("value", lambda m: m["images"][0]["sslbench_values"].append(1.0)),
    ):
        rows = {"single": "path,label\na.png,cat\nb.png,dog\nc.png,cat\n", "none": "path\na.png\nb.png\nc.png\n"}
        (tmp_path / "t.csv").write_text(rows.get(labels, "path,age\na.png,1.5\nb.png,-2\nc.png,0.1\n"))
        before = open_data(str(tmp_path / "t.csv"), value_columns=["age"] if labels == "value" else [])["all"]
        out = tmp_path / "m.kwcoco.json"
        write_kwcoco({"all": before}, out, overwrite=True)
        content = json.loads(out.read_text())
        assert open_data(str(out))["all"].target.name == before.target.name == labels
        content["categories"] = content["categories"] or [{"id": 1, "name": "new"}]
        change(content)
        out.write_text(json.dumps(content))
        edited = open_data(str(out))["all"]
        # It is read like a manifest from anywhere else: from its annotations alone.
        for image in content["images"]:
            image.pop("sslbench_id", None)
            image.pop("sslbench_values", None)
        plain = tmp_path / "plain.json"
        plain.write_text(json.dumps(content | {"info": []}))
        expected = open_data(str(plain))["all"]
        assert edited.target.name == expected.target.name and edited.target.classes == expected.target.classes
        assert np.array_equal(edited.target.values, expected.target.values)
