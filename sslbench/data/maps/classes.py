"""Names of the values in label maps, from lists of classes beside the maps and from the user's options."""

import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.images import Files
from sslbench.data.maps.files import load
from sslbench.data.maps.types import Coding
from sslbench.data.wording import counted, repeated, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.preprocessing import MAX_PIXELS
from sslbench.text import printable

_LISTS = tuple(f"{name}.{suffix}" for name in ("classes", "labels", "id2label") for suffix in ("txt", "json"))
# Lines NAME:R,G,B:parts:actions, as CVAT and Datumaro export Pascal VOC
_CVAT = "labelmap.txt"
_NUMBERED = re.compile(r"(\d+)\s*[\s,:=]\s*(\S.*)")
# Largest number of unnamed values; files with more are no maps of classes
_MOST = 1000
_THREADS = 4
_log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class LabelMapOptions:
    """Options of label maps, behind the '?' of a location.

    Attributes:
        ignore: values or class names that do not count, with commas.
        classes: a file that names the classes, relative to the location.
        images: the folder of the images, relative to the location.
        maps: the folder of the maps, relative to the location.
        group: 'folder': the images of a folder stay together in splits and intervals.
    """

    ignore: str | int | None = None
    classes: str | None = None
    images: str | None = None
    maps: str | None = None
    group: Literal["folder"] | None = None


def names_folders(options: Mapping[str, str]) -> bool:
    """Return whether the user names the folders of images and maps, so that no layout has to be recognised."""
    return bool(options.get("images") or options.get("maps"))


def coding_beside(root: Path, options: LabelMapOptions) -> Coding | None:
    """Read the classes from a file in the folder; None if there is no such file.

    Looked for are the file that the options name, else classes.txt, classes.json, labels.*, id2label.json,
    labelmap.txt.
    """
    names = [options.classes] if options.classes else [*_LISTS, _CVAT]
    found = next((root / name for name in names if (root / name).is_file()), None)
    if found is None:
        if options.classes:
            raise UsageError(f"the file of class names, {root / options.classes}, does not exist")
        return None
    try:
        # utf-8-sig: a byte order mark is no part of the first name.
        text = found.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the classes in {found}: {error}") from error
    if found.suffix.lower() == ".json":
        return _from_json(found, text)
    if found.name.lower() == _CVAT:
        return _from_cvat(found, text)
    lines = [line.strip() for line in text.rstrip().splitlines()]
    if "" in lines:
        raise DataError(f"{found}: line {lines.index('') + 1} is empty, but every line must name a class")
    numbered = [match for line in lines if (match := _NUMBERED.fullmatch(line))]
    if lines and len(numbered) == len(lines):
        return make_coding(found, [(int(match[1]), match[2]) for match in numbered])
    return make_coding(found, enumerate(lines))


def make_coding(where: object, pairs: Iterable[tuple[int, str]], *, colours: bool = False) -> Coding:
    """Return the coding of pairs of value and name."""
    rows = [(value, printable(name)) for value, name in pairs]
    values, names = [value for value, _ in rows], [name for _, name in rows]
    refuse_twice(where, values, "value")
    refuse_twice(where, names, "class")
    if not values:
        raise DataError(f"{where} names no classes")
    return Coding(tuple(values), tuple(names), colours=colours)


def refuse_twice(where: object, column: Sequence[object], what: str) -> None:
    """Refuse values that occur twice."""
    if twice := repeated(column):
        raise DataError(f"{where}: the same {what} occurs twice: {some(twice)}")


def colour(rgb: Sequence[int]) -> int:
    """Return the value of a colour: red + 256 green + 65536 blue."""
    return int(rgb[0]) + 256 * int(rgb[1]) + 65536 * int(rgb[2])


def _from_cvat(path: Path, text: str) -> Coding:
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        parts = rest.partition(":")[0].split(",")
        if len(parts) != 3 or not all(part.strip().isdecimal() and int(part) < 256 for part in parts):
            raise DataError(f"{path}, line {number} should be NAME:R,G,B:: and not {line!r}")
        pairs.append((colour([int(part) for part in parts]), name.strip()))
    return make_coding(path, pairs, colours=True)


