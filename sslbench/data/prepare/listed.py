"""Layouts of data sets whose lists or numbers of classes say the part of an image: birds, cars, dogs, products."""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.data.containers.members import safe_name
from sslbench.data.prepare.layout import NewFiles, Official, listed_lines, members
from sslbench.data.wording import one_line
from sslbench.errors import DataError

# Splits of metric learning (Oh Song et al., CVPR 2016): classes of test are not in train.
# Stanford Online Products by its own lists; of CUB-200-2011 and Cars-196 the first half of the classes is train.

SOP_ARCHIVES = (Official("Stanford_Online_Products.zip"),)
CUB_ARCHIVES = (Official("CUB_200_2011.tgz"),)
NABIRDS_ARCHIVES = (Official("nabirds.tar.gz"),)
_DOGS_IMAGES, _DOGS_LISTS = "images.tar", "lists.tar"
DOGS_ARCHIVES = (Official(_DOGS_IMAGES), Official(_DOGS_LISTS))
_CARS_IMAGES, _CARS_LABELS = "car_ims.tgz", "cars_annos.mat"
CARS_ARCHIVES = (Official(_CARS_IMAGES), Official(_CARS_LABELS))
_SOP_ROOT = "Stanford_Online_Products/"

_SOP_LINE = re.compile(r"\d+ (\d+) \d+ (\S+)")
_CUB_IMAGE = re.compile(r"CUB_200_2011/images/((\d{3})\.\w[^/]*/[^/]+\.jpg)")
_CUB_TRAIN_CLASSES, _CARS_TRAIN_CLASSES = 100, 98
_CAR_NAME = re.compile(r"car_ims/\d+\.jpg")


def sop(archives: Mapping[str, Path]) -> NewFiles:
    """Yield train/PRODUCT/ and test/PRODUCT/ as Ebay_train.txt and Ebay_test.txt list them."""
    path = archives[SOP_ARCHIVES[0].name]
    yield from _listed(path, _sop_places(path))


def cub200(archives: Mapping[str, Path]) -> NewFiles:
    """Yield train/ of classes 1 to 100 and test/ of classes 101 to 200, with a folder per class in each."""
    for name, content in members(archives[CUB_ARCHIVES[0].name]):
        if found := _CUB_IMAGE.fullmatch(name):
            part = "train" if int(found[2]) <= _CUB_TRAIN_CLASSES else "test"
            yield f"{part}/{found[1]}", content


def cub(archives: Mapping[str, Path]) -> NewFiles:
    """Return train/ and test/ of the official split of CUB-200-2011, with a folder per class in each."""
    return _birds(archives[CUB_ARCHIVES[0].name], "CUB_200_2011/")


def nabirds(archives: Mapping[str, Path]) -> NewFiles:
    """Return train/ and test/ of the official split of NABirds, with a folder per class in each."""
    return _birds(archives[NABIRDS_ARCHIVES[0].name], "nabirds/")


def _birds(path: Path, root: str) -> NewFiles:
    """Yield a set whose images.txt and train_test_split.txt have a line per image, 'ID PATH' and 'ID 1' for train."""
    texts = dict.fromkeys((f"{root}images.txt", f"{root}train_test_split.txt"), "")
    for name, content in members(path):
        if name in texts:
            texts[name] = content().decode("utf-8", "replace")
    lists = []
    for name, text in texts.items():
        rows = [line.split() for line in text.splitlines() if line.strip()]
        if not rows or any(len(row) != 2 for row in rows):
            raise DataError(f"{path}: {name} is missing or has a line of other than two words")
        lists.append(dict(rows))
    images, trained = lists
    if images.keys() != trained.keys():
        raise DataError(f"{path}: images.txt and train_test_split.txt name different images")
    if wrong := next((image for image in images.values() if safe_name(image) != image), None):
        raise DataError(f"{path}: images.txt names {wrong!a}, which lies outside of images/")
    part = {number: "train" if flag == "1" else "test" for number, flag in trained.items()}
    yield from _listed(path, {f"{root}images/{image}": f"{part[number]}/{image}" for number, image in images.items()})


def stanford_dogs(archives: Mapping[str, Path]) -> NewFiles:
    """Yield train/ and test/ of the official split of Stanford Dogs, with a folder per breed in each."""
    yield from _listed(archives[_DOGS_IMAGES], _dog_places(archives[_DOGS_LISTS]))


def _dog_places(lists: Path) -> dict[str, str]:
    """Return member -> path in the folder, by train_list.mat and test_list.mat."""
    import scipy.io

    texts = {name: content() for name, content in members(lists) if name in ("train_list.mat", "test_list.mat")}
    try:
        files = {
            part: scipy.io.loadmat(io.BytesIO(texts[f"{part}_list.mat"]), squeeze_me=True)["file_list"]
            for part in ("train", "test")
        }
        rows = [(part, str(file)) for part, listed in files.items() for file in np.ravel(listed)]
    except Exception as error:  # a damaged file raises anything
        problem = f"{lists} does not hold the lists of train and test: {one_line(error)}"
        raise DataError(problem, "Download it again.") from error
    if wrong := next((file for _, file in rows if safe_name(file) != file), None):
        raise DataError(f"{lists} names {wrong!a}, which lies outside of Images/")
    return {f"Images/{file}": f"{part}/{file}" for part, file in rows}


def cars196(archives: Mapping[str, Path]) -> NewFiles:
    """Yield train/ of classes 1 to 98 and test/ of classes 99 to 196, with a folder per class in each."""
    yield from _listed(archives[_CARS_IMAGES], _car_places(archives[_CARS_LABELS]))


def _listed(archive: Path, places: Mapping[str, str]) -> NewFiles:
    """Yield the members that have a place in the folder."""
    for name, content in members(archive):
        if name in places:
            yield places[name], content


def _sop_places(archive: Path) -> dict[str, str]:
    """Return member -> path in the folder, by the two lists in the archive."""
    places: dict[str, str] = {}
    for part, where, line in listed_lines(archive, {"Ebay_train.txt": "train", "Ebay_test.txt": "test"}):
        if line.startswith("image_id "):
            continue  # the names of the columns
        found = _SOP_LINE.fullmatch(line)
        if found is None or safe_name(found[2]) != found[2]:
            raise DataError(f"{where} is not 'IMAGE CLASS SUPERCLASS PATH'")
        places[_SOP_ROOT + found[2]] = f"{part}/{int(found[1]):05d}/{found[2].rpartition('/')[2]}"
    return places


def _car_places(labels: Path) -> dict[str, str]:
    """Return member -> path in the folder, by the annotations of all images."""
    import scipy.io

    try:
        content: Any = scipy.io.loadmat(io.BytesIO(labels.read_bytes()), squeeze_me=True, variable_names="annotations")
        rows = [(str(row["relative_im_path"]), int(row["class"])) for row in content["annotations"].ravel()]
    except Exception as error:  # a damaged file raises anything
        problem = f"{labels} does not hold the annotations of all cars: {one_line(error)}"
        raise DataError(problem, "It belongs to car_ims.tgz.") from error
    places = {}
    for name, number in rows:
        if not _CAR_NAME.fullmatch(name) or not 1 <= number <= 2 * _CARS_TRAIN_CLASSES:
            raise DataError(f"{labels}: {name!a} of class {number} is not an image of one of the 196 classes")
        part = "train" if number <= _CARS_TRAIN_CLASSES else "test"
        places[name] = f"{part}/{number:03d}/{name.removeprefix('car_ims/')}"
    return places
