"""ImageNet (ILSVRC2012): a tar of tars with the training images, a flat tar of validation images, the devkit."""

import io
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sslbench.data.prepare.layout import LayoutPlan, archive_space, members
from sslbench.data.prepare.official import Official
from sslbench.errors import DataError

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
ARCHIVES = (
    Official(TRAIN, "1d675b47d978889d74fa0da5fadfb00e"),
    Official(VAL, "29b22e2961454d5413ddabcf34fc5622"),
    Official(DEVKIT, "fa75699e90414af021442c21a62c3abf"),
)
_VAL_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
_TRAIN_IMAGE = re.compile(r"n\d{8}_\d+\.JPEG")
_CLASS = re.compile(r"(n\d{8})\.tar")


def plan(archives: Mapping[str, Path]) -> LayoutPlan:
    """Plan train/WNID/ and val/WNID/."""
    return LayoutPlan(_files(archives), archive_space(archives[TRAIN], archives[VAL]))


def _files(archives: Mapping[str, Path]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    classes = _validation_classes(archives[DEVKIT])
    for name, content in members(archives[VAL]):
        found = _VAL_IMAGE.fullmatch(PurePosixPath(name).name)
        if found is None or not 1 <= int(found[1]) <= len(classes):
            raise DataError(f"{archives[VAL]}: {name!a} is not a validation image of the devkit")
        yield f"val/{classes[int(found[1]) - 1]}/{found[0]}", content
    for name, content in members(archives[TRAIN]):
        wnid = _CLASS.fullmatch(name)
        if wnid is None:
            raise DataError(f"{archives[TRAIN]}: {name!a} is not the tar of a class")
        yield from _class_images(archives[TRAIN], wnid[1], content())


def _class_images(archive: Path, wnid: str, content: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the images in the inner tar of one class, of about 130 MB."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as inner:
            for member in inner:
                if not member.isfile() or not _TRAIN_IMAGE.fullmatch(member.name):
                    raise DataError(f"{archive}: {member.name!a} in {wnid}.tar is not a training image")
                if member.offset_data + member.size > len(content):
                    raise DataError(f"{archive}: {wnid}.tar ends early", "Download it again; written images are kept.")
                yield f"train/{wnid}/{member.name}", _slice(content, member.offset_data, member.size)
    except tarfile.TarError as error:
        raise DataError(f"{archive}: {wnid}.tar is damaged: {error}", "Download it again.") from error


def _slice(content: bytes, begin: int, size: int) -> Callable[[], bytes]:
    return lambda: content[begin : begin + size]


def _validation_classes(devkit: Path) -> list[str]:
    """Return the WordNet id of each validation image, in order of the images' numbers."""
    texts = {PurePosixPath(name).name: content() for name, content in members(devkit) if name.endswith(_NEEDED)}
    if len(texts) != len(_NEEDED):
        raise DataError(f"{devkit} does not hold {' and '.join(_NEEDED)}")
    import scipy.io

    synsets: Any = scipy.io.loadmat(io.BytesIO(texts["meta.mat"]), squeeze_me=True)["synsets"]
    wnids = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets if int(row["num_children"]) == 0}
    try:
        numbers = [int(line) for line in texts["ILSVRC2012_validation_ground_truth.txt"].split()]
        classes = [wnids[number] for number in numbers]
    except (KeyError, ValueError) as error:
        raise DataError(f"{devkit}: the ground truth names a class that meta.mat does not know: {error}") from error
    if wrong := [wnid for wnid in set(classes) if not re.fullmatch(r"n\d{8}", wnid)]:
        raise DataError(f"{devkit}: {wrong[0]!a} is not a WordNet id")
    return classes


_NEEDED = ("data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt")
