"""Cityscapes: leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with gtFine/SPLIT/CITY/*_gtFine_labelIds.png (or gtCoarse).

Scored are 19 of the 34 classes (Cordts et al. 2016, The Cityscapes Dataset, and the benchmark's own table of labels);
the pixels of the others do not count. `labelIds` and `labelTrainIds` files are the same maps in two numberings. In
instanceIds a pixel of an object holds 1000 times its class plus its number; the class alone is a group of objects that
were not told apart. Eight of the scored classes have objects.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from sslbench.data.containers.members import split_name
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.images import Files
from sslbench.data.maps.classes import LabelMapOptions, with_ignored
from sslbench.data.maps.files import MapPixels, ValueMaps, load
from sslbench.data.maps.foreground import layout_readers
from sslbench.data.maps.layout import Pairs, by_key, in_order, pair, source_of, walk
from sslbench.data.maps.types import Coding
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import AnnotatedImage, object_sources
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.metrics.detection import masks
from sslbench.preprocessing import MAX_PIXELS
from sslbench.runtime.resources import usable_cores
from sslbench.targets.label_maps import Grid
from sslbench.targets.objects import Boxes

IDS = 34
"""Numbers of the classes in labelIds files; 15 of them are not scored."""

SCORED = {
    **{7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light"},
    **{20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car"},
    **{27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle"},
}
"""Number in labelIds -> class, in the order of the train ids 0 to 18."""

OBJECTS = {number: name for number, name in SCORED.items() if number >= 24}
"""Number in labelIds -> class, of the classes whose objects are told apart."""

_IMAGES, _TRUTH = "leftImg8bit", ("gtFine", "gtCoarse")
_PER_CLASS = 1000


def recognises(spec: str) -> bool:
    """Return whether the location holds leftImg8bit/ and gtFine/ or gtCoarse/."""
    root = Path(spec)
    return (root / _IMAGES).is_dir() and any((root / name).is_dir() for name in _TRUTH)


def open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    """Return the label maps of a Cityscapes folder; see `sslbench.data.open.open_as`."""
    root = Path(spec)
    truth = next(name for name in _TRUTH if (root / name).is_dir())
    files = walk(root / truth)
    there = [n for n in ("labelIds", "labelTrainIds") if any(Path(path).stem.endswith(f"_{n}") for path in files)]
    if not there:
        raise DataError(f"{root / truth} holds neither *_labelIds.png nor *_labelTrainIds.png")
    numbering, ending, notes = there[0], f"_{truth}_{there[0]}", list[str]()
    coding = Coding(tuple(range(len(SCORED))), tuple(SCORED.values()), (255,))
    if numbering == "labelIds":
        coding = Coding(tuple(SCORED), tuple(SCORED.values()), tuple(i for i in range(IDS) if i not in SCORED))
        notes.append(f"{spec}: the 19 classes that the benchmark scores; pixels of the other 15 do not count")
    coding, sources = with_ignored(spec, coding, options.ignore), {}
    for split, pairs in _pairs(root, truth, files, ending).items():
        others = tuple(str(path).replace(f"_{numbering}.", "_instanceIds.") for path in pairs.maps.paths)
        complete = all((Path(pairs.maps.root) / other).is_file() for other in others)
        maps = ValueMaps(pairs.maps, objects=Files(others, pairs.maps.root) if complete else None, numbers=_numbers)
        sources[split] = source_of(spec, split, pairs, maps, coding, notes)
    return sources


def _pairs(root: Path, truth: str, files: list[str], ending: str) -> dict[str, Pairs]:
    images = walk(root / _IMAGES)
    tops = {path.partition("/")[0] for path in files}
    splits = {}
    for top in sorted(tops & {path.partition("/")[0] for path in images}):
        photos = by_key(root / _IMAGES, [p for p in images if p.startswith(f"{top}/")], f"_{_IMAGES}")
        maps = by_key(root / truth, [p for p in files if p.startswith(f"{top}/")], ending)
        if maps:
            splits[split_name(top) or top] = pair(photos, maps, root / _IMAGES, root / truth)
    if not splits:
        raise DataError(f"{root}: {_IMAGES}/ and {truth}/ have no split in common")
    return in_order(splits)


def _numbers(objects: MapPixels) -> Grid:
    numbers = objects.indices()
    # A class alone is a group of objects that were not told apart.
    return np.where(numbers < _PER_CLASS, 0, numbers)


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """Return the objects of a Cityscapes folder with their boxes and masks, from the instanceIds files.

    A group is a crowd, as in COCO. All maps are decoded, about 0.2 s of a core for each of 2048 x 1024 pixels: a
    manifest by `sslbench data to-kwcoco` opens at once. A split without objects, such as test, is left out.
    """
    root = Path(spec)
    truth = next(name for name in _TRUTH if (root / name).is_dir())
    files = walk(root / truth)
    if not any(Path(path).stem.endswith("_instanceIds") for path in files):
        raise DataError(f"{root / truth} holds no *_instanceIds.png, which have the objects")
    splits, notes = dict[str, list[AnnotatedImage]](), list[str]()
    for split, pairs in _pairs(root, truth, files, f"_{truth}_instanceIds").items():
        if pairs.without_map:
            many = counted(len(pairs.without_map), "image")
            raise DataError(f"{spec} ({split}): {many} without *_instanceIds.png: {some(pairs.without_map)}")
        # Threads do, since Pillow decodes without the interpreter's lock.
        with ThreadPoolExecutor(usable_cores()) as pool:
            images = list(pool.map(functools.partial(_annotated, pairs), range(len(pairs.ids))))
        if any(image.rows for image in images):
            splits[split] = images
        else:
            notes.append(f"{spec}: {split} has no objects and is left out")
    if not splits:
        raise DataError(f"{root / truth}: the *_instanceIds.png hold no object of {', '.join(OBJECTS.values())}")
    return object_sources(spec, splits, notes, tuple(OBJECTS.values()))


def _annotated(pairs: Pairs, index: int) -> AnnotatedImage:
    """Return an image with a row for each of its objects; a box is the smallest around the pixels."""
    try:
        numbers = load(pairs.maps, index, MAX_PIXELS).indices()
    except UnreadableImage as error:
        raise DataError(str(error)) from error
    rows = []
    for number in np.unique(numbers).tolist():
        name = OBJECTS.get(number // _PER_CLASS if number >= _PER_CLASS else number)
        if name is None:
            continue
        own = numbers == number
        y, x = np.flatnonzero(own.any(axis=1)), np.flatnonzero(own.any(axis=0))
        rows.append(
            {
                "name": f"{pairs.maps.path(index)}: {number}",
                "class": name,
                # The first pixel reaches from 0 to 1, so a box ends one behind its last pixel.
                "box": (x[0], y[0], x[-1] + 1, y[-1] + 1),
                "crowd": number < _PER_CLASS,
                "difficult": False,
                "area": float(np.count_nonzero(own)),
                "mask": masks.text(masks.encode(own)),
            }
        )
    height, width = numbers.shape
    return AnnotatedImage(pairs.ids[index], Path(pairs.images.path(index)), (height, width), rows)


FORMAT = SourceFormat(
    __doc__,
    readers={
        Boxes: plain_reader(recognises, open_objects),
        **layout_readers(recognises, open_maps),
    },
)
