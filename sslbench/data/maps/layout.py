"""Pairing of images with label maps or other files by name: images/ and masks/, split inside (images/train/) or not."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from sslbench.data.containers.members import in_clutter, is_image, split_name, split_rank
from sslbench.data.containers.sniff import is_clutter
from sslbench.data.decode.arrays import SUFFIXES
from sslbench.data.images import Files
from sslbench.data.maps.classes import LabelMapOptions, coding_beside, coding_of_values, with_ignored
from sslbench.data.maps.files import ValueMaps
from sslbench.data.maps.types import CodedMaps, Coding, Maps, notes_of_left_out, source_of_maps
from sslbench.data.regular import reading
from sslbench.data.source import Source
from sslbench.data.wording import part_name, some
from sslbench.errors import DataError, UsageError
from sslbench.text import printable

T = TypeVar("T")
FOLDER = "folder"
"""Grouping of images by their folder, `?group=folder`, and the name of its attribute."""


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Images and their label maps.

    Attributes:
        images: one file per image, in order of the ids.
        maps: one file per image.
        ids: the paths of the images relative to their folder.
        without_map: images left over.
        without_image: maps left over.
        notes: remarks for the user.
        groups: of a table, the group of each image; () without a column of them.
    """

    images: Files
    maps: Files
    ids: tuple[str, ...]
    without_map: tuple[str, ...] = ()
    without_image: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def left_out(self, where: str, what: str) -> tuple[str, ...]:
        """Return a sentence on the images and on the files, called `what`, that are left over; see `CodedMaps`."""
        left = (f"images without a {what}", self.without_map), (f"{what}s without an image", self.without_image)
        return notes_of_left_out(where, *left)


@dataclasses.dataclass(frozen=True)
class PairedFiles:
    """Kind of files that lie in a folder of their own, under the names of images.

    Attributes:
        title: of one in messages.
        images: names of folders of images, in lower case; of several, the first that is there counts.
        folders: likewise of the folders of the files.
        endings: of their names, behind those of the images.
        wanted: tests of their names; the first one counts that any file passes.
    """

    title: str
    images: tuple[str, ...]
    folders: tuple[str, ...]
    endings: tuple[str, ...] = ("",)
    wanted: tuple[Callable[[str], bool], ...] = (is_image,)


MASKS = PairedFiles(
    "map",
    ("images", "image", "imgs", "img", "img_dir", "jpegimages", "photos", "pictures", "inputs"),
    (
        *("masks", "mask", "label_maps", "labelmaps", "labels", "label", "annotations", "annotation", "ann_dir"),
        *("segmentations", "segmentation", "segmentationclass", "gt", "ground_truth", "groundtruth"),
    ),
    ("", "_mask", "_masks", "_label", "_labels", "_seg", "_segmentation", "_gt", "-mask", ".mask"),
    # Arrays (.mat, .npy) are maps where there are no pictures.
    (is_image, lambda name: PurePosixPath(name).suffix.lower() in SUFFIXES),
)


def walk(folder: Path, wanted: Callable[[str], bool] = is_image) -> list[str]:
    """List the files of a kind below a folder, relative to it and sorted; hidden ones are skipped."""
    found: list[str] = []
    waiting = [""]  # an explicit stack, so that folders may be nested to any depth
    while waiting:
        prefix = waiting.pop()
        with reading(), os.scandir(folder / prefix) as entries:
            for entry in entries:
                if in_clutter(entry.name):
                    continue
                # Links to folders may lead in a circle.
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{prefix}{entry.name}/")
                elif wanted(entry.name) and (entry.is_symlink() or entry.is_file()):
                    found.append(f"{prefix}{entry.name}")
    return sorted(found)


def by_key(folder: Path, paths: Iterable[str], ending: str = "", *, skip: int = 0) -> dict[str, str]:
    """Return key -> path; the key is the path without suffix and ending, files with other endings are skipped.

    So many folders as `skip` says at the front of a path are no part of the key.
    """
    found: dict[str, str] = {}
    for path in paths:
        stem = os.path.splitext(path)[0]  # noqa: PTH122 - a Path per image is slow
        if not stem.endswith(ending):
            continue
        key = stem.removesuffix(ending).split("/", skip)[-1]
        if key in found:
            raise DataError(f"{folder}: two files for one image: {printable(found[key])} and {printable(path)}")
        found[key] = path
    return found


def pair(
    images: Mapping[str, str], maps: Mapping[str, str], image_root: Path, map_root: Path, what: str = "map"
) -> Pairs:
    """Pair images and maps of the same key; `what` is the title of a map in messages."""
    both = sorted((key for key in images if key in maps), key=lambda key: printable(images[key]))
    if not both:
        raise DataError(
            f"no image in {image_root} has a {what} of the same name in {map_root}",
            f"Images: {some(list(images.values())) or 'none'}; {what}s: {some(list(maps.values())) or 'none'}.",
        )
    return Pairs(
        Files(tuple(images[key] for key in both), str(image_root)),
        Files(tuple(maps[key] for key in both), str(map_root)),
        tuple(printable(images[key]) for key in both),
        tuple(printable(str(image_root / path)) for key, path in images.items() if key not in maps),
        tuple(printable(str(map_root / path)) for key, path in maps.items() if key not in images),
    )


