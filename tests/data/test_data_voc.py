"""Objects of Pascal VOC and Cityscapes, and places of kwcoco."""

import json
import sqlite3

import numpy as np
import pytest
from helpers.containers import pictures, png, write_voc
from helpers.serving import serving
from PIL import Image

from sslbench.cli.main import main
from sslbench.data.open import open_data, open_objects
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection import masks
from sslbench.targets.multilabel import MultiLabel


@pytest.fixture
def year(tmp_path):
    """`year({"cat_train": "a 1\\nb -1", ...})` writes those lists and the images a, b, c."""

    def write(lists, images=("a", "b", "c"), name="VOC2007"):
        base = tmp_path / name
        for folder in ("ImageSets/Main", "JPEGImages"):
            (base / folder).mkdir(parents=True, exist_ok=True)
        for i, image in enumerate(images):
            (base / "JPEGImages" / f"{image}.jpg").write_bytes(png(i))
        for list_name, text in lists.items():
            (base / "ImageSets" / "Main" / f"{list_name}.txt").write_text(text)
        return str(base)

    return write


def texts(source):
    return [source.target.text(i) for i in range(len(source))]


def test_present_absent_and_difficult(year):
    spec = year({"cat_train": "b  0\na  1\nc -1\n", "dog_train": "a -1\nb  1\nc -1\n"})
    source = open_data(spec)["train"]
    assert source.ids == ("a.jpg", "b.jpg", "c.jpg")
    assert isinstance(source.target, MultiLabel) and source.target.classes == ("cat", "dog")
    assert source.target.values.tolist() == [[1, 0], [-1, 1], [0, 0]]
    assert texts(source) == ["cat", "?cat;dog", ""]
    assert source.images.read(1) == png(1)


def test_trainval_against_test_is_what_voc_means(tmp_path):
    spec = write_voc(tmp_path, pictures(), splits=("train", "val", "trainval", "test"))
    sources = open_data(spec)
    assert tuple(sources) == ("train", "test")
    assert set(sources["train"].ids) == set(list(pictures())[2::4])
    assert "train is trainval" in "\n".join(sources["train"].notes)


def test_without_labels_for_test_val_is_scored(tmp_path):
    spec = write_voc(tmp_path, pictures(), splits=("train", "val", "trainval"), year="VOC2012")
    (tmp_path / "VOCdevkit" / "VOC2012" / "ImageSets" / "Main" / "test.txt").write_text("x\n")
    sources = open_data(spec)
    assert tuple(sources) == ("train", "val")
    assert "test has no labels" in "\n".join(sources["val"].notes)


@pytest.mark.parametrize("below", ["", "VOCdevkit", "VOCdevkit/VOC2007"])
def test_the_folder_may_be_the_year_or_one_around_it(tmp_path, below):
    write_voc(tmp_path, pictures())
    assert tuple(open_data(str(tmp_path / below))) == ("train", "val", "test")


def test_two_years_are_not_mixed(tmp_path):
    write_voc(tmp_path, pictures())
    write_voc(tmp_path, pictures(), year="VOC2012")
    with pytest.raises(DataError, match=r"several years: VOC2007, VOC2012\nName one: .*VOC2007"):
        open_data(str(tmp_path / "VOCdevkit"))


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"cat_train": "a 1", "dog_val": "a 1"}, "dog_train.txt is missing"),
        ({"cat_train": "a 1\nb 1", "dog_train": "a 1"}, "do not list the same images: b"),
        ({"cat_train": "a 1\nb 2"}, r"cat_train.txt, line 2: 'b 2', should be an image and 1, 0 or -1"),
        ({"cat_train": "a\n"}, "line 1: 'a', should be"),
        ({"cat_train": "a 1\na 1"}, "line 2: 'a' is listed twice"),
        ({"cat_train": "a 1\nz 1"}, "1 of 2 image files missing: z"),
        ({"cat_train": "\n"}, "cat_train.txt is empty"),
        ({}, "has no lists such as aeroplane_train.txt"),
    ],
)
def test_lists_that_cannot_be_used_are_named(year, lists, message):
    with pytest.raises(DataError, match=message):
        open_data(year(lists))


