"""COCO panoptic: a JSON with `segments_info`, and PNG files whose colour is the number of a segment.

The number is R + 256 G + 65536 B, and 0 belongs to no segment (Kirillov et al. 2019, Panoptic Segmentation; the data
format page of COCO). A segment has a category; those of things are instances, except regions with many of them
(iscrowd).
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.listed import find_listed, folders_beside, plain_path
from sslbench.data.containers.members import safe_name, split_name
from sslbench.data.containers.sniff import json_of
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.images import Files, OfFiles, digests_of
from sslbench.data.labels import boolean
from sslbench.data.maps.classes import LabelMapOptions, make_coding, refuse_twice, with_ignored
from sslbench.data.maps.files import load
from sslbench.data.maps.layout import Pairs, in_order, source_of
from sslbench.data.maps.types import Coding, RawMap, distinct
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.wording import counted, repeated, some
from sslbench.errors import DataError, UsageError
from sslbench.text import printable

_NO_SEGMENT = -1
_BLOCK = 1 << 20
_KEYS = (b'"segments_info"', b'"segmentation"', b'"bbox"')
_FILE = re.compile(r"(?:.*_)?panoptic_.*\.json")


def recognises(spec: str) -> bool:
    """Return whether a location is a JSON with segments_info, or a folder with panoptic_*.json (or annotations/)."""
    path = Path(spec)
    if path.is_dir():
        return bool(_in_folder(path))
    return path.is_file() and path.suffix.lower() == ".json" and _has_segments(path)


def open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    """Return the label maps of one file, or of a folder with several; see `sslbench.data.open.open_as`."""
    path = Path(spec)
    files = _in_folder(path) if path.is_dir() else [path]
    if len(files) > 1 and (options.images or options.maps):
        raise UsageError(f"{spec} holds several files, but images= and maps= describe one: {some(files)}")
    opened = {file: _open(file, options) for file in files}
    if len(files) == 1:
        pairs, maps, coding, notes = opened[files[0]]
        return {"all": source_of(spec, "all", pairs, maps, with_ignored(spec, coding, options.ignore), notes)}
    found = {}
    for file, (pairs, maps, coding, notes) in opened.items():
        # 'val' of panoptic_val2017.json, the whole stem if it names no split.
        words = re.sub(r"\d+", "", file.stem).split("_")
        split = next((split for word in words if (split := split_name(word))), file.stem)
        if split in found:
            raise DataError(f"{spec} holds two files for the {split} split: {some(files)}", "Name one of them.")
        found[split] = source_of(spec, split, pairs, maps, with_ignored(spec, coding, options.ignore), notes)
    return in_order(found)


def _in_folder(root: Path) -> list[Path]:
    for folder in (root, root / "annotations"):
        found = [path for path in matching(folder, "*.json") if _FILE.fullmatch(path.name)]
        if found:
            return found
    return []


def _has_segments(path: Path) -> bool:
    """Return whether segments_info comes before any box; the file is read as far as the first annotation."""
    try:
        with path.open("rb") as file:
            before = b""
            while block := file.read(_BLOCK):
                text = before + block
                places = {key: at for key in _KEYS if (at := text.find(key)) >= 0}
                if places:
                    return min(places, key=places.__getitem__) == _KEYS[0]
                # A key may lie across the border of two blocks.
                before = block[-len(_KEYS[0]) :]
    except OSError:
        return False
    return False


@dataclasses.dataclass(frozen=True)
class Segment:
    """Checked entry of segments_info."""

    id: int
    category: int
    area: int | None
    crowd: bool


def _open(file: Path, options: LabelMapOptions) -> tuple[Pairs, "PanopticMaps", Coding, tuple[str, ...]]:
    content = _content(file)
    coding, things, notes = _categories(file, content["categories"])
    refuse_twice(f"{file}, images", [row["id"] for row in content["images"]], "id")
    images = {row["id"]: str(row["file_name"]) for row in content["images"]}
    names, numbers, segments = [], [], []
    for i, row in enumerate(content["annotations"]):
        name = safe_name(plain_path(row["file_name"]))
        if name is None:
            raise DataError(f"{file}: the file_name {str(row['file_name'])!r} of a map lies outside its folder")
        names.append(name)
        numbers.append(row["image_id"])
        segments.append(tuple(_segment(file, i, entry) for entry in row["segments_info"]))
    refuse_twice(f"{file}, annotations", names, "map")
    refuse_twice(f"{file}, annotations", numbers, "image")
    unknown = [str(number) for number in numbers if number not in images]
    if unknown:
        raise DataError(f"{file}: annotations of images that are not listed: image_id {some(unknown)}")
    folders = [file.parent / options.images] if options.images else folders_beside(file)
    photos = find_listed(str(file), [images[number] for number in numbers], folders, "?images=FOLDER")
    folders = [file.parent / options.maps] if options.maps else [file.with_suffix(""), file.parent]
    drawn = find_listed(str(file), names, folders, "?maps=FOLDER")
    ids = photos.ids
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
    maps = drawn.files.select(order)
    notes = (*notes, *photos.notes, *drawn.notes)
    mapped = set(numbers)
    without = tuple(printable(name) for number, name in images.items() if number not in mapped)
    pairs = Pairs(photos.files.select(order), maps, tuple(ids[i] for i in order), without)
    return pairs, PanopticMaps(maps, tuple(segments[i] for i in order), frozenset(things)), coding, notes


def _content(file: Path) -> dict[str, Any]:
    content = json_of(file)
    number = (int, str)
    keys: dict[str, dict[str, Any]] = {
        "images": {"id": number, "file_name": str},
        "annotations": {"image_id": number, "file_name": str, "segments_info": list},
        "categories": {"id": int, "name": str},
    }
    for table, wanted in keys.items():
        rows = content.get(table) if isinstance(content, dict) else None
        if not isinstance(rows, list) or not rows:
            raise DataError(f"{file} is no COCO panoptic file: it has no list '{table}', or an empty one")
        for i, row in enumerate(rows):
            for key, kind in wanted.items():
                # In Python true is an int, too.
                if not isinstance(row, dict) or not isinstance(row.get(key), kind) or isinstance(row[key], bool):
                    what = "number" if kind == number else kind.__name__
                    raise DataError(f"{file}: {table}[{i}] has no {key}, or one that is no {what}")
    return dict(content)


def _categories(file: Path, rows: list[dict[str, Any]]) -> tuple[Coding, list[int], tuple[str, ...]]:
    ordered = sorted(rows, key=lambda row: int(row["id"]))
    negative = [row["id"] for row in ordered if row["id"] < 0]
    if negative:
        raise DataError(f"{file}: a category has the id {negative[0]}, below 0")
    coding = make_coding(file, [(row["id"], row["name"]) for row in ordered])
    without = [row["name"] for row in ordered if row.get("isthing") is None]
    notes = (f"{file}: categories without isthing, taken for things: {some(without)}",) if without else ()
    things = [
        row["id"]
        for row in ordered
        if row.get("isthing") is None or boolean(row["isthing"], f"{file}, category {row['id']}", "isthing")
    ]
    return dataclasses.replace(coding, ignore=(_NO_SEGMENT,)), things, notes


def _segment(file: Path, annotation: int, entry: object) -> Segment:
    where = f"{file}: a segment of annotations[{annotation}]"
    if not isinstance(entry, dict):
        raise DataError(f"{where} is {type(entry).__name__}, not a mapping")
    for key, highest in (("id", 2**24 - 1), ("category_id", 2**31 - 2)):
        value = entry.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
            raise DataError(f"{where} has the {key} {value!r}, not a whole number from 0 to {highest:,}")
    area = entry.get("area")
    # NaN, which Python's JSON reads, is not equal to itself.
    if area is not None and (not isinstance(area, int | float) or area != area):
        raise DataError(f"{where} has the area {area!r}, not a number of pixels")
    crowd = boolean(entry.get("iscrowd"), f"{where} with the id {entry['id']}", "iscrowd")
    return Segment(entry["id"], entry["category_id"], None if area is None else int(area), crowd)


@dataclasses.dataclass(frozen=True)
class PanopticMaps(OfFiles):
    """Label maps made of segments.

    Attributes:
        files: one per image.
        segments: per image.
        things: categories whose segments are instances.
    """

    of_rows = ("files", "segments")
    files: Files
    segments: tuple[tuple[Segment, ...], ...]
    things: frozenset[int]

    def read(self, index: int, max_pixels: int) -> RawMap:
        """Read one map; the value of a pixel is its category, -1 without a segment. See `Maps`."""
        pixels = load(self.files, index, max_pixels)
        if pixels.array.ndim == 2 and pixels.palette is None:
            raise UnreadableImage(pixels.path, "a grey image, although the colour should encode the segment's number")
        ids, inverse, counts = distinct(pixels.colours())
        segments = self.segments[index]
        of_id = {segment.id: segment for segment in segments}
        number = {
            segment.id: i
            for i, segment in enumerate(segments, start=1)
            if segment.category in self.things and not segment.crowd
        }
        there = dict(zip(ids.tolist(), counts.tolist(), strict=True))
        values = [of_id[i].category if i in of_id else _NO_SEGMENT for i in there]
        objects = [number.get(i, 0) for i in there]
        semantic = np.array(values, dtype=np.int32)[inverse]
        instances = np.array(objects, dtype=np.int32)[inverse]
        crowds = sum(segment.crowd for segment in segments)
        return RawMap(semantic, instances, _broken(segments, there), _odd(segments, there, self.things), crowds)

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes of hashes of the files and their segments."""
        images, things = self.files.digests(), repr(sorted(self.things))
        return digests_of(
            row.tobytes() + repr((own, things)).encode() for row, own in zip(images, self.segments, strict=True)
        )