def _from_json(path: Path, text: str) -> Coding:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no JSON: {error}") from error
    if isinstance(content, list) and all(isinstance(name, str) for name in content):
        return make_coding(path, enumerate(content))
    if isinstance(content, dict) and content:
        items = list(content.items())
        if all(key.isdecimal() and isinstance(name, str) for key, name in items):
            return make_coding(path, [(int(key), name) for key, name in items])
        if all(_is_value(value) for _, value in items):
            return make_coding(path, [(value, name) for name, value in items])
        if all(isinstance(rgb, list) and len(rgb) == 3 and all(_is_value(x, 255) for x in rgb) for _, rgb in items):
            return make_coding(path, [(colour(rgb), name) for name, rgb in items], colours=True)
    raise DataError(
        f"{path} does not name the classes",
        'Write ["road", "sky"], {"0": "road"}, {"road": 0} or, for maps of colours, {"road": [128, 64, 128]}.',
    )


def _is_value(value: Any, most: int = 2**24 - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def with_ignored(spec: str, coding: Coding, ignore: str | int | None) -> Coding:
    """Add the user's ignored values and classes to a coding.

    They are values or names, with commas, beside those that do not count anyway; 'none' makes a class of every value.
    """
    if ignore is None:
        return coding
    words = [word.strip() for word in str(ignore).split(",") if word.strip()]
    pairs = dict(zip(coding.values, coding.classes, strict=True))
    if words == ["none"]:
        pairs |= {value: coding.text(value) for value in coding.ignore}
        return dataclasses.replace(coding, values=tuple(pairs), classes=tuple(pairs.values()), ignore=())
    chosen = set(coding.ignore)
    for word in words:
        if word in coding.classes:
            chosen.add(coding.values[coding.classes.index(word)])
        elif word.isdecimal():
            chosen.add(int(word))
        else:
            hint = did_you_mean(word, coding.classes)
            raise UsageError(f"{spec}: '{word}' of ignore= is neither a value nor a class", hint)
    kept = {value: name for value, name in pairs.items() if value not in chosen}
    if not kept:
        raise UsageError(f"{spec}: with ignore={ignore} no class is left")
    return dataclasses.replace(coding, values=tuple(kept), classes=tuple(kept.values()), ignore=tuple(sorted(chosen)))


def coding_of_values(spec: str, files: Files) -> tuple[Coding, tuple[str, ...]]:
    """Return a coding with the values that occur in maps as classes, and notes; every map is read.

    255 does not count, unless nothing but 0 and 255 occurs: then it is the foreground.
    """
    _log.info("%s: no file names the classes, so the values of %s are read", spec, counted(len(files), "map"))
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda index: _values_of(files, index), range(len(files))))
    readable = [one for one in found if one is not None]
    if not readable:
        raise DataError(f"{spec}: none of {counted(len(files), 'map')} can be read: {_why(files)}")
    colours = any(coloured for _, coloured in readable)
    # One coloured map makes all values colours, or one grey would mean two classes.
    columns = [_values_of(files, i, colours=True) for i in range(len(files))] if colours else found
    values = sorted({value for one in columns if one is not None for value in one[0].tolist()})
    if len(values) > _MOST:
        raise DataError(
            f"{spec}: the maps hold {len(values):,} different values, too many for classes",
            "They may be smoothed, or be photos. If they are maps, name the classes in classes.txt.",
        )
    ignore = (255,) if not colours and 255 in values and set(values) != {0, 255} and len(values) > 1 else ()
    kept = tuple(value for value in values if value not in ignore)
    shown = Coding(kept, tuple(map(str, kept)), ignore, colours, named=False)
    coding = dataclasses.replace(shown, classes=tuple(shown.text(value) for value in kept))
    notes = [f"{spec}: no file names the classes (classes.txt, one per line), so they are named by value"]
    if ignore:
        notes.append(f"{spec}: pixels of value 255 are ignored (?ignore=none makes them a class)")
    return coding, tuple(notes)


def _values_of(files: Files, index: int, *, colours: bool = False) -> tuple[Any, bool] | None:
    """Return the values of one map, and whether they are colours; None if it cannot be read."""
    try:
        pixels = load(files, index, MAX_PIXELS)
        if colours or pixels.coloured:
            return np.unique(pixels.colours()), True
        return np.unique(pixels.indices()), False
    except UnreadableImage:
        return None


def _why(files: Files) -> str:
    try:
        load(files, 0, MAX_PIXELS)
    except UnreadableImage as error:
        return str(error)
    return "colours and numbers are mixed"
