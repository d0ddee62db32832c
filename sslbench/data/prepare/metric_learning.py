"""Splits of metric learning (Oh Song et al., CVPR 2016): classes of test are not in train.

Stanford Online Products by its own lists; of CUB-200-2011 and Cars-196 the first half of the classes is train.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sslbench.data.containers.members import safe_name
from sslbench.data.prepare.layout import LayoutPlan, archive_space, members
from sslbench.data.prepare.official import Official
from sslbench.errors import DataError

SOP_ARCHIVES = (Official("Stanford_Online_Products.zip"),)
CUB_ARCHIVES = (Official("CUB_200_2011.tgz"),)
CARS_IMAGES, CARS_LABELS = "car_ims.tgz", "cars_annos.mat"
CARS_ARCHIVES = (Official(CARS_IMAGES), Official(CARS_LABELS))
_SOP_ROOT = "Stanford_Online_Products/"
_SOP_LISTS = {f"{_SOP_ROOT}Ebay_train.txt": "train", f"{_SOP_ROOT}Ebay_test.txt": "test"}
_SOP_LINE = re.compile(r"\d+ (\d+) \d+ (\S+)")
_CUB_IMAGE = re.compile(r"CUB_200_2011/images/((\d{3})\.\w[^/]*/[^/]+\.jpg)")
_CUB_TRAIN_CLASSES, _CARS_TRAIN_CLASSES = 100, 98
_CAR_NAME = re.compile(r"car_ims/\d+\.jpg")


def sop(archives: Mapping[str, Path]) -> LayoutPlan:
    """Plan train/PRODUCT/ and test/PRODUCT/ as Ebay_train.txt and Ebay_test.txt list them."""
    path = archives[SOP_ARCHIVES[0].name]
    return LayoutPlan(_listed(path, lambda: _sop_places(path)), archive_space(path))


def cub200(archives: Mapping[str, Path]) -> LayoutPlan:
    """Plan train/ of classes 1 to 100 and test/ of classes 101 to 200, with a folder per class in each."""
    path = archives[CUB_ARCHIVES[0].name]

    def files() -> Iterator[tuple[str, Callable[[], bytes]]]:
        for name, content in members(path):
            if found := _CUB_IMAGE.fullmatch(name):
                part = "train" if int(found[2]) <= _CUB_TRAIN_CLASSES else "test"
                yield f"{part}/{found[1]}", content

    return LayoutPlan(files(), archive_space(path))


def cars196(archives: Mapping[str, Path]) -> LayoutPlan:
    """Plan train/ of classes 1 to 98 and test/ of classes 99 to 196, with a folder per class in each."""
    path = archives[CARS_IMAGES]
    return LayoutPlan(_listed(path, lambda: _car_places(archives[CARS_LABELS])), archive_space(path))


def _listed(archive: Path, places: Callable[[], Mapping[str, str]]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the members that have a place in the folder; `places` is asked for when the writing begins."""
    wanted = places()
    for name, content in members(archive):
        if name in wanted:
            yield wanted[name], content


def _sop_places(archive: Path) -> dict[str, str]:
    """Return member -> path in the folder, by the two lists in the archive."""
    places: dict[str, str] = {}
    parts = set()
    for name, content in members(archive):
        if (part := _SOP_LISTS.get(name)) is None:
            continue
        parts.add(part)
        lines = content().decode("utf-8", "replace").splitlines()
        for number, line in enumerate(lines[1:], 2):  # below the names of the columns
            found = _SOP_LINE.fullmatch(line.strip())
            if found is None or safe_name(found[2]) != found[2]:
                raise DataError(f"{archive}: {name}, line {number}: {line!a} is not 'IMAGE CLASS SUPERCLASS PATH'")
            product, image = int(found[1]), found[2].rpartition("/")[2]
            places[_SOP_ROOT + found[2]] = f"{part}/{product:05d}/{image}"
    if len(parts) < len(_SOP_LISTS):
        raise DataError(f"{archive} does not hold {' and '.join(_SOP_LISTS)}")
    return places


def _car_places(labels: Path) -> dict[str, str]:
    """Return member -> path in the folder, by the annotations of all images."""
    import scipy.io

    try:
        content: Any = scipy.io.loadmat(io.BytesIO(labels.read_bytes()), squeeze_me=True, variable_names="annotations")
        rows = [(str(row["relative_im_path"]), int(row["class"])) for row in content["annotations"].ravel()]
    except Exception as error:  # a damaged file raises anything
        message = " ".join(str(error).split())[:200]
        raise DataError(
            f"{labels} does not hold the annotations of all cars: {message}", "It belongs to car_ims.tgz."
        ) from error
    places = {}
    for name, number in rows:
        if not _CAR_NAME.fullmatch(name) or not 1 <= number <= 2 * _CARS_TRAIN_CLASSES:
            raise DataError(f"{labels}: {name!a} of class {number} is not an image of one of the 196 classes")
        part = "train" if number <= _CARS_TRAIN_CLASSES else "test"
        places[name] = f"{part}/{number:03d}/{name.removeprefix('car_ims/')}"
    return places
