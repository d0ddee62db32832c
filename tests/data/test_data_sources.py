"""Each kind of data location gives the samples, ids and labels that its user expects, or says what is wrong."""

import gzip
import json
import os
import struct
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest

from sslbench.data.open import open_data
from sslbench.data.splits import label_problems
from sslbench.errors import DataError, UsageError
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled


def texts(source):
    return [source.target.text(i) for i in range(len(source))]


def labelled(source):
    return dict(zip(source.ids, texts(source), strict=True))


def notes(source):
    return "\n".join(source.notes)


# ---- folders


def test_class_folders_give_a_class_per_folder_and_sorted_relative_ids(tmp_path, class_folders, picture):
    class_folders(tmp_path, dog=1, cat=2)
    picture(tmp_path / "cat" / "deeper" / "x.PNG")
    (source,) = open_data(str(tmp_path)).values()
    assert source.ids == ("cat/0.png", "cat/1.png", "cat/deeper/x.PNG", "dog/0.png")
    assert source.target.classes == ("cat", "dog")
    assert texts(source) == ["cat", "cat", "cat", "dog"]
    assert source.images.read(3) == (tmp_path / "dog" / "0.png").read_bytes()
    assert source.notes == ()


def test_ids_do_not_depend_on_where_the_folder_lies(tmp_path, class_folders, monkeypatch):
    class_folders(tmp_path / "photos", a=2, b=2)
    absolute = open_data(str(tmp_path / "photos"))["all"]
    monkeypatch.chdir(tmp_path)
    relative = open_data("photos/")["all"]
    assert relative.fingerprint() == absolute.fingerprint()
    assert relative.name == "photos/"
    assert relative.images.path(0) == "photos/a/0.png"


@pytest.mark.parametrize(
    ("folders", "splits"),
    [(("train", "val"), ("train", "val")), (("Training", "validation", "testing"), ("train", "val", "test"))],
)
def test_split_folders_become_splits(tmp_path, class_folders, folders, splits):
    for folder in folders:
        class_folders(tmp_path / folder, a=2, b=1)
    sources = open_data(str(tmp_path))
    assert tuple(sources) == splits
    assert all(source.ids == ("a/0.png", "a/1.png", "b/0.png") for source in sources.values())
    assert sources["train"].name == f"{tmp_path}/ (train)"
    assert sources["train"].images.read(0) == (tmp_path / folders[0] / "a" / "0.png").read_bytes()


def test_what_lies_beside_the_splits_is_named(tmp_path, class_folders, picture):
    for folder in ("train", "test", "masks"):
        class_folders(tmp_path / folder, a=1, b=1)
    picture(tmp_path / "loose.png")
    sources = open_data(str(tmp_path))
    assert set(sources) == {"train", "test"}
    assert "masks/" in notes(sources["train"])
    assert "loose.png" in notes(sources["train"])


def test_a_class_may_be_called_train(tmp_path, class_folders):
    class_folders(tmp_path, train=2, bus=2)
    assert open_data(str(tmp_path))["all"].target.classes == ("bus", "train")


def test_two_folders_for_one_split_are_refused(tmp_path, class_folders):
    for folder in ("train", "val", "valid"):
        class_folders(tmp_path / folder, a=1)
    with pytest.raises(DataError, match=r"two folders for the val split: val/ and valid/"):
        open_data(str(tmp_path))


def test_a_flat_folder_is_unlabelled(tmp_path, picture):
    for name in ("b.png", "a.PNG"):
        picture(tmp_path / name)
    source = open_data(str(tmp_path))["all"]
    assert source.ids == ("a.PNG", "b.png")
    assert isinstance(source.target, Unlabelled)
    assert source.target.values.shape == (2, 0)
    assert "no class folders" in notes(source)