def source_of(spec: str, split: str, pairs: Pairs, maps: Maps, coding: Coding, notes: Sequence[str] = ()) -> Source:
    """Return the source of one split."""
    name = part_name(spec, split)
    left = pairs.without_map, pairs.without_image
    return source_of_maps(CodedMaps(name, pairs.ids, pairs.images, maps, coding, *left), (*pairs.notes, *notes))


def in_order(found: Mapping[str, T]) -> dict[str, T]:
    """Sort by split: train, val, test, then others."""
    return {split: found[split] for split in sorted(found, key=split_rank)}


def by_folder(source: Source) -> Source:
    """Return a source whose images of one folder are a group: frames of a video, views of a scene."""
    folders = tuple(name.rpartition("/")[0] for name in source.ids)
    return dataclasses.replace(source, attributes={**source.attributes, FOLDER: folders}, grouped_by=FOLDER)


@dataclasses.dataclass(frozen=True)
class Place:
    """Folders of one split's images and maps; the split is 'all' if the folders may hold several."""

    split: str
    images: Path
    maps: Path


def recognises(root: Path) -> bool:
    """Return whether a folder holds folders of images and of maps, with a map for at least half of the images."""
    try:
        found = paired(find_places(root), dataclasses.replace(MASKS, wanted=(is_image,)))
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


def find_places(
    root: Path, kind: PairedFiles = MASKS, images: str | None = None, maps: str | None = None
) -> list[Place]:
    """Find the folders of images and maps by their names, those that are given or usual; empty if there are none."""

    def inside(split: str, folder: Path) -> list[Place]:
        known = {name.lower(): name for name in _folders(folder)}
        pairs = (images, kind.images), (maps, kind.folders)
        names = [given or next((known[name] for name in usual if name in known), None) for given, usual in pairs]
        found = [folder / name for name in names if name and (folder / name).is_dir()]
        return [Place(split, *found)] if len(found) == len(names) else []

    splits = [(split, name) for name in _folders(root) if (split := split_name(name)) is not None]
    return inside("all", root) or [place for split, name in splits for place in inside(split, root / name)]


def divided(place: Place, *, others: bool = False) -> list[Place]:
    """Return the places of images/train/ and masks/train/ and so on; the place itself where these are no splits.

    `others`: folders beside those of the splits are passed over; else there are no splits then.
    """
    folders = _folders(place.images), _folders(place.maps)
    images, maps = ({split: name for name in own if (split := split_name(name))} for own in folders)
    # Two folders of one split, train/ and training/, are no division.
    if not others and (len(images), len(maps)) != tuple(map(len, folders)):
        return [place]
    return [Place(s, place.images / images[s], place.maps / maps[s]) for s in images if s in maps] or [place]


def named_places(spec: str, root: Path, options: LabelMapOptions) -> list[Place]:
    """Return the folders of images and maps that the options name; empty if they name none."""
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
            return sorted(entry.name for entry in entries if not is_clutter(entry.name) and entry.is_dir())
    except OSError as error:
        raise DataError(f"cannot read {root}: {error.strerror}") from error


def paired(places: list[Place], kind: PairedFiles = MASKS, *, whole: bool = False) -> dict[str, Pairs]:
    """Return split -> pairs; with `whole` the folders of a place are no splits."""
    found: dict[str, Pairs] = {}
    for place in places:
        for split, pairs in _paired(place, kind, whole).items():
            if split in found:
                raise DataError(f"{place.images} is a second folder for the {split} split")
            found[split] = pairs
    return in_order(found)


def _paired(place: Place, kind: PairedFiles, whole: bool) -> dict[str, Pairs]:
    images, maps = walk(place.images), next((found for test in kind.wanted if (found := walk(place.maps, test))), [])
    # Otherwise every mask would be an image without a mask.
    if place.maps.is_relative_to(place.images):  # a folder of masks among the images
        below = place.maps.relative_to(place.images).as_posix() + "/"
        images = [path for path in images if not path.startswith(below)]
    of_images, of_maps = (_by_split(paths) or {} for paths in (images, maps))
    if whole or place.split != "all" or not of_images.keys() & of_maps.keys():
        # Folders inside are splits only if those of images and of maps both are.
        return {place.split: _matched(place, images, maps, kind)}
    notes = list[str]()
    for split in sorted(set(of_images) ^ set(of_maps)):
        notes.append(f"{place.images if split in of_images else place.maps}: the {split} split has no counterpart")
    both = {s: _matched(place, of_images[s], of_maps[s], kind, skip=1) for s in of_images if s in of_maps}
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


def _matched(place: Place, images: list[str], maps: list[str], kind: PairedFiles, *, skip: int = 0) -> Pairs:
    """Pair maps with images of the same name, or with the ending ('_mask', ...) that pairs most."""
    keys = by_key(place.images, images, skip=skip)
    stems = [os.path.splitext(path)[0] for path in maps]  # noqa: PTH122 - a Path per image is slow
    endings = [ending for ending in kind.endings if any(stem.endswith(ending) for stem in stems)]
    candidates = [by_key(place.maps, maps, ending, skip=skip) for ending in endings]
    # Of equal ones max takes the first, which is no ending.
    best = max(candidates, key=lambda found: len(keys.keys() & found.keys()), default={})
    return pair(keys, best, place.images, place.maps, kind.title)
