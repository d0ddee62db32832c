"""Pascal VOC trees: SegmentationClass/ and SegmentationObject/, the lists in ImageSets/Segmentation.

The files have palettes: index 0 is background, 1 to 20 are the classes in alphabetical order, 255 is the border, which
does not count (VOC development kit, section on segmentation). Trees of one's own name their classes in labelmap.txt or
classes.txt. Maps that lost their palette and hold its colours are read by these colours.

`?train=trainaug` trains on the images of that list in ImageSets/Segmentation. VOC's own map counts where there is one;
the others, converted from the Semantic Boundaries Dataset (SBD, Hariharan et al., ICCV 2011), lie in
SegmentationClassAug/.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.formats.voc.tree import (
    MAIN_LISTS,
    SEGMENTATION_LISTS,
    find_years,
    image_files,
    listed_pairs,
    map_lists,
    one_year,
    read_stems,
)
from sslbench.data.images import Files
from sslbench.data.maps.classes import LabelMapOptions, coding_beside, colour, names_folders, with_ignored
from sslbench.data.maps.colours import voc_palette
from sslbench.data.maps.files import MapPixels, ValueMaps, load
from sslbench.data.maps.layout import Pairs, by_key, source_of, walk
from sslbench.data.maps.types import Coding, distinct
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.preprocessing import MAX_PIXELS
from sslbench.targets.label_maps import Grid

CLASS_MAPS = "SegmentationClass"
_AUGMENTED, _OBJECT = "SegmentationClassAug", "SegmentationObject"
_BORDER = 255
NAMES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""Classes of Pascal VOC by index."""


@dataclasses.dataclass(frozen=True)
class VocMapOptions(LabelMapOptions):
    """Options of label maps; train: a list in ImageSets/Segmentation of the images to train on, such as trainaug."""

    train: str | None = None


def recognises(spec: str, options: Mapping[str, str]) -> bool:
    """Return whether the string is a tree with SegmentationClass/ and ImageSets/Segmentation/."""
    return not names_folders(options) and bool(_years(spec))


def maps_only(spec: str) -> bool:
    """Return whether the string is such a tree without ImageSets/Main."""
    years = _years(spec)
    return bool(years) and not any((year / MAIN_LISTS).is_dir() for year in years)


def _years(spec: str) -> list[Path]:
    return find_years(Path(spec), SEGMENTATION_LISTS, CLASS_MAPS)


def open_maps(spec: str, options: VocMapOptions) -> dict[str, Source]:
    """Return the label maps of one year; see `sslbench.data.open.open_as`."""
    root = one_year(spec, _years(spec))
    lists = map_lists(root, SEGMENTATION_LISTS)
    maps = by_key(root / CLASS_MAPS, walk(root / CLASS_MAPS))
    images = image_files(root)
    own = lists if options.train is None else {name: lists[name] for name in ("val", "test") if name in lists}
    splits = {name: listed_pairs(root, *listed, images, CLASS_MAPS, maps) for name, listed in own.items()}
    if options.train is not None:
        splits = {"train": _named_train(root, options.train, splits, images, maps), **splits}
    coding = _coding(root, options, next(iter(splits.values())).maps)
    coding = with_ignored(spec, coding, options.ignore)
    return {s: source_of(spec, s, p, _maps(root, p.maps, coding), coding) for s, p in splits.items()}


def _named_train(
    root: Path, name: str, others: Mapping[str, Pairs], images: Mapping[str, str], maps: Mapping[str, str]
) -> Pairs:
    """Return the images of a list and their maps, VOC's own where there is one."""
    file = root / SEGMENTATION_LISTS / f"{name}.txt"
    if not file.is_file():
        there = [path.stem for path in matching(root / SEGMENTATION_LISTS, "*.txt")]
        raise UsageError(
            f"train={name}: there is no list {file}",
            f"{did_you_mean(name, there)} trainaug.txt lists VOC's train and the images of SBD that are not in val, "
            f"one name per line; the maps of SBD belong into {root / _AUGMENTED}.",
        )
    stems = read_stems(file)
    if not stems:
        raise DataError(f"{file} is empty")
    for split, pairs in others.items():
        if both := sorted(set(stems) & {Path(path).stem for path in pairs.images.paths}):
            raise DataError(
                f"{file}: {len(both):,} of {len(stems):,} images are also in {split}.txt: {some(both)}",
                "Leave them out: the lists of SBD have images of VOC's val.",
            )
    folder = root / _AUGMENTED
    further = by_key(folder, walk(folder)) if folder.is_dir() else {}
    places = {stem: f"{_AUGMENTED}/{path}" for stem, path in further.items()}
    # VOC's own maps last, so that they replace those of SBD.
    places |= {stem: f"{CLASS_MAPS}/{path}" for stem, path in maps.items()}
    if without := [stem for stem in stems if stem not in places]:
        looked = f"Looked in {root / CLASS_MAPS} and {folder}{'' if folder.is_dir() else ', which does not exist'}."
        raise DataError(
            f"{file}: {len(without):,} of {len(stems):,} images have no map: {some(without)}",
            f"{looked} Convert SBD's cls/*.mat into PNG files there: the grey value is the class, 0 to 20, or 255.",
        )
    own = sum(stem in maps for stem in stems)
    note = f"train is {file.name}: {own:,} maps of {CLASS_MAPS}/ and {len(stems) - own:,} of {_AUGMENTED}/"
    return dataclasses.replace(listed_pairs(root, file, stems, images, "", places), notes=(note,))


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
    there = Path(files.root).name == CLASS_MAPS and all((root / _OBJECT / path).is_file() for path in files.paths)
    return ValueMaps(files, coding.colours, Files(files.paths, str(root / _OBJECT)) if there else None, _numbers)