def test_clutter_is_left_out_and_said(tmp_path, class_folders, picture):
    class_folders(tmp_path, cat=2, dog=2)
    for name in (".ipynb_checkpoints/0-checkpoint.png", "cat/.ipynb_checkpoints/0.png", "__MACOSX/cat/._0.png"):
        picture(tmp_path / name)
    (tmp_path / "cat" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "cat" / "read.me").write_bytes(b"x")
    (tmp_path / "bird").mkdir()
    picture(tmp_path / "loose.png")
    source = open_data(str(tmp_path))["all"]
    assert source.target.classes == ("cat", "dog")
    assert len(source) == 4
    for name in (".ipynb_checkpoints", "__MACOSX", "bird", "loose.png", "1 file of other kinds (.me)"):
        assert name in notes(source)


def test_numeric_class_folders_are_explained(tmp_path, class_folders):
    class_folders(tmp_path, **{"2": 1, "10": 1, "1": 1})
    source = open_data(str(tmp_path))["all"]
    assert source.target.classes == ("1", "10", "2")
    assert "numbers" in notes(source)


def test_the_folder_around_the_class_folders_is_pointed_out(tmp_path, class_folders):
    class_folders(tmp_path / "dataset", cat=1, dog=1)
    assert "dataset/, with folders inside (cat, dog): give that folder" in notes(open_data(str(tmp_path))["all"])


def test_a_label_file_in_a_folder_is_pointed_out(tmp_path, picture):
    picture(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("path,label\na.png,cat\n")
    assert "labels.csv" in notes(open_data(str(tmp_path))["all"])


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path, class_folders):
    class_folders(tmp_path / "elsewhere", cat=2)
    class_folders(tmp_path / "photos", dog=1)
    (tmp_path / "photos" / "cat").symlink_to(tmp_path / "elsewhere" / "cat")
    (tmp_path / "photos" / "dog" / "up").symlink_to(tmp_path / "photos")
    source = open_data(str(tmp_path / "photos"))["all"]
    assert source.ids == ("cat/0.png", "cat/1.png", "dog/0.png")
    assert "dog/up" in notes(source)


def test_a_dangling_link_is_an_image_that_cannot_be_read_not_a_missing_one(tmp_path, class_folders):
    class_folders(tmp_path, cat=1)
    (tmp_path / "cat" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    source = open_data(str(tmp_path))["all"]
    assert source.ids == ("cat/0.png", "cat/gone.jpg")
    with pytest.raises(OSError):
        source.images.read(1)


def test_a_folder_name_that_is_no_utf8_works(tmp_path, picture):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        picture(folder / "a.png")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    picture(tmp_path / "tea" / "a.png")
    source = open_data(str(tmp_path))["all"]
    assert source.target.classes == ("caf\\xe9", "tea")
    assert len(source.fingerprint()) == 32
    assert source.images.read(0)


@pytest.mark.parametrize("content", [None, "notes.txt", "cat/"])
def test_a_folder_without_images_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / content).mkdir() if content.endswith("/") else (tmp_path / content).write_text("x")
    with pytest.raises(DataError, match="has no image"):
        open_data(str(tmp_path))


# ---- tables


