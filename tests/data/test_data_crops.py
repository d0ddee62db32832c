"""Every box of a manifest as a sample: its pixels, label, id; what is left out is counted."""

import json
import pickle

import numpy as np
import pytest
from PIL import Image

from sslbench.data.loading.loader import batches, read, survey
from sslbench.data.open import open_data
from sslbench.data.splits import train_test
from sslbench.errors import DataError, UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel


def negative(path, file):
    """A decoder of a user's own."""
    return 255 - np.array(Image.open(file))


CATEGORIES = [
    {"id": 2, "name": "cat", "supercategory": "animal"},
    {"id": 5, "name": "dog", "supercategory": "animal"},
    {"id": 7, "name": "car", "supercategory": "vehicle"},
    {"id": 9, "name": "oak"},
]


@pytest.fixture
def boxes(tmp_path):
    """`boxes([(image, category, [x, y, w, h], {marks}), ...])` writes two images of 40 x 30 pixels and the manifest."""

    def write(rows, **image_keys):
        rng = np.random.default_rng(0)
        images = []
        for i, name in enumerate(("b.png", "a.png")):
            Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(tmp_path / name)
            images.append({"id": i, "file_name": name, **{k: v[i] for k, v in image_keys.items()}})
        number = {"b.png": 0, "a.png": 1}
        annotations = [
            {"id": k, "image_id": number[image], "category_id": category, "bbox": box, **marks}
            for k, (image, category, box, marks) in enumerate(rows)
        ]
        content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
        (tmp_path / "m.json").write_text(json.dumps(content))
        return f"{tmp_path}/m.json"

    return write


def pixels(tmp_path, name):
    return np.array(Image.open(tmp_path / name))


def test_a_crop_is_the_box_with_its_margin_as_far_as_the_image_goes(tmp_path, boxes):
    spec = boxes(
        [("a.png", 2, [10, 5, 20, 10], {}), ("b.png", 5, [30, 20, 10, 10], {}), ("a.png", 7, [0, 0, 9, 8], {})]
    )
    exact = open_data(f"{spec}?unit=annotation&margin=0")["all"]
    assert exact.ids == ("a.png#0000", "a.png#0001", "b.png#0000")
    assert [exact.target.text(i) for i in range(3)] == ["cat", "car", "dog"]
    a, b = pixels(tmp_path, "a.png"), pixels(tmp_path, "b.png")
    for found, expected in zip(range(3), (a[5:15, 10:30], a[0:8, 0:9], b[20:30, 30:40]), strict=True):
        assert np.array_equal(exact.images.read(found), expected)
    wide = open_data(f"{spec}?unit=annotation&margin=0.5")["all"]
    assert np.array_equal(wide.images.read(0), a[0:20, 0:40])
    assert np.array_equal(wide.images.read(2), b[15:30, 25:40])
    assert wide.images_fingerprint() != exact.images_fingerprint()
    default = open_data(f"{spec}?unit=annotation")["all"]
    assert default.images.read(0).shape == (12, 24, 3)


def test_crowds_ignored_difficult_and_small_boxes_are_left_out_and_counted(boxes):
    spec = boxes(
        [
            ("a.png", 2, [0, 0, 10, 10], {}),
            ("a.png", 5, [0, 0, 10, 10], {"iscrowd": 1}),
            ("a.png", 5, [0, 0, 10, 10], {"ignore": 1}),
            ("b.png", 5, [0, 0, 10, 10], {"difficult": 1}),
            ("b.png", 7, [0, 0, 20, 7], {}),
        ]
    )
    source = open_data(f"{spec}?unit=annotation")["all"]
    assert source.ids == ("a.png#0000",) and source.target.classes == ("cat",)
    assert any("1 crowd, 2 ignored or difficult objects, 1 smaller box left out" in note for note in source.notes)
    assert len(open_data(f"{spec}?unit=annotation&min_size=7")["all"]) == 2
    with pytest.raises(DataError, match="no box that can be a sample"):
        open_data(f"{spec}?unit=annotation&min_size=99")


