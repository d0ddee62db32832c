"""Pascal Context in a tree of VOC 2010: SegmentationClassContext/ and the lists in ImageSets/SegmentationContext.

Mottaghi et al., CVPR 2014: 4,998 images for training and 5,105 for test. A pixel holds 1 to 59, the most frequent
classes in alphabetical order, or 0 for anything else, which does not count (`?ignore=none` makes it the 60th class).
MMSegmentation converts trainval_merged.json into such maps; those in another order name their classes in classes.txt.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from sslbench.data.format import SourceFormat
from sslbench.data.formats.voc.maps import CLASS_MAPS
from sslbench.data.formats.voc.tree import (
    MAIN_LISTS,
    SEGMENTATION_LISTS,
    find_years,
    image_files,
    listed_pairs,
    map_lists,
    one_year,
)
from sslbench.data.maps.classes import LabelMapOptions, coding_beside
from sslbench.data.maps.foreground import map_readers
from sslbench.data.maps.layout import by_key, sources_of, walk
from sslbench.data.maps.types import Coding
from sslbench.data.source import Source
from sslbench.errors import DataError

_MAPS = "SegmentationClassContext"
_LISTS = Path("ImageSets") / "SegmentationContext"
NAMES = (
    *("aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle", "bird", "boat", "book", "bottle", "building"),
    *("bus", "cabinet", "car", "cat", "ceiling", "chair", "cloth", "computer", "cow", "cup", "curtain", "dog"),
    *("door", "fence", "floor", "flower", "food", "grass", "ground", "horse", "keyboard", "light", "motorbike"),
    *("mountain", "mouse", "person", "plate", "platform", "pottedplant", "road", "rock", "sheep", "shelves"),
    *("sidewalk", "sign", "sky", "snow", "sofa", "table", "track", "train", "tree", "truck", "tvmonitor", "wall"),
    *("water", "window", "wood"),
)
"""Classes by value, from 1."""


def recognises(spec: str, options: Mapping[str, str]) -> bool:
    """Return whether the maps of the tree are those of Pascal Context.

    A tree with VOC's own maps too is read as VOC, unless the options name the folder.
    """
    if "images" in options or options.get("maps") not in (None, _MAPS):
        return False
    # VOC 2010 has its own 20 classes in the same tree, which are what most users mean.
    named = options.get("maps") == _MAPS
    return bool(_years(spec)) and (named or not find_years(Path(spec), SEGMENTATION_LISTS, CLASS_MAPS))


def _years(spec: str) -> list[Path]:
    return find_years(Path(spec), _MAPS)


def open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    """Return the label maps of Pascal Context; see `sslbench.data.open.open_as`."""
    root = one_year(spec, _years(spec))
    if not (root / _LISTS).is_dir():
        raise DataError(
            f"{root} has {_MAPS}/, but not {_LISTS}/", "train.txt and val.txt there list the images, one name per line."
        )
    images, maps = image_files(root), by_key(root / _MAPS, walk(root / _MAPS))
    named = coding_beside(root, options) or Coding(tuple(range(1, len(NAMES) + 1)), NAMES)
    coding = dataclasses.replace(named, ignore=() if 0 in named.values else (0,))
    lists = map_lists(root, _LISTS).items()
    pairs = {split: listed_pairs(root, file, stems, images, _MAPS, maps) for split, (file, stems) in lists}
    return sources_of(spec, pairs, coding, options)


FORMAT = SourceFormat(
    __doc__,
    readers=map_readers(
        recognises,
        open_maps,
        LabelMapOptions,
        alone=lambda spec: recognises(spec, {}) and not any((year / MAIN_LISTS).is_dir() for year in _years(spec)),
    ),
)
