"""COCO's files of ADE20K: instances of 100 classes, and panoptic segments of all 150, as Mask2Former's scripts define.

Stuff is what `annotations/` says; over it lie the instances of `annotations_instance/`, whose red is one of the 100
classes and whose green the number of the instance. Everything else belongs to no segment: also pixels of the 100
classes outside of instances. Areas and boxes of stuff count the pixels below instances, as those scripts do:
panopticapi scores by these areas. Categories have the ids 0 to 149 in both files, images their names.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.formats.ade20k import class_names
from sslbench.data.images import Files
from sslbench.data.maps.files import load
from sslbench.data.prepare.layout import NewFiles, Official
from sslbench.data.prepare.sets import png
from sslbench.data.regular import matching
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.metrics.detection import masks
from sslbench.preprocessing import MAX_PIXELS

_SCENES, _INSTANCES = "ADEChallengeData2016", "annotations_instance"
ARCHIVES = (Official(_SCENES), Official(_INSTANCES))
FOLDER = "ade20k-panoptic"
SAMPLES = {"train": 20210, "test": 2000}
_SPLITS = {"train": "training", "val": "validation"}
# SceneParse's classes that have instances, in the order of their numbers in red (ade20k_instance_catid_mapping.txt).
THINGS = (
    *(8, 9, 11, 13, 15, 16, 19, 20, 21, 23, 24, 25, 28, 31, 32, 33, 34, 36, 37, 38, 39, 40, 42, 43, 44, 45, 46, 48, 50),
    *(51, 54, 56, 57, 58, 59, 63, 65, 66, 67, 68, 70, 71, 72, 73, 74, 75, 76, 77, 79, 81, 82, 83, 84, 86, 87, 88, 89),
    *(90, 91, 93, 94, 96, 98, 99, 103, 104, 105, 108, 109, 111, 112, 113, 116, 117, 119, 120, 121, 122, 124, 125, 126),
    *(127, 128, 130, 131, 133, 134, 135, 136, 137, 138, 139, 140, 143, 144, 145, 147, 148, 149, 150),
)
_CLASSES = 150
Grid = npt.NDArray[np.int32]
Row = dict[str, Any]


def files(archives: Mapping[str, Path]) -> NewFiles:
    """Return train/ and val/ with the images, and annotations/ with both kinds of files, from the unpacked folders."""
    scenes, instances = archives[_SCENES], archives[_INSTANCES]
    if packed := [str(path) for path in (scenes, instances) if not path.is_dir()]:
        raise DataError(f"{some(packed)} should be an unpacked folder", "Unpack it, and give the folder.")
    coding = class_names(scenes)
    if coding.values != tuple(range(1, _CLASSES + 1)):
        raise DataError(f"{scenes}/objectInfo150.txt has {counted(len(coding.values), 'class')}, not 1 to {_CLASSES}")
    names = {split: _images(scenes, instances, folder) for split, folder in _SPLITS.items()}
    return _files(scenes, instances, names, coding.classes)


def _images(scenes: Path, instances: Path, folder: str) -> list[str]:
    """Return the names of the images of a split, all of which have both maps."""
    found = [path.stem for path in matching(scenes / "images" / folder, "*.jpg")]
    if not found:
        raise DataError(f"there are no images (.jpg) in {scenes / 'images' / folder}")
    for maps in (scenes / "annotations" / folder, instances / folder):
        there = {path.stem for path in matching(maps, "*.png")}
        if lost := [f"{name}.png" for name in found if name not in there]:
            raise DataError(f"{maps} lacks {len(lost):,} of {counted(len(found), 'map')}: {some(lost)}")
    return found


def _files(scenes: Path, instances: Path, names: Mapping[str, list[str]], classes: tuple[str, ...]) -> NewFiles:
    for split, own in names.items():
        folder, photos, segments, objects = _SPLITS[split], list[Row](), list[Row](), list[Row]()
        semantic, numbered = (
            Files(tuple(f"{name}.png" for name in own), str(top / folder))
            for top in (scenes / "annotations", instances)
        )
        for row, name in enumerate(own):
            photo = scenes / "images" / folder / f"{name}.jpg"
            drawn, found = _segments(semantic, numbered, row)
            height, width = drawn.shape
            photos.append({"id": name, "file_name": photo.name, "width": width, "height": height})
            segments.append({"image_id": name, "file_name": f"{name}.png", "segments_info": found})
            things = [one for one in found if one["category_id"] + 1 in THINGS]
            for one in things:
                mask = masks.text(masks.encode(drawn == one["id"]))
                numbers = {"id": len(objects) + 1, "image_id": name}
                objects.append({**one, **numbers, "segmentation": mask})
            yield f"{split}/{photo.name}", photo.read_bytes
            colours = np.stack([drawn >> shift & 255 for shift in (0, 8, 16)], axis=2)
            yield f"annotations/panoptic_{split}/{name}.png", functools.partial(png, colours.astype(np.uint8))
        known = [{"id": i, "name": c, "isthing": int(i + 1 in THINGS)} for i, c in enumerate(classes)]
        things = [row for row in known if row["isthing"]]
        for kind, rows, categories in (("panoptic", segments, known), ("instances", objects, things)):
            content = {"images": photos, "annotations": rows, "categories": categories}
            yield f"annotations/{kind}_{split}.json", functools.partial(_encoded, content)


def _encoded(content: Row) -> bytes:
    return json.dumps(content).encode()


def _segments(scenes: Files, instances: Files, index: int) -> tuple[Grid, list[Row]]:
    """Return the segment of each pixel, (H, W) from 1 on or 0 for none, and the entries of segments_info."""
    try:
        semantic = load(scenes, index, MAX_PIXELS).indices().astype(np.int32)
        colours = load(instances, index, MAX_PIXELS).colours()
    except UnreadableImage as error:
        raise DataError(str(error)) from error
    red, green = colours & 255, colours >> 8 & 255
    where = instances.path(index)
    if semantic.shape != green.shape:
        raise DataError(f"{where} is of another size than {scenes.path(index)}")
    if semantic.max() > _CLASSES:
        raise DataError(f"{scenes.path(index)} has the value {semantic.max()}, and the classes are 1 to {_CLASSES}")
    layers = [(c, semantic == c) for c in np.unique(semantic).tolist() if c and c not in THINGS]
    for number in np.unique(green[green > 0]).tolist():
        mask = green == number
        kinds = np.unique(red[mask])
        if len(kinds) > 1 or not 1 <= kinds[0] <= len(THINGS):
            raise DataError(
                f"{where}: the instance {number} has the classes {kinds.tolist()}, not one of 1 to {len(THINGS)}"
            )
        layers.append((THINGS[kinds[0] - 1], mask))
    drawn, rows = np.zeros_like(semantic), list[Row]()
    for category, mask in layers:
        drawn[mask] = len(rows) + 1
        ys, xs = np.flatnonzero(mask.any(axis=1)).tolist(), np.flatnonzero(mask.any(axis=0)).tolist()
        box = [xs[0], ys[0], xs[-1] - xs[0] + 1, ys[-1] - ys[0] + 1]
        about = {"id": len(rows) + 1, "category_id": category - 1, "area": int(mask.sum()), "bbox": box, "iscrowd": 0}
        rows.append(about)
    return drawn, rows
