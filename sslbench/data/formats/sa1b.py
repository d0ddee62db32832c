"""SA-1B: tar files (sa_000000.tar, sa_{000000..000009}.tar) or folders of sa_1.jpg beside sa_1.json, with captions.

A JSON has `image` (width, height, file_name) and `annotations` (id, bbox, segmentation as run lengths, area,
point_coords) (Kirillov et al., ICCV 2023; the data page of Segment Anything). Texts of the regions are `caption` of an
annotation, or lines of `?captions=FILE.tsv` (SA-1B-Cap of segment-caption-anything): IMAGE-COUNT-REGION, a tab, and a
list of {"caption": ...}. Images are read from the tar files as they are; annotations of one file at a time.
"""

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from sslbench.config import setting
from sslbench.data import remote
from sslbench.data.containers.index import Index, indexed
from sslbench.data.containers.members import in_clutter, is_image, safe_name
from sslbench.data.containers.slices import joined, whole_places
from sslbench.data.containers.sniff import decoded, head_text, is_clutter
from sslbench.data.format import SourceFormat
from sslbench.data.formats.tar import tar_members
from sslbench.data.images import Files
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.columns import LONGEST_SIDE, ObjectColumns
from sslbench.data.objects.regions import RegionTexts, region_readers
from sslbench.data.regular import open_regular, reading
from sslbench.data.strings import expanded
from sslbench.data.wording import counted, repeated, some
from sslbench.errors import DataError, UnreachableError, UsageError
from sslbench.targets.target import Images
from sslbench.targets.texts import as_texts, captions_in
from sslbench.text import printable

_MOST_MEMBERS = 8  # of a tar file or folder, among which an annotation is looked for
_BOTH = '"image"', '"annotations"'
Captions = Mapping[tuple[int, int], Sequence[str]]
"""Image and region -> texts."""


@dataclasses.dataclass(frozen=True)
class MaskBoxes:
    """Options of boxes: sa_000000.tar?captions=sa_000000.tsv."""

    captions: str = setting("", "file of captions, or several: cap_{0..9}.tsv; relative to the folder of the images")


@dataclasses.dataclass(frozen=True)
class MaskTexts(MaskBoxes, RegionTexts):
    """Options of texts: sa_000000.tar?captions=sa_000000.tsv."""


def recognises(spec: str) -> bool:
    """Return whether the string is a folder, or are tar files, with an annotation of SA-1B among the first files."""
    try:
        path = Path(expanded(spec)[0])
        if path.is_dir():
            return any(map(_annotates, _first_json(path)))
        is_tar = path.suffix.lower() == ".tar" and (path.is_file() or remote.is_copy(path))
        return is_tar and _tar_annotates(path)
    except UnreachableError:
        raise
    except (OSError, DataError, UsageError):
        return False


def _annotates(text: str) -> bool:
    return all(f"{key}:" in "".join(text.split()) for key in _BOTH) and '"segmentation"' in text


def _first_json(folder: Path) -> Iterator[str]:
    """Yield the beginning of some annotation files that lie beside an image of the same name."""
    with os.scandir(folder) as entries:
        for _, entry in zip(range(_MOST_MEMBERS), entries, strict=False):
            file = Path(entry.path).with_suffix(".json")
            if not is_clutter(entry.name) and file.is_file() and file.with_suffix(".jpg").is_file():
                yield head_text(str(file))


def _tar_annotates(path: Path) -> bool:
    with _present(path), open_regular(str(path)) as file:
        for _, member in zip(range(_MOST_MEMBERS), tar_members(str(path), file), strict=False):
            if member.name.lower().endswith(".json"):
                file.seek(member.offset_data)
                return _annotates(decoded(file.read(min(member.size, 4096))))
    return False


def _origin(path: Path) -> remote.Origin | None:
    """Return the origin of a tar file that is copied from a URL when it is read; None for a local one."""
    return remote.origin_of(path) if remote.is_copy(path) else None


def _present(path: Path) -> contextlib.AbstractContextManager[object]:
    """Return a context in which a tar file lies at its path."""
    origin = _origin(path)
    return contextlib.nullcontext() if origin is None else remote.opened(origin)


def open_objects(spec: str, options: MaskBoxes) -> dict[str, ObjectSource]:
    """Return the images with the masks, boxes and points of their regions, all of one class."""
    paths = [Path(name) for name in expanded(spec)]
    if missing := [str(path) for path in paths if not path.exists() and not remote.is_copy(path)]:
        raise DataError(f"{spec}: {len(missing):,} of {counted(len(paths), 'shard')} missing: {some(missing)}")
    captions = _captions(paths[0] if paths[0].is_dir() else paths[0].parent, options.captions)
    in_folder = paths[0].is_dir()
    if in_folder and len(paths) > 1:
        raise UsageError(f"{spec} names several folders", "Join them: several:a=FOLDER,b=FOLDER.")
    names, images, texts = _of_folder(paths[0]) if in_folder else _of_tars(paths)
    columns, sizes = ObjectColumns(remote.shown(spec, _origin(paths[0]))), np.zeros((len(names), 2), dtype=np.int64)
    used = 0
    for i, (shown, text) in enumerate(texts):
        sizes[i], found = _add(columns, shown, i, text, captions)
        used += found
    if captions and not used:
        raise DataError(f"{spec}?captions={options.captions}: no caption is of a region of these images")
    return columns.sources(names, images, sizes)


