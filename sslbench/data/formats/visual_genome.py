"""Visual Genome: region_descriptions.json or objects.json beside image_data.json, VG_100K/ and VG_100K_2/.

A region has a box and a phrase; an object a box, and names, of which the first is its class and all are its texts
(Krishna et al., IJCV 2017; visualgenome.org, version 1.4). `densecap_splits.json` (Johnson et al., CVPR 2016) beside
them says the parts. Files are read row by row.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sslbench.config import setting
from sslbench.data.containers.listed import find_listed, images_folder
from sslbench.data.containers.members import split_name
from sslbench.data.containers.sniff import json_of
from sslbench.data.formats.coco.rows import json_list
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.objects.columns import LONGEST_SIDE, ObjectColumns
from sslbench.data.objects.crops import CropOptions
from sslbench.data.objects.regions import RegionTexts, region_format
from sslbench.data.objects.view import viewed
from sslbench.data.wording import part_name
from sslbench.errors import DataError, UsageError
from sslbench.targets.texts import as_texts

_FILES = {"regions": re.compile(r"region_descriptions.*\.json"), "objects": re.compile(r"objects.*\.json")}
_ABOUT, _SPLITS = "image_data.json", "densecap_splits.json"
_FOLDERS = ("VG_100K", "VG_100K_2")


@dataclasses.dataclass(frozen=True)
class GenomeBoxes:
    """Options of boxes: vg/?kind=objects."""

    images: str = setting("", "folder of the images")
    kind: Literal["", "regions", "objects"] = setting(
        "", "regions or objects; empty: regions for boxes and texts, objects for classes, if there are"
    )


@dataclasses.dataclass(frozen=True)
class GenomeOptions(GenomeBoxes, CropOptions):
    """Options of crops: vg/?unit=annotation&kind=objects."""


@dataclasses.dataclass(frozen=True)
class GenomeTexts(GenomeBoxes, RegionTexts):
    """Options of texts: vg/?kind=objects."""


def recognises(spec: str) -> bool:
    """Return whether the string is a folder with image_data.json and annotations of Visual Genome."""
    root = Path(spec)
    return (root / _ABOUT).is_file() and bool(_annotations(root))


def _annotations(root: Path) -> dict[str, Path]:
    """Return 'regions' and 'objects' -> file; the last of several versions."""
    names = sorted(path.name for path in root.iterdir() if path.suffix == ".json")
    return {kind: root / name for kind, known in _FILES.items() for name in names if known.fullmatch(name)}


def open_objects(spec: str, options: GenomeBoxes) -> dict[str, ObjectSource]:
    """Return the images that have annotations, with their regions or objects."""
    root = Path(spec)
    files = _annotations(root)
    # Regions have texts, objects have classes.
    usual = "objects" if isinstance(options, GenomeOptions) else "regions"
    kind: str = options.kind or (usual if usual in files else next(iter(files)))
    if kind not in files:
        raise UsageError(f"{spec}?kind={kind}: there is no file of {kind} in it", f"There is {next(iter(files))}.")
    about = [(path.name, path.stat().st_mtime_ns) for name in (_ABOUT, _SPLITS) if (path := root / name).is_file()]
    below = images_folder(spec, options.images) or root
    found = viewed(str(files[kind]), "genome", [str(below.resolve()), about], lambda: _read(root, files[kind], below))
    return {split: dataclasses.replace(part, name=part_name(spec, split)) for split, part in found.items()}


def _read(root: Path, file: Path, below: Path) -> dict[str, ObjectSource]:
    known = _images(root / _ABOUT)
    columns = ObjectColumns(str(file), "region" if _FILES["regions"].fullmatch(file.name) else "object")
    used: dict[int, int] = {}
    for row in json_list(file):
        number = _whole(file, row, "image_id" if "image_id" in row else "id")
        if number not in known:
            raise DataError(f"{file} has the image {number}, which {root / _ABOUT} does not list")
        place = used.setdefault(number, len(used))
        entries = row.get("regions", row.get("objects"))
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise DataError(f"{file}: an image without a list of regions or objects: {json.dumps(row)[:80]}")
        for one in entries:
            _add(columns, file, place, one)
    names = [known[number][0] for number in used]
    files = find_listed(str(file), names, [below], "?images=FOLDER")
    sizes = np.array([known[number][1] for number in used], dtype=np.int64).reshape(-1, 2)
    sized = bool(sizes.all())
    for i in np.flatnonzero((sizes == 0).any(axis=1)).tolist():
        sizes[i] = size_in_file(Path(files.files.path(i)))
    return columns.sources(files.ids, files.files, sizes, _splits(root, used), files.notes, sized=sized)


def _images(file: Path) -> dict[int, tuple[str, tuple[int, int]]]:
    """Return image -> its file, with the folder where the address names one of the two, and its height and width."""
    found = {}
    for row in json_list(file):
        number = _whole(file, row, "image_id" if "image_id" in row else "id")
        parts = str(row.get("url") or "").split("/")[-2:]
        name = "/".join(parts) if len(parts) == 2 and parts[0] in _FOLDERS else f"{number}.jpg"
        height, width = (row.get(key) or 0 for key in ("height", "width"))
        if not all(type(side) is int and 0 <= side < LONGEST_SIDE for side in (height, width)):
            raise DataError(f"{file}, image {number}: height and width are {height!r:.40} and {width!r:.40}")
        found[number] = name, (height, width)
    return found


def _splits(root: Path, used: Mapping[int, int]) -> list[str] | None:
    """Return the part of each image by densecap_splits.json; images in none of its lists are 'other'."""
    file = root / _SPLITS
    if not file.is_file():
        return None
    lists = json_of(file)
    if not isinstance(lists, dict) or not all(isinstance(numbers, list) for numbers in lists.values()):
        raise DataError(f"{file} should have lists of image ids: train, val, test")
    if not all(type(number) is int for numbers in lists.values() for number in numbers):
        raise DataError(f"{file}: an image id is no whole number")
    part = {number: split_name(name) or name for name, numbers in lists.items() for number in numbers}
    if len(part) < sum(map(len, lists.values())):
        raise DataError(f"{file} names an image twice, in one part or two")
    return [part.get(number, "other") for number in used]


def _whole(file: Path, row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if type(value) is not int or value.bit_length() > 63:
        raise DataError(f"{file}: {key} is {value!r:.40}, not a whole number, in {json.dumps(row)[:80]}")
    return value


def _add(columns: ObjectColumns, file: Path, image: int, one: Mapping[str, Any]) -> None:
    """Add a region or an object, whose sides are width and height, or w and h."""
    key = next((key for key in ("region_id", "object_id") if key in one), "id")
    number = _whole(file, one, key)
    try:
        x, y = one["x"], one["y"]
        width, height = (one["width"], one["height"]) if "width" in one else (one["w"], one["h"])
        given = [one["phrase"]] if "phrase" in one else one["names"]
        if not isinstance(given, list):
            raise TypeError(f"{given!r:.40}")
        texts = as_texts(given)
        box = (x, y, x + width, y + height)
    except (KeyError, TypeError) as error:
        raise DataError(f"{file}, {key} {number}: {error} is missing or of another kind") from error
    if "phrase" in one:
        columns.add(image, number, box, texts=texts)
    elif texts:
        columns.add(image, number, box, texts[0], texts=texts)


FORMAT = region_format(__doc__, recognises, open_objects, GenomeOptions, GenomeBoxes, GenomeTexts)