def test_supercategories_are_classes_of_crops_and_of_images(boxes):
    box = [0, 0, 10, 10]
    spec = boxes([("a.png", 2, box, {}), ("a.png", 5, box, {}), ("b.png", 7, box, {}), ("b.png", 7, box, {})])
    crops = open_data(f"{spec}?unit=annotation&classes=supercategory")["all"]
    assert [crops.target.text(i) for i in range(4)] == ["animal", "animal", "vehicle", "vehicle"]
    images = open_data(f"{spec}?classes=supercategory")["all"]
    assert isinstance(images.target, Classes) and images.target.classes == ("animal", "vehicle")
    assert isinstance(open_data(spec)["all"].target, MultiLabel)
    spec = boxes([("a.png", 9, box, {}), ("b.png", 2, box, {})])
    assert open_data(f"{spec}?classes=supercategory")["all"].target.classes == ("animal", "oak")


def test_splits_are_kept_and_without_them_crops_of_one_image_stay_together(boxes):
    rows = [(name, category, [0, 0, 10, 10], {}) for name in ("a.png", "b.png") for category in (2, 5)]
    spec = f"{boxes(rows)}?unit=annotation"
    assert open_data(spec)["all"].attributes == {"image": ("a.png", "a.png", "b.png", "b.png")}
    for seed in range(6):
        both = train_test(spec, seed=seed, test_fraction=0.5)
        assert {tuple(both.train.ids), tuple(both.test.ids)} == {
            ("a.png#0000", "a.png#0001"),
            ("b.png#0000", "b.png#0001"),
        }
        assert both.how == f"seeded stratified split by image: 50 % train, 50 % test (seed {seed})"
    parts = open_data(f"{boxes(rows, split=['train', 'test'])}?unit=annotation")
    assert parts["train"].ids == ("b.png#0000", "b.png#0001") and parts["test"].ids == ("a.png#0000", "a.png#0001")


def test_a_wrong_size_or_a_damaged_image_is_an_unreadable_sample(tmp_path, boxes):
    rows = [(name, 2, [0, 0, 10, 10], {}) for name in ("a.png", "b.png")]
    spec = boxes(rows, width=[40, 20], height=[30, 30])
    source = open_data(f"{spec}?unit=annotation")["all"]
    (bad,) = survey(source, np.arange(2), workers=0).unreadable
    assert bad[1].endswith("a.png#0") and "40 x 30 pixels, but its boxes are for 20 x 30" in bad[2]
    (tmp_path / "b.png").write_bytes(b"\x89PNG nothing")
    assert len(survey(source, np.arange(2), workers=2).unreadable) == 2


def test_boxes_belong_to_the_upright_image(tmp_path):
    upright = np.zeros((20, 10, 3), dtype=np.uint8)
    upright[:10] = 200
    exif = Image.Exif()
    exif[0x0112] = 6  # the file holds it turned by 90 degrees to the left
    Image.fromarray(np.rot90(upright).copy()).save(tmp_path / "a.png", exif=exif)
    content = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 2, "bbox": [0, 0, 10, 10]}],
        "categories": CATEGORIES,
    }
    (tmp_path / "m.json").write_text(json.dumps(content))
    source = open_data(f"{tmp_path}/m.json?unit=annotation&margin=0")["all"]
    crop = source.images.read(0)
    assert crop.shape == (10, 10, 3) and (crop == 200).all()


def test_crops_are_read_after_pickling_and_decoded_by_the_loader(boxes):
    spec = boxes([("a.png", 2, [3, 4, 20, 10], {}), ("b.png", 5, [5, 5, 10, 10], {})])
    source = open_data(f"{spec}?unit=annotation&margin=0")["all"]
    source.images.read(0)
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    assert np.array_equal(copy.images.read(1), source.images.read(1))
    assert tuple(read(copy.images, 0).image.shape) == (3, 10, 20)


