"""Places205: all images in one packed tar, the parts in two lists of another."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sslbench.data.containers.members import safe_name
from sslbench.data.prepare.layout import LayoutPlan, archive_space, members
from sslbench.data.prepare.official import Official
from sslbench.errors import DataError

IMAGES, LISTS = "imagesPlaces205_resize.tar.gz", "trainvalsplit_places205.tar.gz"
ARCHIVES = (Official(IMAGES, others=("imagesPlaces205_resize.tar",)), Official(LISTS))
_ROOT = "data/vision/torralba/deeplearning/images256/"


def plan(archives: Mapping[str, Path]) -> LayoutPlan:
    """Plan train/SCENE/ and val/SCENE/; 'a/apartment_building/outdoor' is the scene apartment_building-outdoor."""
    return LayoutPlan(_files(archives), archive_space(archives[IMAGES]))


def _files(archives: Mapping[str, Path]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    parts = _parts(archives[LISTS])
    for name, content in members(archives[IMAGES]):
        path = name.partition(_ROOT)[2] or name
        if part := parts.get(path):
            _, *scene, image = path.split("/")
            yield f"{part}/{'-'.join(scene)}/{image}", content


def _parts(lists: Path) -> dict[str, str]:
    """Return path of an image below the root -> train or val."""
    parts: dict[str, str] = {}
    for name, content in members(lists):
        part = {"train_places205.csv": "train", "val_places205.csv": "val"}.get(name.rpartition("/")[2])
        if part is None:
            continue
        for number, line in enumerate(content().decode("utf-8", "replace").splitlines(), 1):
            path = line.rpartition(" ")[0]
            if safe_name(path) != path or path.count("/") < 2:
                raise DataError(f"{lists}: {name}, line {number}: {line!a} is not 'a/SCENE/IMAGE.jpg NUMBER'")
            parts[path] = part
    if not {"train", "val"} <= set(parts.values()):
        raise DataError(f"{lists} does not hold train_places205.csv and val_places205.csv")
    return parts
