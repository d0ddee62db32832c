"""Pascal VOC trees: what each value in the lists means, which split is which, and lists that do not agree."""

import pytest
from helpers.containers import pictures, png, write_voc

from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
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