Texts = Iterator[tuple[str, bytes]]
"""Annotation files in the order of their images: name for messages, content."""


def _of_folder(root: Path) -> tuple[list[str], Images, Texts]:
    with reading():
        found = sorted(path.name for path in root.iterdir() if is_image(path.name) and not is_clutter(path.name))
    if lost := [name for name in found if not (root / name).with_suffix(".json").is_file()]:
        raise DataError(f"{root}: {counted(len(lost), 'image')} without a .json beside it: {some(lost)}")
    files = [(root / name).with_suffix(".json") for name in found]
    return found, Files(tuple(found), str(root)), ((str(file), file.read_bytes()) for file in files)


def _of_tars(paths: Sequence[Path]) -> tuple[list[str], Images, Texts]:
    parts, ids, places = [], list[str](), list[tuple[Path, str, int, int]]()
    origins = [_origin(path) for path in paths]
    for path, origin in zip(paths, origins, strict=True):
        index, stamp = indexed(path, "sa1b 1", _build, origin)
        rows = {name: i for i, name in enumerate(index.names)}
        images = [i for name, i in rows.items() if is_image(name)]
        of_images = [f"{index.names[i].rpartition('.')[0]}.json" for i in images]
        if lost := [printable(name) for name in of_images if name not in rows]:
            raise DataError(f"{path}: {counted(len(lost), 'image')} without their .json: {some(lost)}")
        parts.append((path, stamp, tuple(index.names[i] for i in images), whole_places(index.numbers[images])))
        ids += [printable(index.names[i]) for i in images]
        places += [(path, name, *index.numbers[rows[name]].tolist()) for name in of_images]
    if twice := repeated(ids):
        raise DataError(f"{paths[0]} and others: {some(twice)} stand twice")
    return ids, joined(parts, origins), _read_all(places)


def _read_all(places: Sequence[tuple[Path, str, int, int]]) -> Texts:
    """Yield the contents of members, one file open at a time."""
    for path, members in itertools.groupby(places, key=lambda place: place[0]):
        with _present(path), path.open("rb") as file:
            for _, name, offset, size in members:
                file.seek(offset)
                yield printable(f"{path}/{name}"), file.read(size)


def _build(path: Path) -> Index:
    """Index the images and annotations of a tar file: their offsets and sizes."""
    with path.open("rb") as file:
        kept = [
            (name, member.offset_data, member.size)
            for member in tar_members(str(path), file)
            if member.isreg() and (name := safe_name(member.name)) and not in_clutter(name)
            if is_image(name) or name.lower().endswith(".json")
        ]
    names = tuple(name for name, _, _ in kept)
    if len(set(names)) < len(names):
        raise DataError(f"{path} holds a file twice")
    numbers = np.array([numbers for _, *numbers in kept], dtype=np.int64).reshape(-1, 2)
    return Index(names, numbers, ("",) * len(names))


def _add(
    columns: ObjectColumns, shown: str, place: int, text: bytes, captions: Captions
) -> tuple[tuple[int, int], int]:
    """Add the regions of an image; return its height and width, and the number of regions with captions of a file."""
    used = 0
    try:
        content = json.loads(text)
        about = content["image"]
        size = int(about["height"]), int(about["width"])
        if not all(0 <= side < LONGEST_SIDE for side in size):
            raise ValueError(f"height and width are {size}")
        for one in content["annotations"]:
            x, y, width, height = one["bbox"]
            texts = captions.get((about.get("image_id", 0), one["id"]), ()) if captions else ()
            used += bool(texts)
            point = one.get("point_coords") or [(np.nan, np.nan)]
            columns.add(
                place,
                int(one["id"]),
                (x, y, x + width, y + height),
                texts=texts or as_texts(captions_in(one)),
                mask=one.get("segmentation"),
                point=[float(value) for value in point[0]],
                area=float(one["area"]) if "area" in one else None,
            )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise DataError(
            f"{shown} is no annotation of SA-1B: {problem}",
            "It has image (image_id, width, height) and annotations (id, bbox, segmentation).",
        ) from error
    return size, used


def _captions(folder: Path, given: str) -> Captions:
    """Return the captions of the files that are named."""
    found: dict[tuple[int, int], Sequence[str]] = {}
    for name in expanded(given) if given else ():
        file = folder / name
        if not file.is_file():
            raise UsageError(f"?captions={given}: there is no file {file}", f"The path is relative to {folder}.")
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    key, _, text = line.rstrip("\r\n").partition("\t")
                    image, _, region = (int(part) for part in key.split("-"))
                    found[image, region] = tuple(as_texts(one["caption"] for one in json.loads(text)))
                except (ValueError, LookupError, TypeError) as error:
                    raise DataError(
                        f"{file}, line {number}: {line[:60]!r} is no caption of a region",
                        'A line is IMAGE-COUNT-REGION, a tab, and [{"caption": "..."}].',
                    ) from error
    return found


FORMAT = SourceFormat(__doc__, readers=region_readers(recognises, open_objects, MaskBoxes, MaskTexts))