def test_a_tree_without_images_says_where_they_should_be(tmp_path, year):
    spec = year({"cat_train": "a 1"}, images=())
    (tmp_path / "VOC2007" / "JPEGImages").rmdir()
    with pytest.raises(DataError, match="JPEGImages is missing"):
        open_data(spec)
    with pytest.raises(UsageError, match="has no column 'x'"):
        open_data(spec, label_column="x")


SIZE = (20, 30)


def write(root, split, name, numbers):
    for folder, ending, array in (
        ("leftImg8bit", "leftImg8bit", np.zeros((*SIZE, 3), np.uint8)),
        ("gtFine", "gtFine_instanceIds", numbers.astype(np.uint16)),
        ("gtFine", "gtFine_labelIds", np.where(numbers < 1000, numbers, numbers // 1000).astype(np.uint8)),
    ):
        path = root / folder / split / "ulm" / f"{name}_{ending}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)


@pytest.fixture
def city(tmp_path):
    """Two images to train on, one without objects to score, a test part that has none at all."""
    numbers = np.full(SIZE, 7)  # road
    numbers[2:9, 3:12] = 26000  # a car, in front of which there is a person
    numbers[4:6, 5:7] = 24003
    numbers[12:15, 20:30] = 24  # a group of persons
    numbers[19, 29] = 33011  # a bicycle of one pixel
    numbers[0, 0] = 29000  # a caravan, which is not scored
    write(tmp_path, "train", "ulm_000000_000019", numbers)
    write(tmp_path, "train", "ulm_000001_000019", np.full(SIZE, 7))
    write(tmp_path, "val", "ulm_000002_000019", np.where(numbers == 24003, 26000, numbers))
    write(tmp_path, "test", "ulm_000003_000019", np.zeros(SIZE))
    return tmp_path


def test_boxes_masks_and_groups(city):
    sources = open_objects(str(city))
    assert list(sources) == ["train", "val"]
    train = sources["train"]
    assert train.target.classes == ("person", "car", "bicycle") and train.target.class_numbers == (1, 3, 8)
    assert train.ids == tuple(f"train/ulm/ulm_00000{i}_000019_leftImg8bit.png" for i in (0, 1))
    found, none = train.target.objects
    assert len(none) == 0
    assert [train.target.classes[c] for c in found.classes] == ["person", "person", "car", "bicycle"]
    assert found.crowd.tolist() == [True, False, False, False]
    assert found.boxes.tolist() == [[20, 12, 30, 15], [5, 4, 7, 6], [3, 2, 12, 9], [29, 19, 30, 20]]
    assert found.areas.tolist() == [30, 4, 7 * 9 - 4, 1]
    car = masks.decode(masks.to_rle(found.masks[2], *SIZE))
    assert car.sum() == 59 and not car[4:6, 5:7].any() and car[2:9, 3:12].sum() == 59
    assert any("test has no objects" in note for note in train.notes)


def test_an_image_without_its_file_is_refused(city):
    (city / "gtFine" / "train" / "ulm" / "ulm_000001_000019_gtFine_instanceIds.png").unlink()
    with pytest.raises(DataError, match=r"\(train\): 1 image without \*_instanceIds.png: .*ulm_000001"):
        open_objects(str(city))


def test_label_maps_without_objects_are_told_as_such(city):
    for path in city.rglob("*_instanceIds.png"):
        path.unlink()
    with pytest.raises(DataError, match=r"holds no \*_instanceIds\.png"):
        open_objects(str(city))


def test_a_damaged_map_is_named(city):
    path = city / "gtFine" / "val" / "ulm" / "ulm_000002_000019_gtFine_instanceIds.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"ulm_000002_000019_gtFine_instanceIds\.png"):
        open_objects(str(city))


def test_a_manifest_holds_the_same_objects(city, tmp_path):
    written = tmp_path / "city.kwcoco.json"
    with pytest.raises(SystemExit) as end:
        main(["data", "to-kwcoco", str(city), str(written), "--boxes"])
    assert end.value.code == 0
    for split, source in open_objects(str(city)).items():
        for one, other in zip(source.target.objects, open_objects(str(written))[split].target.objects, strict=True):
            assert np.array_equal(one.boxes, other.boxes) and np.array_equal(one.areas, other.areas)
            assert one.crowd.tolist() == other.crowd.tolist()
            bitmaps = [[masks.decode(masks.to_rle(m, *SIZE)) for m in found.masks or ()] for found in (one, other)]
            assert np.array_equal(*bitmaps)


@pytest.fixture
def manifest(tmp_path):
    """Write six images and return a function from the beginning of their names to a manifest of them."""
    folder = tmp_path / "served"
    folder.mkdir()
    for i in range(6):
        Image.fromarray(np.full((12, 20, 3), 30 * i, np.uint8)).save(folder / f"{i}.png")

    def write(beginning, place=tmp_path / "lists" / "m.kwcoco.json"):
        images = [
            {"id": i + 1, "file_name": f"{beginning}{i}.png", "width": 20, "height": 12, "split": "train", "site": "a"}
            for i in range(6)
        ]
        boxes = [{"id": i + 1, "image_id": i + 1, "category_id": 1 + i % 2, "bbox": [1, 2, 9, 8]} for i in range(6)]
        categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps({"images": images, "categories": categories, "annotations": boxes}))
        return place

    return folder, write


def same(found, expected):
    assert found.keys() == expected.keys()
    for split, part in found.items():
        assert list(part.ids) == list(expected[split].ids)
        assert part.images.digests().tobytes() == expected[split].images.digests().tobytes()


def test_the_sqlite_view_is_read_as_the_manifest(manifest):
    kwcoco = pytest.importorskip("kwcoco")
    folder, write = manifest
    plain = write("", folder / "m.kwcoco.json")
    view = kwcoco.CocoDataset(str(plain)).view_sql().fpath
    assert str(view).endswith(".sqlite")
    found, expected = (open_data(str(place), attribute_columns=["site"]) for place in (view, plain))
    same(found, expected)
    assert found["train"].target.classes == ("cat", "dog") and set(found["train"].attributes["site"]) == {"a"}
    assert (found["train"].target.values == expected["train"].target.values).all()
    boxes, others = (open_objects(str(place)) for place in (view, plain))
    same(boxes, others)
    assert all((boxes["train"].target.boxes_of(i) == others["train"].target.boxes_of(i)).all() for i in range(6))


def test_a_damaged_view_is_named(tmp_path):
    with sqlite3.connect(tmp_path / "other.sqlite") as database:
        database.execute("CREATE TABLE things (id INTEGER)")
    database.close()
    with pytest.raises(DataError, match=r"other.sqlite is not a COCO manifest: it has no list 'images'"):
        open_data(str(tmp_path / "other.sqlite"))
    content = (tmp_path / "other.sqlite").read_bytes()
    (tmp_path / "torn.sqlite").write_bytes(content[:60])
    with pytest.raises(DataError, match=r"torn.sqlite is not a COCO manifest: damaged sqlite view"):
        open_data(str(tmp_path / "torn.sqlite"))


def test_addresses_of_files_here_are_read(manifest):
    folder, write = manifest
    for beginning in (f"file://{folder}/", f"file://localhost{folder}/"):
        source = open_data(str(write(beginning)))["train"]
        assert len(source) == 6
        assert source.images.digests().tobytes() == open_data(str(folder))["all"].images.digests().tobytes()


def test_images_at_addresses_are_copied_into_the_cache(manifest, tmp_path, monkeypatch):
    folder, write = manifest
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    with serving(folder) as served:
        source = open_data(str(write(f"{served.address}/")))["train"]
        assert source.images.digests().tobytes() == open_data(str(folder))["all"].images.digests().tobytes()
        assert list(source.ids) == [f"{i}.png" for i in range(6)]
        assert "are read from the addresses in it" in " ".join(source.notes)
        assert len(served.fetched()) == 6
    with pytest.raises(DataError, match=r"127\.0\.0\.1"):
        open_data(str(write("http://127.0.0.1:9/gone/")))