def _broken(segments: tuple[Segment, ...], there: dict[int, int]) -> tuple[str, ...]:
    known = [segment.id for segment in segments]
    listed, found = set(known), []
    unlisted = [f"{i} ({counted(n, 'pixel')})" for i, n in there.items() if i and i not in listed]
    if unlisted:
        found.append(f"the PNG has segments that segments_info lacks: {some(unlisted)}")
    if twice := repeated(known):
        found.append(f"segments_info lists a segment twice: {some(twice)}")
    if 0 in known:
        found.append("segments_info has a segment 0, which is reserved for no segment")
    return tuple(found)


def _odd(segments: tuple[Segment, ...], there: dict[int, int], things: frozenset[int]) -> tuple[str, ...]:
    found = []
    missing = [segment.id for segment in segments if segment.id not in there]
    if missing:
        found.append(f"segments_info has segments that the PNG lacks: {some(missing)}")
    differ = []
    for segment in segments:
        area, pixels = segment.area, there.get(segment.id)
        if area is None or pixels is None or area == pixels:
            continue
        # The area of stuff may count pixels below instances, as in ADE20K's files.
        if segment.category in things or area < pixels:
            differ.append(f"{segment.id} (area {area:,}, {counted(pixels, 'pixel')})")
    if differ:
        found.append(f"segments whose area differs from segments_info: {some(differ)}")
    return tuple(found)
