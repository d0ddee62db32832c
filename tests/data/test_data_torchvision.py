"""The data sets of torchvision that are files on disk: what is read is what torchvision's own classes read there."""

import csv
import json
import re
import sys
import types

import numpy as np
import pytest
import scipy.io
import torchvision.datasets as theirs
from helpers.offenders import offenders
from PIL import Image

from sslbench.data.formats import torchvision as source
from sslbench.data.formats.torchvision import FILE_SETS
from sslbench.data.open import open_data
from sslbench.data.prepare.download import find_download
from sslbench.data.splits import train_test
from sslbench.errors import DataError

RNG = np.random.default_rng(0)
EMOTIONS = {"Training": 4, "PublicTest": 2, "PrivateTest": 3}


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 255, (4, 4, 3), dtype=np.uint8)).save(path)


def text(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def class_folders(root, **images):
    for name, n in images.items():
        for i in range(1, n + 1):
            picture(root / name / f"image_{i:04d}.jpg")


def make_food(root):
    for split in ("train", "test"):
        names = {c: [f"{c}/{split}{i}" for i in range(2)] for c in ("ramen", "apple_pie")}
        text(root / "food-101" / "meta" / f"{split}.json", json.dumps(names))
        for name in (n for names_ in names.values() for n in names_):
            picture(root / "food-101" / "images" / f"{name}.jpg")


def make_dtd(root):
    for split in ("train", "val", "test"):
        names = [f"{c}/{c}_{split}.jpg" for c in ("banded", "dotted")]
        text(root / "dtd" / "dtd" / "labels" / f"{split}1.txt", *names)
        for name in names:
            picture(root / "dtd" / "dtd" / "images" / name)


def make_flowers(root):
    base = root / "flowers-102"
    for i in range(1, 10):
        picture(base / "jpg" / f"image_{i:05d}.jpg")
    scipy.io.savemat(base / "setid.mat", {"trnid": [1, 4], "valid": [2, 5], "tstid": [3, 6, 7, 8, 9]})
    scipy.io.savemat(base / "imagelabels.mat", {"labels": [77, 77, 77, 2, 2, 2, 77, 2, 77]})


def make_pets(root):
    base = root / "oxford-iiit-pet"
    for split in ("trainval", "test"):
        lines = [
            f"{n}_{i}{len(split)} {label} 1 1"
            for label, n in ((1, "Abyssinian"), (2, "yorkshire_terrier"))
            for i in "12"
        ]
        text(base / "annotations" / f"{split}.txt", *lines)
        for line in lines:
            picture(base / "images" / f"{line.split()[0]}.jpg")


def make_cars(root):
    base = root / "stanford_cars"
    kind = [("fname", object), ("class", object)]
    for split, file in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        rows = np.array([(f"{i:05d}.jpg", 1 + i % 2) for i in range(4)], dtype=kind)
        (base / file).parent.mkdir(parents=True, exist_ok=True)
        scipy.io.savemat(base / file, {"annotations": rows})
        for i in range(4):
            picture(base / f"cars_{split}" / f"{i:05d}.jpg")
    scipy.io.savemat(
        base / "devkit" / "cars_meta.mat", {"class_names": np.array(["Audi A4 2011", "Fiat 500 2012"], dtype=object)}
    )


def make_aircraft(root):
    base = root / "fgvc-aircraft-2013b" / "data"
    text(base / "variants.txt", "707-320", "F/A-18")
    for split, start in (("train", 0), ("val", 2), ("trainval", 0), ("test", 4)):
        n = 4 if split == "trainval" else 2
        rows = [(f"{start + i:07d}", ("707-320", "F/A-18")[i % 2]) for i in range(n)]
        text(base / f"images_variant_{split}.txt", *(f"{i} {v}" for i, v in rows))
        for i, _ in rows:
            picture(base / "images" / f"{i}.jpg")


def make_gtsrb(root):
    base = root / "gtsrb"
    for name in ("00000", "00001"):
        for i in range(2):
            picture(base / "GTSRB" / "Training" / name / f"{i:05d}_00000.ppm")
    text(base / "GT-final_test.csv", "Filename;Width;ClassId", "00000.ppm;4;1", "00001.ppm;4;0")
    for i in range(2):
        picture(base / "GTSRB" / "Final_Test" / "Images" / f"{i:05d}.ppm")


def make_sun(root):
    names = [
        "/a/abbey/sun_a1.jpg",
        "/a/apartment_building/outdoor/sun_b1.jpg",
        "/a/abbey/sun_a2.jpg",
        "/a/apartment_building/outdoor/sun_b2.jpg",
    ]
    text(root / "SUN397" / "ClassName.txt", "/a/abbey", "/a/apartment_building/outdoor")
    text(root / "SUN397" / "Partitions" / "Training_01.txt", *names[:2])
    text(root / "SUN397" / "Partitions" / "Testing_01.txt", *names[2:])
    for name in names:
        picture(root / f"SUN397{name}")


def make_country(root):
    for split in ("train", "valid", "test"):
        class_folders(root / "country211" / split, AD=2, ZW=1)


def make_sst(root):
    for split in ("train", "valid", "test"):
        for name in ("negative", "positive"):
            picture(root / "rendered-sst2" / split / name / f"{split}.png")


def make_imagenette(root):
    for split in ("train", "val"):
        for name in ("n01440764", "n03888257"):
            picture(root / "imagenette2" / split / name / f"{name}_{split}.JPEG")


def make_eurosat(root):
    class_folders(root / "eurosat" / "2750", Forest=3, River=2)


def make_caltech(root):
    class_folders(root / "caltech101" / "101_ObjectCategories", accordion=33, wrench=31, BACKGROUND_Google=2)


def make_clevr(root):
    base = root / "clevr" / "CLEVR_v1.0"
    depths = ([7.9, 12.0], [8.0, 9.0, 11.0], [8.6], [9.4], [9.7], [10.1, 50.0])
    for split in ("train", "val", "test"):
        scenes = [
            {"image_filename": f"{split}_{i}.png", "objects": [{"pixel_coords": [1, 2, d]} for d in found]}
            for i, found in enumerate(depths)
        ]
        for scene in scenes:
            picture(base / "images" / split / scene["image_filename"])
        if split != "test":
            text(base / "scenes" / f"CLEVR_{split}_scenes.json", json.dumps({"scenes": scenes}))


def make_kitti(root):
    base = root / "Kitti" / "raw" / "training"
    line = "{} 0 0 0 1 1 2 2 1 1 1 0 0 {} 0"
    found = (("Car", 7.5), ("Truck", 8.5), ("Van", 20.5), ("Pedestrian", 2.0))
    for i, (name, distance) in enumerate(found):
        picture(base / "image_2" / f"{i:06d}.png")
        text(base / "label_2" / f"{i:06d}.txt", line.format(name, distance), line.format("Car", 60.0) if i == 0 else "")


def make_fer(root):
    (root / "fer2013").mkdir(parents=True)
    with (root / "fer2013" / "fer2013.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["emotion", "pixels", "Usage"])
        for usage, n in EMOTIONS.items():
            for i in range(n):
                writer.writerow([i, " ".join(str((i + j) % 256) for j in range(48 * 48)), usage])


# name of ours -> (what makes a small one, for each split of ours the arguments of torchvision's class)
TRAIN_TEST = {"train": [{"split": "train"}], "test": [{"split": "test"}]}
WITH_VAL = {"train": [{"split": "train"}, {"split": "val"}], "test": [{"split": "test"}]}
WITH_VALID = {"train": [{"split": "train"}, {"split": "valid"}], "test": [{"split": "test"}]}
TRAINVAL = {"train": [{"split": "trainval"}], "test": [{"split": "test"}]}
SETS = {
    "CLEVRClassification": (make_clevr, {"train": [{"split": "train"}], "val": [{"split": "val"}]}),
    "CLEVRClassification[distance]": (make_clevr, None),
    "Caltech101": (make_caltech, None),
    "Country211": (make_country, WITH_VALID),
    "DTD": (make_dtd, WITH_VAL),
    "EuroSAT": (make_eurosat, {"all": [{}]}),
    "FGVCAircraft": (make_aircraft, TRAINVAL),
    "Flowers102": (make_flowers, WITH_VAL),
    "Food101": (make_food, TRAIN_TEST),
    "GTSRB": (make_gtsrb, TRAIN_TEST),
    "Imagenette": (make_imagenette, {"train": [{"split": "train"}], "val": [{"split": "val"}]}),
    "Kitti[distance]": (make_kitti, None),
    "OxfordIIITPet": (make_pets, TRAINVAL),
    "RenderedSST2": (make_sst, WITH_VAL),
    "SUN397": (make_sun, None),
    "StanfordCars": (make_cars, TRAIN_TEST),
}


def test_every_file_set_is_tested():
    assert set(SETS) == set(FILE_SETS)
    assert len(source.all_sets()) == 26


def pairs_of_theirs(name, root, parts):
    """(pixels, class number) of every sample of torchvision's class, as a sorted list."""
    found = []
    for arguments in parts:
        dataset = getattr(theirs, name)(str(root), **arguments)
        found += [
            (np.asarray(image.convert("RGB")).tobytes(), target)
            for image, target in (dataset[i] for i in range(len(dataset)))
        ]
    return found


@pytest.mark.parametrize("name", [name for name, (_, parts) in SETS.items() if parts])
def test_images_and_labels_are_those_of_torchvisions_own_class(tmp_path, name, monkeypatch):
    make, parts = SETS[name]
    make(tmp_path)
    monkeypatch.setattr(theirs.Flowers102, "_check_integrity", lambda self: True)  # knows the real files' hashes only
    sources = open_data(f"torchvision:{name}@{tmp_path}")
    assert set(sources) == set(parts)
    number_of = {}
    for split, arguments in parts.items():
        expected = dict(pairs_of_theirs(name, tmp_path, arguments))
        ours = sources[split]
        assert len(ours) == len(expected) > 0
        for i in range(len(ours)):
            with Image.open(ours.images.path(i)) as image:
                theirs_number = expected.pop(np.asarray(image.convert("RGB")).tobytes())
            # The same samples share a class in both, whatever the classes are called.
            assert number_of.setdefault(ours.target.text(i), theirs_number) == theirs_number
    assert len(set(number_of.values())) == len(number_of) > 1


def texts(part):
    return [part.target.text(i) for i in range(len(part))]


def test_classes_have_the_names_that_their_makers_give_them(tmp_path):
    for make in (make_pets, make_cars, make_aircraft, make_sun, make_flowers):
        make(tmp_path)
    classes = {
        n: open_data(f"torchvision:{n}@{tmp_path}")["test"].target.classes
        for n in SETS
        if SETS[n][0] in (make_pets, make_cars, make_aircraft, make_sun, make_flowers)
    }
    assert classes == {
        "OxfordIIITPet": ("Abyssinian", "yorkshire_terrier"),
        "StanfordCars": ("Audi A4 2011", "Fiat 500 2012"),
        "FGVCAircraft": ("707-320", "F/A-18"),
        "SUN397": ("abbey", "apartment_building/outdoor"),
        "Flowers102": ("002", "077"),
    }


def test_distances_fall_into_the_bins_of_vtab(tmp_path):
    make_clevr(tmp_path)
    make_kitti(tmp_path)
    clevr = open_data(f"torchvision:CLEVRClassification[distance]@{tmp_path}")["val"]
    assert texts(clevr) == ["0 below 8", "0 below 8", "2 below 9", "3 below 9.5", "4 below 10", "5 below 100"]
    assert texts(open_data(f"torchvision:Kitti[distance]@{tmp_path}")["all"]) == [
        "below 8 m",
        "below 20 m",
        "from 20 m",
        "none",
    ]


def test_caltech_has_thirty_images_of_each_class_to_train_on_the_same_every_time(tmp_path):
    make_caltech(tmp_path)
    first, again = (open_data(f"torchvision:Caltech101@{tmp_path}") for _ in range(2))
    assert {name: len(part) for name, part in first.items()} == {"train": 60, "test": 4}
    assert first["train"].target.classes == ("accordion", "wrench")
    assert first["train"].ids == again["train"].ids and not set(first["train"].ids) & set(first["test"].ids)
    assert "no official split" in first["train"].notes[0]


def test_train_holds_the_validation_part_and_says_so(tmp_path):
    make_dtd(tmp_path)
    train = open_data(f"torchvision:DTD@{tmp_path}")["train"]
    assert len(train) == 4 and any("val" in i for i in train.ids)
    assert "train is train and val together" in train.notes[0]


def test_fer_is_scored_on_the_part_that_decided_the_challenge(tmp_path):
    make_fer(tmp_path)
    sources = open_data(f"torchvision:FER2013@{tmp_path}")
    assert {name: len(part) for name, part in sources.items()} == {"train": 6, "test": 3}
    assert texts(sources["test"]) == ["angry", "disgust", "fear"]
    assert sources["test"].images.read(1).shape == (48, 48) and sources["test"].images.read(1)[0, :3].tolist() == [
        1,
        2,
        3,
    ]
    file = tmp_path / "fer2013" / "fer2013.csv"
    file.write_text(file.read_text().replace("PrivateTest", "Other"))
    with pytest.raises(DataError, match=r"fer2013.csv is damaged: KeyError 'Other'"):
        open_data(f"torchvision:FER2013@{tmp_path}")


def test_missing_files_are_told_with_the_place_and_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def check(name):
        try:
            open_data(f"torchvision:{name}")
        except DataError as error:
            text = str(error)
        kind = FILE_SETS[name]
        assert str(tmp_path / "data" / kind.folder) in text and kind.page in text
        fetched = re.search(r"sslbench data download (\S+)", text)
        assert (fetched is None) == (kind.arguments is None)
        if fetched:
            assert find_download(fetched[1]).data == f"torchvision:{name}"
        assert "SSLBENCH_DATA" in text
        assert list(tmp_path.rglob("*")) == []

    assert offenders(SETS, check) == []


def test_a_listed_image_that_is_missing_and_a_damaged_list_are_named(tmp_path):
    make_food(tmp_path)
    (tmp_path / "food-101" / "images" / "ramen" / "test0.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 4 image files missing: images/ramen/test0.jpg"):
        open_data(f"torchvision:Food101@{tmp_path}")
    (tmp_path / "food-101" / "meta" / "test.json").write_text("{")
    with pytest.raises(DataError, match="a list of Food101 is damaged"):
        open_data(f"torchvision:Food101@{tmp_path}")


class FakeFile(dict):
    """What h5py.File is used for."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.fixture
def pcam(tmp_path, monkeypatch):
    arrays = {}
    for word, n in (("train", 5), ("valid", 2), ("test", 3)):
        stem = f"camelyonpatch_level_2_split_{word}"
        arrays[f"{stem}_x.h5"] = {"x": RNG.integers(0, 255, (n, 6, 6, 3), dtype=np.uint8)}
        arrays[f"{stem}_y.h5"] = {"y": (np.arange(n) % 2).reshape(n, 1, 1, 1)}
        for file in (f"{stem}_x.h5", f"{stem}_y.h5"):
            (tmp_path / "pcam").mkdir(exist_ok=True)
            (tmp_path / "pcam" / file).touch()
    module = types.ModuleType("h5py")
    module.File = lambda file, mode: FakeFile(arrays[file.name])
    monkeypatch.setitem(sys.modules, "h5py", module)
    return tmp_path, arrays


def test_patch_camelyon_is_read_patch_by_patch(pcam):
    root, arrays = pcam
    data = train_test(f"torchvision:PCAM@{root}")
    assert (len(data.train), len(data.test)) == (5, 3) and "val (2 images)" in data.notes[0]
    assert texts(data.test) == ["normal", "tumour", "normal"]
    x = arrays["camelyonpatch_level_2_split_test_x.h5"]["x"]
    part = data.test.select([0, 2])
    np.testing.assert_array_equal(part.images.read(1), x[2])
    assert part.images.path(1) == "PCAM-test[2]"
    np.testing.assert_array_equal(part.images.digests(), data.test.images.digests()[[0, 2]])


def test_without_h5py_or_its_files_patch_camelyon_says_what_to_do(pcam, monkeypatch):
    root, _ = pcam
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match="h5py is not installed\npip install h5py"):
        open_data(f"torchvision:PCAM@{root}")
    (root / "pcam" / "camelyonpatch_level_2_split_test_y.h5").unlink()
    with pytest.raises(DataError, match=r"h5py is not installed|_y.h5 is missing"):
        open_data(f"torchvision:PCAM@{root}")