@pytest.fixture
def table(tmp_path, picture):
    """`table(text)` writes photos.csv beside the images a.png ... e.png in img/."""
    for name in "abcde":
        picture(tmp_path / "img" / f"{name}.png")

    def write(text, name="photos.csv"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_columns_are_recognised_and_labels_stay_text(table):
    for image, label in (("path", "label"), ("Image Path", "Class"), ("file-name", "y")):
        source = open_data(table(f"id,{image},{label}\n1,img/b.png,007\n2,img/a.png,7\n"))["all"]
        assert labelled(source) == {"img/a.png": "7", "img/b.png": "007"}
        assert isinstance(source.target, Classes)
        assert source.target.classes == ("007", "7")


def test_columns_can_be_named_and_a_choice_among_several_is_said(table):
    spec = table("path,thumb,label,genus\nimg/a.png,img/b.png,cat,felis\n")
    assert labelled(open_data(spec, image_column="thumb", label_column="genus")["all"]) == {"img/b.png": "felis"}
    two = table("path,label,class\nimg/a.png,3,cat\n", "two.csv")
    source = open_data(two)["all"]
    assert texts(source) == ["3"]
    assert "column 'label' is used, not class" in notes(source)


def test_tsv_semicolons_and_a_byte_order_mark(table, tmp_path):
    assert texts(open_data(table("path\tlabel\nimg/a.png\tcat, small\n", "t.tsv"))["all"]) == ["cat, small"]
    source = open_data(table("path;label\nimg/a.png;cat\n", "s.csv"))["all"]
    assert texts(source) == ["cat"]
    (tmp_path / "bom.csv").write_bytes("path,label\r\n\r\nimg/a.png,cät\r\n".encode("utf-8-sig"))
    assert texts(open_data(str(tmp_path / "bom.csv"))["all"]) == ["cät"]


def test_a_split_column_is_honoured_with_the_same_classes_in_each(table):
    spec = table("path,label,split\nimg/a.png,cat,Train\nimg/b.png,dog,train\nimg/c.png,cat,valid\nimg/d.png,cat,x\n")
    sources = open_data(spec)
    assert {name: source.ids for name, source in sources.items()} == {
        "train": ("img/a.png", "img/b.png"),
        "val": ("img/c.png",),
        "x": ("img/d.png",),
    }
    assert sources["val"].target.classes == ("cat", "dog")
    assert sources["val"].name == f"{spec} (val)"


def test_cells_with_several_labels_are_multi_label(table):
    for separator in (";", "|", " ; "):
        source = open_data(table(f"path,label\nimg/b.png,dog\nimg/a.png,cat{separator}dog{separator}?eel\n"))["all"]
        assert isinstance(source.target, MultiLabel)
        assert source.target.classes == ("cat", "dog", "eel")
        np.testing.assert_array_equal(source.target.values, [[1, 1, -1], [0, 1, 0]])
        assert texts(source) == ["cat;dog;?eel", "dog"]


def test_a_table_whose_labels_have_another_name_is_refused_with_its_columns(table):
    whole = open_data(table("path,species\nimg/a.png,cat\nimg/b.png,dog\n"))["all"]
    (problem,) = label_problems(whole, whole)
    assert "no label column was recognised among: path, species; name it with --label-col, or with" in problem


def test_columns_of_zeros_and_ones_are_classes_when_there_is_no_label_column(table):
    spec = table("path,cat,dog,width\nimg/b.png,0,-1,640\nimg/a.png,1,0,480\nimg/c.png,0,0,1\n")
    source = open_data(spec)["all"]
    assert source.target.classes == ("cat", "dog")
    np.testing.assert_array_equal(source.target.values, [[1, 0], [0, -1], [0, 0]])
    assert "2 columns of 0 and 1 taken as classes: cat, dog" in notes(source)
    with_label = table("path,label,flag\nimg/a.png,x,1\nimg/b.png,y,0\n", "labelled.csv")
    assert isinstance(open_data(with_label)["all"].target, Classes)


def test_a_table_of_paths_alone_is_unlabelled(table):
    source = open_data(table("path\nimg/a.png\n"))["all"]
    assert isinstance(source.target, Unlabelled)
    assert "--label-col" in notes(source)


def test_a_table_that_cannot_be_used_says_why(table):
    for text, message in (
        ("", "empty"),
        ("path,label\n", "no rows"),
        ("img/a.png,cat\nimg/b.png,dog\n", "has no header: its first line is img/a.png, cat"),
        ("path,label\nimg/a.png,cat\nimg/b.png,\n", "line 3"),
        ("path,label\nimg/a.png,cat;dog\nimg/b.png,\n", "line 3"),
        ("path,label\n,cat\n", "'path' is empty in line 2"),
        ("path,label\nimg/a.png,cat\nimg/./a.png,dog\n", "1 image more than once: img/a.png"),
        ("path,label\nimg/a.png,cat\nimg/x.png,dog\nz.png,dog\n", "2 of 3 image files missing: img/x.png, z.png"),
        ("path,label\nimg/a.png,cat,extra\n", "line 2: 3 cells, but the header has 2"),
        ("path,label,label\nimg/a.png,cat,dog\n", "'label' twice"),
        ('path,label\nimg/a.png,"cat\nimg/b.png,dog\n', "not a table: .*begins in line 2"),
        ("path,label,split\nimg/a.png,cat,\n", "'split' is empty in line 2"),
        ("path,cat,dog\nimg/a.png,1,0\nimg/b.png,,1\n", "'cat' is empty in line 3"),
    ):
        with pytest.raises((DataError, UsageError), match=message):
            open_data(table(text))


def test_a_table_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(DataError, match="not text in UTF-8"):
        open_data(str(tmp_path / "x.csv"))


def test_a_mistyped_column_is_answered_with_the_nearest(table):
    with pytest.raises(UsageError, match=r"no column 'lable'(.|\n)*Did you mean 'label'"):
        open_data(table("path,label\nimg/a.png,cat\n"), label_column="lable")


def test_absolute_paths_inside_the_folder_give_the_same_ids(table, tmp_path):
    relative = open_data(table("path,label\nimg/a.png,cat\n"))["all"]
    absolute = open_data(table(f"path,label\n{tmp_path}/img/a.png,cat\n", "absolute.csv"))["all"]
    assert absolute.ids == relative.ids == ("img/a.png",)
    assert absolute.fingerprint() == relative.fingerprint()


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        ([7, 12], "single", ["7", "12"]),
        (["007", "7"], "single", ["007", "7"]),
        ([["cat", "dog"], []], "multi", ["cat;dog", ""]),
    ],
)
def test_parquet(table, tmp_path, labels, kind, expected):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"path": ["img/a.png", "img/b.png"], "label": labels}
    parquet.write_table(pyarrow.table(columns), tmp_path / "photos.parquet")
    source = open_data(str(tmp_path / "photos.parquet"))["all"]
    assert source.target.name == kind
    assert texts(source) == expected


