"""Boxes, classes and masks as manifests and Pascal VOC trees hold them, and what is said about the odd ones."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from sslbench import paths
from sslbench.data.checks.objects import check_objects
from sslbench.data.open import open_objects
from sslbench.data.splits.objects import split_objects
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection import masks
from sslbench.show.choices import DEFAULT_OBJECTS

WIDTH, HEIGHT = 40, 30
SQUARE = [[5, 5, 15, 5, 15, 15, 5, 15]]


def draw(path, size=(WIDTH, HEIGHT), **save):
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = sum(path.name.encode())
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **save)
    return path


@pytest.fixture
def coco(tmp_path):
    """`coco([[annotation, ...] of the first image, ...])` writes a manifest and its images; boxes are x, y, w, h."""

    def write(rows, *, name="m.json", categories=("cat", "dog"), keys=None, sizes=True, folder=None, **of_images):
        root = tmp_path if folder is None else tmp_path / folder
        images, annotations = [], []
        for i, row in enumerate(rows):
            file = f"{i:02d}.png"
            draw(root / file)
            size = {"width": WIDTH, "height": HEIGHT} if sizes else {}
            images.append({"id": 10 + i, "file_name": file, **size, **{k: v[i] for k, v in of_images.items()}})
            for annotation in row:
                number = len(annotations) + 1
                annotations.append({"id": number, "image_id": 10 + i, "category_id": 3, **annotation})
        numbers = keys or range(3, 3 + len(categories))
        tables = {
            "images": images,
            "annotations": annotations,
            "categories": [{"id": n, "name": c} for n, c in zip(numbers, categories, strict=True)],
        }
        file = root / name
        file.write_text(json.dumps(tables))
        return str(file)

    return write


def box(*xywh, **keys):
    return {"bbox": list(xywh), **keys}


def test_boxes_classes_and_flags_are_those_of_the_manifest(coco):
    rle = masks.text(masks.encode(np.eye(HEIGHT, WIDTH, dtype=bool)))
    spec = coco(
        [
            [
                box(1, 2, 10, 20, area=77.5, segmentation=SQUARE),
                box(0, 0, 4, 4, category_id=4, iscrowd=1, segmentation=rle),
            ],
            [],
            [box(5.25, 5, 2, 2, ignore=1)],
        ]
    )
    source = open_objects(spec)["all"]
    assert source.ids == ("00.png", "01.png", "02.png")
    assert source.target.classes == ("cat", "dog")
    first, empty, last = source.target.objects
    np.testing.assert_array_equal(first.boxes, [[1, 2, 11, 22], [0, 0, 4, 4]])
    np.testing.assert_array_equal(last.boxes, np.float32([[5.25, 5, 7.25, 7]]))
    assert [list(first.classes), list(first.crowd), list(last.difficult)] == [[0, 1], [False, True], [True]]
    assert list(first.areas) == [77.5, 16]
    assert first.masks == (SQUARE, rle)  # as they are
    assert len(empty) == 0 and last.masks is None
    assert (source.target.numbers, source.target.class_numbers) == ((10, 11, 12), (3, 4))
    np.testing.assert_array_equal(source.target.sizes, [[HEIGHT, WIDTH]] * 3)
    assert source.notes == ()


def test_truth_joins_the_images_and_decodes_masks(coco):
    source = open_objects(
        coco([[box(5, 5, 10, 10, segmentation=SQUARE)], [], [box(5, 5, 10, 10, segmentation=SQUARE)]])
    )["all"]
    truth = source.truth(masks=True)
    assert (truth.n_images, list(truth.images)) == (3, [0, 2])
    assert masks.decode(truth.masks[1])[5:15, 5:15].all() and masks.areas(truth.masks).tolist() == [100, 100]
    assert source.target.has_masks


def test_masks_that_are_missing_are_named(coco):
    source = open_objects(coco([[box(5, 5, 10, 10)], []]))["all"]
    assert not source.target.has_masks
    with pytest.raises(DataError, match=r"00\.png has an object without segmentation"):
        source.truth(masks=True)


def test_one_class_is_enough_and_unused_categories_are_left_out(coco):
    source = open_objects(coco([[box(1, 1, 5, 5, category_id=7)], []], categories=("background", "cell"), keys=(0, 7)))[
        "all"
    ]
    assert (source.target.classes, source.target.class_numbers) == (("cell",), (7,))
    assert source.target.counts().tolist() == [1]
    assert "1 category without any object left out: background" in source.notes[0]


def test_odd_boxes_are_mended_and_named(coco):
    rows = [
        box(1, 1, 10, 10),
        box(1, 1, 0, 10),
        box(WIDTH + 1, 5, 5, 5),
        box(-4, 25, 10, 10),
        box(-0.5, 0, WIDTH + 1, 5),
        *([box(1, 1, 5, 5)] * 4),
    ]
    source = open_objects(coco([rows, []]))["all"]
    boxes = source.target.objects[0].boxes
    assert boxes.tolist()[:3] == [[1, 1, 11, 11], [0, 25, 6, HEIGHT], [-0.5, 0, WIDTH + 0.5, 5]]  # within a pixel: kept
    assert len(boxes) == 7
    text = "\n".join(source.notes)
    for sentence in (
        "1 object without width or height left out: annotation 2",
        "1 object outside of the image left out: annotation 3",
        "1 box clipped to the image: annotation 4",
    ):
        assert sentence in text
    assert "so many" not in text


def test_a_mask_without_area_is_reported(coco):
    source = open_objects(coco([[box(1, 1, 5, 5, segmentation=[[1, 2, 3, 4]])], []]))["all"]
    assert (
        "1 mask without area (fewer than three corners), which no prediction can match: annotation 1" in source.notes[0]
    )
    assert masks.areas(source.truth(masks=True).masks).tolist() == [0]


def test_a_mask_as_run_lengths_of_another_size_is_found_before_training(coco):
    source = open_objects(coco([[box(1, 1, 5, 5, segmentation={"size": [4, 5], "counts": [3, 17]})], []]))["all"]
    errors = [finding.message for finding in check_objects(source, source) if finding.level == "error"]
    assert any(error.endswith(f"is {WIDTH} x {HEIGHT} pixels, and a mask of it 5 x 4") for error in errors)


def test_boxes_that_mostly_leave_the_image_are_suspected_to_be_corners(coco):
    source = open_objects(coco([[box(20, 20, 35, 28), box(10, 10, 38, 25)], []]))["all"]
    assert "check that boxes are x, y, width, height" in source.notes[0]


def test_a_damaged_annotation_is_named_with_its_file(coco):
    for annotation, words in (
        (box(1, 2, float("nan"), 3), "not finite"),
        (box(1, 2, float("inf"), 3), "not finite"),
        (box(1, 2, "3", 3), "four numbers"),
        (box(1, 2, 3), "four numbers"),
        ({}, "no bbox"),
        (box(1, 1, 2, 2, segmentation=[[1, 2, 3, 4, 5]]), "segmentation cannot be used: a polygon is"),
        (box(1, 1, 2, 2, segmentation={"size": [4], "counts": [16]}), "the size of run lengths is height and width"),
        (box(1, 1, 2, 2, segmentation={"size": [4, 4], "counts": [1.5, 14.5]}), "run lengths are whole numbers"),
        (box(1, 1, 2, 2, segmentation={"size": [4, 4], "counts": [3, 2]}), "the sum of run lengths is 5, and 4 x 4"),
        (box(1, 1, 2, 2, area=float("nan")), "its area is nan"),
        (box(1, 1, 2, 2, category_id=99), "category_id 99, which is not in 'categories'"),
    ):
        spec = coco([[box(1, 1, 5, 5)], [annotation]])
        with pytest.raises(DataError, match=words) as caught:
            open_objects(spec)
        assert spec in str(caught.value)
        assert "99" in words or "annotation 2" in str(caught.value)


def test_sizes_that_the_manifest_lacks_are_those_of_the_upright_image(coco, tmp_path):
    spec = coco([[box(1, 1, 5, 5)], [box(20, 20, 9, 19)]], sizes=False)
    exif = Image.Exif()
    exif[0x0112] = 6
    draw(tmp_path / "01.png", exif=exif)
    source = open_objects(spec)["all"]
    np.testing.assert_array_equal(source.target.sizes, [[HEIGHT, WIDTH], [WIDTH, HEIGHT]])
    assert source.target.objects[1].boxes.tolist() == [[20, 20, 29, 39]]  # inside of 30 x 40, not of 40 x 30


def test_a_size_that_is_not_the_images_is_reported_when_it_is_decoded(coco):
    source = open_objects(coco([[box(1, 1, 5, 5)], []]))["all"]
    source.check_size(0, HEIGHT, WIDTH)
    with pytest.raises(DataError, match=r"00\.png is 30 x 40 pixels, but the annotations are for 40 x 30.*EXIF"):
        source.check_size(0, WIDTH, HEIGHT)
    with pytest.raises(DataError, match="resized after annotation"):
        source.check_size(0, HEIGHT * 2, WIDTH * 2)


def test_own_splits_of_a_manifest_are_used(coco):
    rows = [[box(1, 1, 5, 5)]] * 5
    parts = split_objects(coco(rows, split=["train", "train", "validation", "test", "test"]))
    assert parts.train.ids == ("00.png", "01.png")
    assert parts.test.ids == ("03.png", "04.png")
    assert parts.how == "train/ against test/"
    assert "not used: val (1 image)" in parts.notes


def test_the_layout_of_coco_finds_its_images(coco, tmp_path):
    spec = coco([[box(1, 1, 5, 5)], []], folder="val2017", name="instances_val2017.json")
    annotations = tmp_path / "annotations"
    annotations.mkdir()
    moved = annotations / "instances_val2017.json"
    (tmp_path / "val2017" / "instances_val2017.json").rename(moved)
    source = open_objects(str(moved))["all"]
    assert source.ids == ("00.png", "01.png")
    assert source.images.read(0) == (tmp_path / "val2017" / "00.png").read_bytes()
    assert spec != str(moved)


def test_a_single_part_is_split_by_image_and_says_so(coco):
    rows = [[box(1, 1, 5, 5, category_id=3 + i % 2)] for i in range(20)]
    spec = coco(rows)
    parts = split_objects(spec, seed=4)
    assert parts.how == "seeded split by image: 80 % train, 20 % test (seed 4)"
    assert (len(parts.train), len(parts.test)) == (16, 4)
    assert not set(parts.train.ids) & set(parts.test.ids)
    assert parts.test.target.counts().tolist() == [2, 2]
    assert split_objects(spec, seed=4).test.ids == parts.test.ids != split_objects(spec, seed=5).test.ids
    assert parts.train.fingerprint() != parts.test.fingerprint()


def test_classes_are_matched_by_name(coco):
    train = coco([[box(1, 1, 5, 5, category_id=3)], [box(1, 1, 5, 5, category_id=4)]], folder="a")
    test = coco(
        [[box(1, 1, 5, 5, category_id=3)], [box(1, 1, 5, 5, category_id=4)]], folder="b", categories=("dog", "cat")
    )
    parts = split_objects(train, test)
    assert parts.train.target.classes == parts.test.target.classes == ("cat", "dog")
    assert [int(o.classes[0]) for o in parts.test.target.objects] == [1, 0]
    assert (parts.train.target.class_numbers, parts.test.target.class_numbers) == ((3, 4), (4, 3))


def test_a_class_that_train_does_not_know_is_an_error(coco):
    train = coco([[box(1, 1, 5, 5)], [box(1, 1, 5, 5)]], folder="a", categories=("cat", "dog"))
    test = coco([[box(1, 1, 5, 5)], [box(1, 1, 5, 5)]], folder="b", categories=("Cat", "dog"))
    with pytest.raises(DataError, match=r"the class 'Cat' of .*differs from 'cat' only in case"):
        split_objects(train, test)


def test_a_class_absent_from_test_is_a_note(coco):
    train = coco([[box(1, 1, 5, 5)], [box(1, 1, 5, 5, category_id=4)]], folder="a")
    parts = split_objects(train, coco([[box(1, 1, 5, 5)], []], folder="b"))
    assert parts.test.target.classes == ("cat", "dog")
    assert parts.notes == ("1 class of train without an object in test: dog",)


def test_crowds_alone_make_no_class(coco):
    train = coco([[box(1, 1, 5, 5), box(1, 1, 9, 9, category_id=4, iscrowd=1)], [box(1, 1, 5, 5)]], folder="a")
    parts = split_objects(train, coco([[box(1, 1, 5, 5)], []], folder="b"))
    assert parts.train.target.classes == ("cat",)
    assert [len(o) for o in parts.train.target.objects] == [1, 1]


def test_a_part_that_cannot_be_scored_says_why(coco):
    for rows, words in (
        ([[box(1, 1, 5, 5)]], "has 1 image; detection needs two or more"),
        ([[], []], "has no objects"),
        ([[box(1, 1, 5, 5, iscrowd=1)], []], "has no objects"),
    ):
        good = coco([[box(1, 1, 5, 5)], [box(1, 1, 5, 5)]], folder="good")
        with pytest.raises(DataError, match=words):
            split_objects(good, coco(rows, folder="bad"))


def test_one_image_cannot_be_split(coco):
    with pytest.raises(DataError, match="too few to split"):
        split_objects(coco([[box(1, 1, 5, 5)]]))


def test_images_without_boxes_are_refused(class_folders, tmp_path):
    folder = class_folders(tmp_path / "photos", cat=2, dog=2)
    with pytest.raises(UsageError, match="no images with boxes of objects were found in"):
        open_objects(str(folder))
    with pytest.raises(UsageError, match="there is no 'potos'"):
        open_objects(str(tmp_path / "potos"))


OBJECT = """<object><name>{name}</name><difficult>{difficult}</difficult>
<bndbox><xmin>{0}</xmin><ymin>{1}</ymin><xmax>{2}</xmax><ymax>{3}</ymax></bndbox></object>"""


@pytest.fixture
def voc(tmp_path):
    """`voc("VOC2007", train={"000001": [("cat", 1, 1, 40, 30)]}, ...)` writes a tree."""

    def write(name, size=True, **splits):
        root = tmp_path / name
        for folder in ("ImageSets/Main", "Annotations", "JPEGImages"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for split, images in splits.items():
            (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{stem}\n" for stem in images))
            for stem, objects in images.items():
                draw(root / "JPEGImages" / f"{stem}.jpg")
                rows = [OBJECT.format(*o[1:5], name=o[0], difficult=int(len(o) > 5)) for o in objects]
                side = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>" if size else ""
                text = f"<annotation>{side}{''.join(rows)}</annotation>"
                (root / "Annotations" / f"{stem}.xml").write_text(text)
        return root

    return write


CAT = ("cat", 1, 1, WIDTH, HEIGHT)
DOG = ("dog", 5, 6, 10, 12, "difficult")


def test_pixels_of_voc_are_numbered_from_one_and_the_last_belongs_to_the_box(voc):
    source = open_objects(str(voc("VOC2007", train={"a": [CAT, DOG]}, val={"b": []})))["train"]
    objects = source.target.objects[0]
    assert objects.boxes.tolist() == [[0, 0, WIDTH, HEIGHT], [4, 5, 10, 12]]
    assert objects.difficult.tolist() == [False, True]
    assert objects.areas.tolist() == [WIDTH * HEIGHT, 6 * 7]
    assert (source.target.classes, source.ids) == (("cat", "dog"), ("a.jpg",))


@pytest.mark.parametrize("size", [True, False])
def test_train_is_trainval_where_test_is_annotated(voc, size):
    images = {"a": [CAT], "b": [DOG, CAT]}
    root = voc(
        "VOC2007", size, train={"a": [CAT]}, val={"b": [DOG, CAT]}, trainval=images, test={"c": [DOG], "d": [CAT]}
    )
    parts = split_objects(str(root))
    assert (parts.train.ids, parts.test.ids) == (("a.jpg", "b.jpg"), ("c.jpg", "d.jpg"))
    assert "train is trainval" in parts.train.notes[0]
    np.testing.assert_array_equal(parts.test.target.sizes, [[HEIGHT, WIDTH]] * 2)


def test_several_years_are_joined(voc, tmp_path):
    seven = voc("VOC2007", trainval={"a": [CAT], "b": [DOG]}, test={"c": [CAT], "d": [DOG]})
    twelve = voc("VOC2012", train={"x": [CAT]}, val={"a": [DOG]}, trainval={"x": [CAT], "a": [DOG]}, test={"y": []})
    (twelve / "Annotations" / "y.xml").unlink()  # as the test images of 2012 come
    parts = split_objects(f"{seven}+{twelve}")
    assert parts.train.ids == ("VOC2007/a.jpg", "VOC2007/b.jpg", "VOC2012/a.jpg", "VOC2012/x.jpg")
    assert parts.test.ids == ("VOC2007/c.jpg", "VOC2007/d.jpg")
    assert parts.train.images.read(2) == (twelve / "JPEGImages" / "a.jpg").read_bytes()
    with pytest.raises(DataError, match=r"several years: VOC2007, VOC2012\nName one: .*VOC2007, or several: .*\+"):
        open_objects(str(tmp_path))
    alone = open_objects(str(twelve))
    assert {name: source.ids for name, source in alone.items()} == {"train": ("x.jpg",), "val": ("a.jpg",)}


def test_other_data_cannot_be_joined(voc, class_folders, tmp_path):
    root, folder = voc("VOC2007", trainval={"a": [CAT]}), class_folders(tmp_path / "photos", cat=1)
    with pytest.raises(UsageError, match="photos is not a Pascal VOC tree"):
        open_objects(f"{root}+{folder}")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-20], r"a\.xml is broken XML"),
        (lambda text: text.replace("<xmin>1<", "<xmin>one<"), r"a\.xml, object 1 \(cat\): xmin is 'one', not a number"),
        (lambda text: text.replace("<xmin>1<", "<xmin>nan<"), r"a\.xml, object 1 \(cat\): xmin is 'nan', not a number"),
        (lambda text: text.replace("<ymax>30</ymax>", ""), r"a\.xml, object 1 \(cat\) has no bndbox/ymax"),
        (lambda text: text.replace("<name>cat</name>", ""), r"a\.xml, object 1 has no name"),
    ],
)
def test_a_damaged_annotation_of_voc_is_named(voc, damage, words):
    root = voc("VOC2007", trainval={"a": [CAT], "b": [CAT]})
    file = root / "Annotations" / "a.xml"
    file.write_text(damage(file.read_text()))
    with pytest.raises(DataError, match=words):
        open_objects(str(root))


def test_a_named_pipe_in_place_of_an_annotation_is_refused_and_not_waited_for(voc):
    root = voc("VOC2007", trainval={"a": [CAT], "b": [CAT]})
    (root / "Annotations" / "a.xml").unlink()
    os.mkfifo(root / "Annotations" / "a.xml")
    with pytest.raises(DataError, match=r"a\.xml: a named pipe, not a regular file"):
        open_objects(str(root))


def test_a_tree_with_missing_parts_says_which(voc):
    root = voc("VOC2007", trainval={"a": [CAT], "b": [CAT], "c": [CAT]})
    (root / "Annotations" / "b.xml").unlink()
    with pytest.raises(DataError, match=r"trainval\.txt: 1 of 3 images have no annotation: b"):
        open_objects(str(root))
    (root / "ImageSets" / "Main" / "trainval.txt").write_text("a\nc\n")
    (root / "JPEGImages" / "c.jpg").unlink()
    with pytest.raises(DataError, match="1 of 2 image files missing: c"):
        open_objects(str(root))
    (root / "ImageSets" / "Main" / "trainval.txt").write_text("a  1\nc -1\n")
    with pytest.raises(DataError, match="one image per line"):
        open_objects(str(root))


def test_decimals_in_voc_are_read_and_a_box_outside_is_clipped(voc):
    root = voc("VOC2012", train={"a": [("cat", 1.5, 2, 11.5, 12), ("cat", 3, 3, 60, 10)], "b": []})
    source = open_objects(str(root))["train"]
    assert source.target.objects[0].boxes.tolist() == [[0.5, 1, 11.5, 12], [2, 2, WIDTH, 10]]
    assert "1 box clipped to the image: a.xml, object 2" in source.notes[0]


def test_toy_shapes_are_drawn_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path))
    parts = split_objects("kwcoco:shapes6-64")
    assert parts.how.startswith("seeded split by image")
    assert {"star", "superstar", "eff"} >= set(parts.train.target.classes)
    assert parts.train.target.has_masks and len(parts.train) + len(parts.test) == 6
    folder = paths.cache_dir() / "toy"
    (drawn,) = folder.iterdir()
    content = json.loads((drawn / "data.kwcoco.json").read_text())
    assert not any(image["file_name"].startswith("/") for image in content["images"])  # the cache may be moved
    monkeypatch.setattr("sslbench.data.formats.kwcoco._draw", None)
    again = open_objects("kwcoco:shapes6-64")["all"]
    truth, inside = again.truth(masks=True), []
    for mask, (x1, y1, x2, y2) in zip(truth.masks, truth.boxes.astype(int), strict=True):
        grid = masks.decode(mask)
        inside.append(grid[y1:y2, x1:x2].sum() / max(1, grid.sum()))
    assert np.mean(inside) > 0.9  # boxes and masks lie on the same shapes
    assert DEFAULT_OBJECTS.startswith("kwcoco:shapes")


def test_half_drawn_toys_are_not_found(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path))

    def fail(folder, toy):
        (folder / "data.kwcoco.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sslbench.data.formats.kwcoco._call_kwcoco", fail)
    with pytest.raises(UsageError, match="No space left on device"):
        open_objects("kwcoco:shapes7-32")
    assert list((paths.cache_dir() / "toy").iterdir()) == []


def test_an_unknown_toy_says_what_there_is():
    with pytest.raises(UsageError, match="kwcoco:shapes8 is 8 images"):
        open_objects("kwcoco:shape")


def turned(path):
    exif = Image.Exif()
    exif[0x0112] = 6
    draw(path, exif=exif)


def test_sizes_of_stored_pixels_beside_boxes_of_the_upright_image(coco, tmp_path):
    both, upright, stored = box(1, 1, 5, 5), box(20, 20, 9, 19), box(30, 1, 9, 5)  # fits 30 x 40 and 40 x 30, one each
    spec = coco([[both], [both, upright], [both]])
    for name in ("00.png", "01.png"):
        turned(tmp_path / name)
    source = open_objects(spec)["all"]
    np.testing.assert_array_equal(source.target.sizes, [[WIDTH, HEIGHT], [WIDTH, HEIGHT], [HEIGHT, WIDTH]])
    assert source.target.objects[1].boxes.tolist() == [[1, 1, 6, 6], [20, 20, 29, 39]]
    (note,) = (note for note in source.notes if "EXIF" in note)
    assert "width and height of 2 images turned by EXIF" in note and "(1 fit no other way)" in note
    spec = coco([[both, upright]])  # the image is not turned, so the box is wrong
    assert not any("EXIF" in note for note in open_objects(spec)["all"].notes)
    for rows, message in (
        ([both, stored], "stored pixels, as are the boxes\n.*rotate them"),
        ([both], "stored pixels\nIf the boxes were drawn on the image as it is seen, swap width and height"),
    ):
        spec = coco([rows])
        turned(tmp_path / "00.png")
        with pytest.raises(DataError, match=message):
            open_objects(spec)["all"].check_size(0, WIDTH, HEIGHT)


def test_sizes_of_stored_pixels_in_a_table_of_boxes(tmp_path):
    turned(tmp_path / "a.png")
    rows = "filename,width,height,class,xmin,ymin,xmax,ymax\na.png,40,30,cat,20,20,29,39\na.png,40,30,cat,1,1,5,5\n"
    (tmp_path / "t.csv").write_text(rows)
    source = open_objects(str(tmp_path / "t.csv"))["all"]
    assert source.target.sizes.tolist() == [[WIDTH, HEIGHT]] and len(source.target.objects[0]) == 2
    source.check_size(0, WIDTH, HEIGHT)