def test_the_objects_of_a_voc_tree_are_samples_too(tmp_path, picture):
    year = tmp_path / "VOC2007"
    for folder in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (year / folder).mkdir(parents=True)
    Image.fromarray(np.arange(600, dtype=np.uint8).reshape(20, 30)).save(year / "JPEGImages" / "1.png")
    (year / "ImageSets/Main/train.txt").write_text("1\n")
    (year / "ImageSets/Main/cat_train.txt").write_text("1 1\n")
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>10</xmax><ymax>8</ymax></bndbox>"
    size = "<size><width>30</width><height>20</height></size>"
    objects = "".join(f"<object><name>cat</name><difficult>{d}</difficult>{box}</object>" for d in (0, 1))
    (year / "Annotations/1.xml").write_text(f"<annotation><filename>1.png</filename>{size}{objects}</annotation>")
    (source,) = open_data(f"{year}?unit=annotation&margin=0").values()
    assert source.ids == ("1.png#0000",) and source.images.read(0).shape == (8, 10, 3)


def test_crops_are_decoded_as_their_images_would_be(tmp_path, boxes):
    spec = boxes([("a.png", 2, [3, 4, 20, 10], {}), ("b.png", 5, [5, 5, 10, 10], {})])
    source = open_data(f"{spec}?unit=annotation&margin=0")["all"]
    own = Preprocessing(decoder=(f"{__name__}.negative",), resize=None, crop=None)
    picture = next(batches(source, np.arange(1), own, batch_size=1, workers=0)).images[0]
    assert np.array_equal(np.asarray(picture).transpose(1, 2, 0), 255 - pixels(tmp_path, "a.png")[4:14, 3:23])
    found = survey(source, np.arange(2), workers=0, preprocessing=Preprocessing(max_pixels=1199)).unreadable
    assert len(found) == 2 and "40 x 30 pixels, more than the limit of 1,199" in found[0][2]
    assert survey(source, np.arange(2), workers=0, preprocessing=Preprocessing(max_pixels=1200)).unreadable == ()


def test_fast_decoding_to_less_than_the_full_size_is_not_used_for_crops(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (256, 256, 3), dtype=np.uint8)).save(tmp_path / "a.jpg")
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 2, "bbox": [64, 64, 128, 128]}],
        "categories": CATEGORIES,
    }
    (tmp_path / "m.json").write_text(json.dumps(content))
    source = open_data(f"{tmp_path}/m.json?unit=annotation&margin=0")["all"]
    found = [
        next(batches(source, np.arange(1), preprocessing, batch_size=1, workers=0)).images
        for preprocessing in (
            Preprocessing(resize=(16, 16), crop=None, decoder=("fast",)),
            Preprocessing(resize=(16, 16), crop=None),
        )
    ]
    assert np.abs(np.asarray(found[0], dtype=int) - np.asarray(found[1], dtype=int)).max() <= 1


def test_keys_of_images_and_of_boxes_are_attributes_of_crops(boxes):
    rows = [
        ("a.png", 2, [0, 0, 10, 10], {"pose": "left"}),
        ("a.png", 5, [0, 0, 0, 10], {"pose": "lost, it has no width"}),
        ("a.png", 7, [0, 0, 10, 10], {}),
        ("b.png", 5, [0, 0, 10, 10], {"pose": "right"}),
    ]
    spec = boxes(rows, site=["north", "south"])
    source = open_data(f"{spec}?unit=annotation", attribute_columns=["pose", "site"])["all"]
    assert source.ids == ("a.png#0000", "a.png#0001", "b.png#0000")
    assert source.attributes["pose"] == ("left", "", "right")
    assert source.attributes["site"] == ("south", "south", "north") and source.grouped_by == "image"
    by_pose = open_data(f"{spec}?unit=annotation&group=pose")["all"]
    assert by_pose.grouped_by == "pose" and by_pose.select([1, 2]).attributes["pose"] == ("", "right")
    with pytest.raises(UsageError, match=r"no image and no annotation of .* has a key 'poses'(.|\n)*pose"):
        open_data(f"{spec}?unit=annotation", attribute_columns=["poses"])