def test_parquet_with_an_empty_label_or_no_parquet_at_all(table, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "photos.parquet"
    parquet.write_table(pyarrow.table({"path": ["img/a.png", "img/b.png"], "label": [3, None]}), path)
    with pytest.raises(DataError, match="row 2"):
        open_data(str(path))
    path.write_text("path,label\n")
    with pytest.raises(DataError, match="as Parquet"):
        open_data(str(path))


# ---- manifests


def test_a_manifest_with_one_category_per_image_is_single_label(tmp_path, manifest):
    spec = manifest(tmp_path / "m.json", {"i/b.png": [3, 3], "i/a.png": [1]})
    source = open_data(str(spec))["all"]
    assert labelled(source) == {"i/a.png": "cat", "i/b.png": "eel"}
    assert source.target.classes == ("cat", "eel")
    assert "dog" in notes(source)
    assert source.images.read(0) == (tmp_path / "i" / "a.png").read_bytes()


def test_a_manifest_with_several_or_no_categories_is_multi_label_with_ignore(tmp_path, manifest):
    crowd, ignored = {"category_id": 2, "iscrowd": 1}, {"category_id": 1, "ignore": True}
    spec = manifest(
        tmp_path / "m.kwcoco.json",
        {"a.png": [1, 2], "b.png": [], "c.png": [crowd], "d.png": [crowd, 2, ignored]},
        names=("zebra", "dog", "never"),
    )
    source = open_data(str(spec))["all"]
    assert source.target.classes == ("zebra", "dog", "never")
    np.testing.assert_array_equal(source.target.values, [[1, 1, 0], [0, 0, 0], [0, -1, 0], [-1, 1, 0]])
    assert "multi-label, since 4 images have not exactly one category" in notes(source)


def test_a_marked_annotation_beside_a_clean_one_of_the_category_changes_nothing(tmp_path, manifest):
    spec = manifest(tmp_path / "m.json", {"a.png": [1, {"category_id": 1, "iscrowd": 1}], "b.png": [2]})
    source = open_data(str(spec))["all"]
    assert isinstance(source.target, Classes)
    assert labelled(source) == {"a.png": "cat", "b.png": "dog"}


def test_a_manifest_in_the_current_folder(tmp_path, manifest, monkeypatch):
    manifest(tmp_path / "data.kwcoco.json", {"a.png": [1], "b.png": [2]})
    monkeypatch.chdir(tmp_path)
    source = open_data("data.kwcoco.json")["all"]
    assert labelled(source) == {"a.png": "cat", "b.png": "dog"}
    assert source.images.read(0)


def test_splits_in_a_manifest_share_kind_and_classes(tmp_path, manifest):
    spec = manifest(
        tmp_path / "m.json", {"a.png": [1, 2], "b.png": [2], "c.png": [3]}, split=["train", "train", "validation"]
    )
    sources = open_data(str(spec))
    assert list(sources) == ["train", "val"]
    assert {s.target.name for s in sources.values()} == {"multi"}
    assert sources["val"].target.classes == ("cat", "dog", "eel")
    half = manifest(tmp_path / "half.json", {"a.png": [1], "b.png": [2]}, split=["train", None])
    with pytest.raises(DataError, match=r"1 of 2 images without a split: b.png"):
        open_data(str(half))


def test_a_manifest_without_annotations_is_unlabelled(tmp_path, manifest):
    spec = manifest(tmp_path / "m.json", {"a.png": []})
    assert isinstance(open_data(str(spec))["all"].target, Unlabelled)


def test_a_zipped_manifest(tmp_path, manifest):
    plain = manifest(tmp_path / "m.kwcoco.json", {"a.png": [1], "b.png": [2]})
    with zipfile.ZipFile(tmp_path / "m.kwcoco.zip", "w") as archive:
        archive.write(plain, "m.kwcoco.json")
    assert labelled(open_data(str(tmp_path / "m.kwcoco.zip"))["all"]) == {"a.png": "cat", "b.png": "dog"}


def test_reading_a_manifest_is_silent_and_leaves_nothing_behind(tmp_path, manifest, capfd):
    spec = manifest(tmp_path / "m.kwcoco.json", {"a.png": [1], "b.png": [2]})
    before = sorted(tmp_path.rglob("*"))
    tmp_path.chmod(0o555)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            open_data(str(spec))
    finally:
        tmp_path.chmod(0o755)
    assert sorted(tmp_path.rglob("*")) == before
    assert capfd.readouterr() == ("", "")


IMAGE = {"id": 1, "file_name": "a.png"}
CATEGORY = {"id": 1, "name": "cat"}


def test_a_manifest_that_cannot_be_used_says_why(tmp_path, picture):
    picture(tmp_path / "a.png")
    for content, message in (
        ("not json", "not a COCO manifest"),
        ("", "not a COCO manifest"),
        ([1, 2], "it is a list"),
        ({"pictures": "cat"}, "no list 'images'.*pictures"),
        ({"images": []}, "lists no images"),
        ({"images": ["a.png"]}, "not a list of mappings"),
        ({"images": [{"file_name": "a.png"}]}, "'images' has no 'id'"),
        ({"images": [{"id": [1], "file_name": "a.png"}]}, "id of 'images' should be a whole number or a name, not .1."),
        ({"images": [IMAGE], "annotations": [{"image_id": 1}]}, "'annotations' has no 'id'"),
        ({"images": [IMAGE, IMAGE]}, "same id occurs twice in 'images': 1"),
        ({"images": [IMAGE, {"id": 2, "file_name": "./a.png"}]}, "more than once: a.png"),
        ({"images": [{"id": 1, "file_name": "gone.png"}]}, "1 of 1 image file missing: gone.png"),
        ({"images": [{"id": 1, "file_name": None}]}, "without a file_name"),
        ({"images": [IMAGE], "categories": [CATEGORY, {"id": 2, "name": "cat"}]}, "same name occurs twice"),
        ({"images": [IMAGE], "categories": [{"id": 1}]}, "'categories' has no 'name'"),
        (
            {
                "images": [IMAGE],
                "categories": [CATEGORY],
                "annotations": [{"id": 1, "image_id": "007", "category_id": 1}],
            },
            "ids of 'images' are numbers and texts .'007'",
        ),
        (
            {"images": [IMAGE], "categories": [CATEGORY], "annotations": [{"id": 1, "image_id": 5, "category_id": 1}]},
            "image_id 5, which is not in 'images'",
        ),
        (
            {"images": [IMAGE], "categories": [CATEGORY], "annotations": [{"id": 1, "image_id": 1, "category_id": 9}]},
            "category_id 9, which is not in 'categories'",
        ),
    ):
        (tmp_path / "m.json").write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(DataError, match=message):
            open_data(str(tmp_path / "m.json"))


# ---- named data sets


def test_the_bundled_digits():
    source = open_data("sklearn:digits")["all"]
    assert len(source) == 1797
    assert source.target.classes == tuple("0123456789")
    assert list(source.ids) == sorted(source.ids)
    assert source.images.path(17) == "digits[17]"
    image = source.images.read(0)
    assert image.dtype == np.uint8
    assert image.shape == (8, 8)
    # scikit-learn's first digit begins 0 0 5 13 9 1 of 16.
    assert image[0, :6].tolist() == [0, 0, 80, 207, 143, 16]
    assert max(source.images.read(i).max() for i in range(50)) == 255


def idx(path, array, compress):
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    if compress:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


@pytest.fixture
def fashion(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for prefix, n in (("train", 6), ("t10k", 4)):
        arrays[prefix] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        raw = tmp_path / "sets" / "FashionMNIST" / "raw"
        idx(raw / f"{prefix}-images-idx3-ubyte", arrays[prefix], compress=prefix == "train")
        idx(raw / f"{prefix}-labels-idx1-ubyte", np.arange(n, dtype=np.uint8), compress=prefix == "train")
    return tmp_path / "sets", arrays


def test_mnist_like_sets_are_read_compressed_or_not(fashion, monkeypatch):
    root, arrays = fashion
    sources = open_data(f"torchvision:FashionMNIST@{root}")
    assert {name: len(source) for name, source in sources.items()} == {"train": 6, "test": 4}
    np.testing.assert_array_equal(sources["train"].images.read(5), arrays["train"][5])
    np.testing.assert_array_equal(sources["test"].images.read(3), arrays["t10k"][3])
    assert texts(sources["test"])[:2] == ["T-shirt/top", "Trouser"]
    assert len(sources["test"].target.classes) == 10
    assert sources["test"].images.path(3) == "FashionMNIST-test[3]"
    monkeypatch.setenv("SSLBENCH_DATA", str(root))
    assert open_data("torchvision:FashionMNIST")["test"].fingerprint() == sources["test"].fingerprint()


def test_a_damaged_idx_file_is_named(fashion):
    root, _ = fashion
    path = root / "FashionMNIST" / "raw" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is damaged"):
        open_data(f"torchvision:FashionMNIST@{root}")


def test_missing_files_are_not_downloaded_but_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("CIFAR10", "CIFAR100", "KMNIST", "STL10", "SVHN", "USPS"):
        with pytest.raises(DataError) as error:
            open_data(f"torchvision:{name}")
        assert str(tmp_path / "data") in str(error.value)
        assert f"sslbench data download torchvision:{name}" in str(error.value)
        assert list(tmp_path.rglob("*")) == []


def test_sets_with_channels_first_are_turned(tmp_path, monkeypatch):
    import torchvision.datasets

    class FakeSVHN:
        def __init__(self, root, split, download):
            self.data = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
            self.labels = np.array([0, 7])

    monkeypatch.setattr(torchvision.datasets, "SVHN", FakeSVHN)
    source = open_data(f"torchvision:SVHN@{tmp_path}")["test"]
    assert source.images.read(1).shape == (4, 5, 3)
    assert source.images.read(1)[0, 0].tolist() == [60, 80, 100]
    assert texts(source) == ["0", "7"]


def test_a_mistyped_set_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match=r"torchvision:CIFAR11'(.|\n)*CIFAR10"):
        open_data("torchvision:CIFAR11")
    with pytest.raises(UsageError, match="digits"):
        open_data("sklearn:digit")


# ---- open_data


def test_a_location_that_is_not_there_says_what_is(tmp_path, class_folders, monkeypatch):
    class_folders(tmp_path / "photos", cat=1)
    monkeypatch.chdir(tmp_path)
    for spec, message in (
        ("photoz", r"there is no 'photoz' in this folder\nDid you mean 'photos'"),
        ("photos/catt/0.png", r"there is no 'catt' in photos\nDid you mean 'cat'"),
        ("photos/cat/0.png/x", r"0.png is a file, not a folder"),
        ("photos/cat/0.png", r"not a kind of data that sslbench reads\nSupported data:"),
        ("", "location is empty"),
        ("s4://bucket/photos", "unknown URL scheme"),
        ("torchvison:CIFAR10", r"Did you mean 'torchvision:'"),
        ("no_such_package.source:x", "no Python module 'no_such_package.source'"),
        ("json.decoder:x", "no function 'open'"),
    ):
        with pytest.raises(UsageError, match=message):
            open_data(spec)


def test_the_users_own_source_gets_the_rest_of_the_string(tmp_path, monkeypatch):
    (tmp_path / "my_sources").mkdir()
    (tmp_path / "my_sources" / "noise.py").write_text(
        "from sslbench.data.formats import sklearn\n"
        "def open(rest, *, image_column=None, label_column=None):\n"
        "    assert rest == '20:x'\n"
        "    return sklearn.open('sklearn:digits')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(open_data("my_sources.noise:20:x")["all"]) == 1797


def test_a_format_of_the_users_own_has_options_and_columns(tmp_path, monkeypatch):
    (tmp_path / "my_formats").mkdir()
    (tmp_path / "my_formats" / "toys.py").write_text(
        "import dataclasses\n"
        "from sslbench.config import setting\n"
        "from sslbench.data.format import SampleReader, SourceFormat\n"
        "from sslbench.data.formats import sklearn\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class ToyOptions:\n"
        "    first: int = setting(5, 'images to keep')\n"
        "def read(request):\n"
        "    assert request.attribute_columns == ('size',)\n"
        "    return {'all': sklearn.open('sklearn:digits')['all'].select(range(request.options.first))}\n"
        "columns = frozenset(('attribute',))\n"
        "FORMAT = SourceFormat('Toys.', SampleReader(lambda spec: False, read, ToyOptions, columns))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(open_data("my_formats.toys:x?first=7", attribute_columns=["size"])["all"]) == 7
    with pytest.raises(UsageError, match="has no column 'kind'"):
        open_data("my_formats.toys:x", label_column="kind")


def test_a_folder_whose_name_has_a_colon_is_a_folder(tmp_path, class_folders, monkeypatch):
    class_folders(tmp_path / "sklearn:digits", cat=1, dog=1)
    monkeypatch.chdir(tmp_path)
    assert len(open_data("sklearn:digits")["all"]) == 2


OWN_KIND = '''
"""Heights of a user's."""
import dataclasses
from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.open import open_as
from sslbench.targets.pixel_values import Depth, ReadValues

class Heights(ReadValues):
    name = "heights"
    title = "a height for every pixel"

def read(place):
    sources = open_as(f"skimage:{place}", Depth)
    return {split: dataclasses.replace(s, target=Heights(s.target.pixels)) for split, s in sources.items()}

FORMAT = SourceFormat(__doc__, readers={Heights: plain_reader(lambda place: True, read)})
'''


def test_a_kind_of_target_and_its_format_may_be_the_users(tmp_path):
    (tmp_path / "own_pkg").mkdir()
    (tmp_path / "own_pkg" / "heights.py").write_text(OWN_KIND)
    script = (
        "from own_pkg.heights import Heights, open_as\nfrom sslbench.targets import kinds\n"
        "source = open_as('own_pkg.heights:motorcycle', Heights)['test']\n"
        "assert kinds()['heights'] is Heights is type(source.target) and len(source) == len(source.select([0, 2])) + 18"
    )
    # In a process of its own: a kind that was imported stays one for all tests.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
