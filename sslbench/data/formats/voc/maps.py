"""Pascal VOC trees: SegmentationClass/ and SegmentationObject/, the lists in ImageSets/Segmentation.

The files have palettes: index 0 is background, 1 to 20 are the classes in alphabetical order, 255 is the border, which
does not count (VOC development kit, section on segmentation). Trees of one's own name their classes in labelmap.txt or
classes.txt. Maps that lost their palette and hold its colours are read by these colours.
"""

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.names import check_some
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.formats.voc.tree import (
    IMAGES,
    MAIN_LISTS,
    SEGMENTATION_LISTS,
    find_years,
    image_files,
    one_year,
    read_stems,
)
from sslbench.data.images import Files
from sslbench.data.label_map import Grid
from sslbench.data.maps.classes import LabelMapOptions, coding_beside, colour, with_ignored
from sslbench.data.maps.files import MapPixels, ValueMaps, load
from sslbench.data.maps.layout import Pairs, by_key, source_of, walk
from sslbench.data.maps.types import Coding, LabelMapSource, distinct
from sslbench.data.wording import printable, some
from sslbench.errors import DataError
from sslbench.preprocessing import MAX_PIXELS

_CLASS, _OBJECT = "SegmentationClass", "SegmentationObject"
_BORDER = 255
NAMES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""Classes of Pascal VOC by index."""


def recognises(spec: str, options: LabelMapOptions) -> bool:
    """Return whether the string is a tree with SegmentationClass/ and ImageSets/Segmentation/."""
    return not options.names_folders and bool(_years(spec))


def maps_only(spec: str) -> bool:
    """Return whether the string is such a tree without ImageSets/Main."""
    years = _years(spec)
    return bool(years) and not any((year / MAIN_LISTS).is_dir() for year in years)


def _years(spec: str) -> list[Path]:
    return find_years(Path(spec), SEGMENTATION_LISTS, _CLASS)


def open_maps(spec: str, options: LabelMapOptions) -> dict[str, LabelMapSource]:
    """Return the label maps of one year; see `sslbench.data.open.open_label_maps`."""
    root = one_year(spec, _years(spec))
    lists = _lists(root)
    maps = by_key(root / _CLASS, walk(root / _CLASS))
    images = image_files(root)
    splits = {name: _pairs(root, name, stems, images, maps) for name, stems in lists.items()}
    coding = _coding(root, options, next(iter(splits.values())).maps)
    coding = with_ignored(spec, coding, options.ignore)
    return {s: source_of(spec, s, p, _maps(root, p.maps, coding), coding) for s, p in splits.items()}


def _lists(root: Path) -> dict[str, list[str]]:
    """Split -> stems: train, val and test where there are such lists; else trainval, or whatever there is, as all."""
    files = {path.stem: path for path in sorted((root / SEGMENTATION_LISTS).glob("*.txt"))}
    chosen: dict[str, Path] = {name: files[name] for name in ("train", "val", "test") if name in files}
    if not chosen:
        others = sorted(files, key=lambda name: (name != "trainval", name))
        if not others:
            raise DataError(f"{root / SEGMENTATION_LISTS} holds no list of images")
        chosen = {"all": files[others[0]]}
    found: dict[str, list[str]] = {}
    for name, path in chosen.items():
        if stems := read_stems(path):
            found[name] = stems
    if not found:
        raise DataError(f"the lists in {root / SEGMENTATION_LISTS} are empty")
    return found


def _pairs(root: Path, split: str, stems: list[str], images: dict[str, str], maps: dict[str, str]) -> Pairs:
    spec = str(root / SEGMENTATION_LISTS / f"{split}.txt")
    files = [images.get(stem, f"{stem}.jpg") for stem in stems]
    check_some(spec, files, root / IMAGES, f"Looked for them in {root / 'JPEGImages'}.")
    without = [stem for stem in stems if stem not in maps]
    if len(without) == len(stems):
        raise DataError(f"{spec}: none of its images has a map in {root / _CLASS}: {some(without)}")
    kept = [stem for stem in stems if stem in maps]
    chosen = tuple(images[stem] for stem in kept)
    return Pairs(
        Files(chosen, str(root / IMAGES)),
        Files(tuple(maps[stem] for stem in kept), str(root / _CLASS)),
        tuple(map(printable, chosen)),
        tuple(printable(str(root / IMAGES / images[stem])) for stem in without),
    )


def _coding(root: Path, options: LabelMapOptions, maps: Files) -> Coding:
    own = coding_beside(root, options)
    if own is not None:
        has_border = _BORDER in own.values or own.colours
        return own if has_border else dataclasses.replace(own, ignore=(_BORDER,))
    numbered = Coding(tuple(range(len(NAMES))), NAMES, (_BORDER,))
    if not _coloured(maps):
        return numbered
    palette = voc_palette()
    values = tuple(colour(palette[i].tolist()) for i in range(len(NAMES)))
    return Coding(values, NAMES, (colour(palette[_BORDER].tolist()),), colours=True)


def _coloured(maps: Files) -> bool:
    """Return whether the maps hold colours in place of indices, by the first readable one that is not grey."""
    for index in range(min(len(maps), 20)):
        try:
            if load(maps, index, MAX_PIXELS).coloured:
                return True
        except UnreadableImage:
            continue  # the check lists it
    return False


_NO_OBJECT = (0, 255)
_NO_OBJECT_COLOURS = (0, 224 + 256 * 224 + 65536 * 192)  # black, and that of borders


def _numbers(objects: MapPixels) -> Grid:
    """Return the numbers of the instances, 0 for none; the colours of a map without palette are numbered 1, 2, ..."""
    if not objects.coloured:
        numbers = objects.indices()
        return np.where(np.isin(numbers, _NO_OBJECT), 0, numbers)
    found, inverse, _ = distinct(objects.colours())
    numbers = np.zeros(len(found), dtype=np.int32)
    own = ~np.isin(found, _NO_OBJECT_COLOURS)
    numbers[own] = np.arange(1, own.sum() + 1)
    return np.asarray(numbers[inverse], dtype=np.int32)


def _maps(root: Path, files: Files, coding: Coding) -> ValueMaps:
    there = all((root / _OBJECT / path).is_file() for path in files.paths)
    return ValueMaps(files, coding.colours, Files(files.paths, str(root / _OBJECT)) if there else None, _numbers)


def voc_palette() -> npt.NDArray[np.uint8]:
    """Return VOC's palette, (256, 3): the bits of an index are dealt to red, green and blue, highest first."""
    palette = np.zeros((256, 3), dtype=np.uint8)
    for index in range(256):
        for bit in range(8):
            for channel in range(3):
                if index >> (3 * bit + channel) & 1:
                    palette[index, channel] |= 1 << (7 - bit)
    return palette
