"""Folders of images and of maps with the same names: images/ and masks/, split inside (images/train/) or outside."""

import dataclasses
import os
from pathlib import Path

from sslbench.data.containers.names import split_name
from sslbench.data.images import Files
from sslbench.data.maps.classes import LabelMapOptions, coding_beside, coding_of_values, with_ignored
from sslbench.data.maps.files import ValueMaps
from sslbench.data.maps.layout import Pairs, by_key, in_order, pair, source_of, walk
from sslbench.data.maps.types import Coding
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError

_IMAGES = ("images", "image", "imgs", "img", "img_dir", "jpegimages", "photos", "pictures", "inputs")
_MAPS = (
    *("masks", "mask", "label_maps", "labelmaps", "labels", "label", "annotations", "annotation", "ann_dir"),
    *("segmentations", "segmentation", "segmentationclass", "gt", "ground_truth", "groundtruth"),
)
"""Names of folders, in lower case; of several, the first that holds pictures counts."""
_ENDINGS = ("", "_mask", "_masks", "_label", "_labels", "_seg", "_segmentation", "_gt", "-mask", ".mask")


@dataclasses.dataclass(frozen=True)
class Place:
    """Folders of one split's images and maps; the split is 'all' if the folders may hold several."""

    split: str
    images: Path
    maps: Path


def recognises(root: Path) -> bool:
    """Return whether a folder holds folders of images and of maps, with a map for at least half of the images."""
    try:
        found = paired(find_places(root))
    except DataError:
        return False
    return bool(found) and all(len(pairs.ids) >= len(pairs.without_map) for pairs in found.values())


def open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    """Return the label maps of a folder; see `sslbench.data.open.open_as`."""
    root = Path(spec)
    places = named_places(spec, root, options) or find_places(root)
    return sources_of(spec, paired(places), coding_beside(root, options), options)


def sources_of(
    spec: str, splits: dict[str, Pairs], coding: Coding | None, options: LabelMapOptions
) -> dict[str, Source]:
    """Return the sources of pairs; without a coding the values become the names of the classes."""
    notes: tuple[str, ...] = ()
    if coding is None:
        files = [pairs.maps.path(i) for pairs in splits.values() for i in range(len(pairs.maps))]
        coding, notes = coding_of_values(spec, Files(files))
    coding = with_ignored(spec, coding, options.ignore)
    return {
        split: source_of(spec, split, pairs, ValueMaps(pairs.maps, coding.colours), coding, notes)
        for split, pairs in splits.items()
    }


def find_places(root: Path) -> list[Place]:
    """Find the folders of images and maps by their names; empty if there are none."""
    folders = _folders(root)
    inner = _named(root, folders)
    if inner is not None:
        return [Place("all", *inner)]
    places = []
    for name in folders:
        split = split_name(name)
        below = _named(root / name, _folders(root / name)) if split is not None else None
        if split is not None and below is not None:
            places.append(Place(split, *below))
    return places


def named_places(spec: str, root: Path, options: LabelMapOptions) -> list[Place]:
    """Return the folders of images and maps that the options name; empty if they name none.

    Raises:
        UsageError: a folder does not exist, or only that of the images is named.
    """
    if options.images is None and options.maps is None:
        return []
    if options.maps is None:
        raise UsageError(f"{spec}: images= needs maps= beside it", f"Write {spec}?images=photos&maps=masks")
    place = Place("all", root / (options.images or "."), root / options.maps)
    missing = [folder for folder in (place.images, place.maps) if not folder.is_dir()]
    if missing:
        raise UsageError(f"there is no folder {missing[0]}", f"images= and maps= are folders below {root}.")
    return [place]


def _folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:  # without a stat per file
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except OSError as error:
        raise DataError(f"cannot read {root}: {error.strerror}") from error


def _named(root: Path, folders: list[str]) -> tuple[Path, Path] | None:
    known = {name.lower(): root / name for name in folders}
    images = next((known[name] for name in _IMAGES if name in known), None)
    maps = next((known[name] for name in _MAPS if name in known), None)
    return None if images is None or maps is None else (images, maps)


def paired(places: list[Place]) -> dict[str, Pairs]:
    """Split -> pairs.

    Raises:
        DataError: no image has a map, two files have one name, or two folders are one split.
    """
    found: dict[str, Pairs] = {}
    for place in places:
        for split, pairs in _paired(place).items():
            if split in found:
                raise DataError(f"{place.images} is a second folder for the {split} split")
            found[split] = pairs
    return in_order(found)


def _paired(place: Place) -> dict[str, Pairs]:
    images, maps = walk(place.images), walk(place.maps)
    if place.maps.is_relative_to(place.images):  # a folder of masks among the images
        below = place.maps.relative_to(place.images).as_posix() + "/"
        images = [path for path in images if not path.startswith(below)]
    inside = [_by_split(paths) for paths in (images, maps)]
    if place.split != "all" or None in inside:
        return {place.split: _matched(place, images, maps, skip=0)}
    (of_images, of_maps), notes = [group or {} for group in inside], list[str]()
    for split in sorted(set(of_images) ^ set(of_maps)):
        notes.append(f"{place.images if split in of_images else place.maps}: the {split} split has no counterpart")
    both = {s: _matched(place, of_images[s], of_maps[s], skip=1) for s in of_images if s in of_maps}
    return {split: dataclasses.replace(pairs, notes=tuple(notes)) for split, pairs in both.items()}


def _by_split(paths: list[str]) -> dict[str, list[str]] | None:
    """Group files by split, the name of their first folder; None if a first folder is no split."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        first, _, rest = path.partition("/")
        split = split_name(first) if rest else None
        if split is None:
            return None
        groups.setdefault(split, []).append(path)
    return groups


def _matched(place: Place, images: list[str], maps: list[str], *, skip: int) -> Pairs:
    """Pair maps with images of the same name, or with the ending ('_mask', ...) that pairs most."""
    keys = by_key(place.images, images, skip=skip)
    stems = [os.path.splitext(path)[0] for path in maps]  # noqa: PTH122 - a Path per image is slow
    endings = [ending for ending in _ENDINGS if any(stem.endswith(ending) for stem in stems)]
    candidates = [by_key(place.maps, maps, ending, skip=skip) for ending in endings]
    best = max(candidates, key=lambda found: len(keys.keys() & found.keys()), default={})
    return pair(keys, best, place.images, place.maps)
