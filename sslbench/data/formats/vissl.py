"""VISSL's file lists (`vissl:IMAGES.npy,LABELS.npy`, a folder with train_images.npy, train_labels.npy, val_...)."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.listed import find_listed, folders_beside, image_id
from sslbench.data.containers.members import by_split, list_beside, names_by_number
from sslbench.data.containers.sniff import unpickling
from sslbench.data.format import LabelList, LabelReader, NoOptions, SampleReader, SampleRequest, SourceFormat
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.source import Source
from sslbench.data.wording import counted, part_name
from sslbench.errors import DataError, UsageError
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Target
from sslbench.text import printable

PREFIX = "vissl:"
_SUFFIXES = (".npy", ".pkl")
_SPLITS = ("train", "val", "test")
_HOW = "Write vissl:IMAGES.npy,LABELS.npy; or vissl:FOLDER; then perhaps ,prefix=OLD->NEW and ,classes=NAMES.txt"


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'vissl:', or is a folder with lists such as train_images.npy."""
    return spec.startswith(PREFIX) or bool(_lists_in(Path(spec)))


def open(spec: str) -> dict[str, Source]:
    """Return the images that a list of paths names, with the labels in a list of equal length.

    Labels are class numbers or names, one per image; or (N, C) with 1 present, 0 absent, -1 ignore; or a list of
    classes per image. An image whose only label is -1 is left out. Lists are .npy (mapped into memory) or .pkl (read
    without running anything in it).

    The location is two files, the list of images alone, or a folder. `prefix=OLD->NEW` rewrites how paths begin;
    `classes=FILE` names the classes, a line each (a classes.txt beside the lists is used too). Ids are the paths
    relative to the folder of the lists if all lie inside, else to the folder that all images share.
    """
    parts, prefixes, classes = _parse(spec)
    sources: dict[str, Source] = {}
    for split, (images, labels) in parts.items():
        name = part_name(spec, split)
        paths = [
            next((new + path.removeprefix(old) for old, new in prefixes if path.startswith(old)), path)
            for path in _paths(images)
        ]
        if prefixes and not any(path.startswith(new) for path in paths for _, new in prefixes):
            raise UsageError(f"{images}: no path begins with {prefixes[0][0]}", f"The first one is {paths[0]}")
        values = None if labels is None else _checked(labels, _read(labels))
        if values is not None and len(values) != len(paths):
            raise DataError(
                f"{labels} has {counted(len(values), 'label')}, {images} has {counted(len(paths), 'image')}"
            )
        kept, found, notes = _labels(labels, values, len(paths), classes or list_beside(images.parent))
        paths = [paths[i] for i in kept]
        listed = find_listed(name, paths, folders_beside(images), ",prefix=OLD->NEW")
        if not any(os.path.isabs(i) for i in listed.ids):  # noqa: PTH117
            ids, about = listed.ids, tuple[str, ...]()
        else:
            absolute = [os.path.join(listed.folder.absolute(), path) for path in listed.paths]  # noqa: PTH118
            root = Path(os.path.commonpath([os.path.dirname(path) for path in absolute]))  # noqa: PTH120
            ids, about = (
                [image_id(path, root) for path in absolute],
                (f"{name}: ids are relative to {printable(str(root))}",),
            )
        sources[split] = by_split(name, ids, found, listed.files, None, (*notes, *listed.notes, *about))["all"]
    return sources


def recognises_labels(spec: str) -> bool:
    """Return whether the string names a list, or a folder with lists of labels such as train_labels.npy."""
    path = Path(spec)
    return (path.is_file() and path.suffix.lower() in _SUFFIXES) or bool(_label_lists(path))


def open_labels(request: SampleRequest[NoOptions]) -> dict[str, LabelList]:
    """Return lists of labels, one per image in the order of the images; an image with the label -1 has none."""
    path = Path(request.spec)
    lists = {}
    for split, file in (_label_lists(path) or {"all": path}).items():
        values = _checked(file, _read(file))
        kept, target, notes = _labels(file, values, len(values), list_beside(file.parent))
        lists[split] = LabelList(target, None, kept, len(values), notes)
    return lists


Lists = dict[str, tuple[Path, Path | None]]
"""Split -> list of images and, if there is one, list of labels."""


def _parse(spec: str) -> tuple[Lists, list[tuple[str, str]], Path | None]:
    """Return the lists of a location, the rules for the beginnings of paths, and the file of class names."""
    locations, prefixes, classes = [], [], None
    for part in spec.removeprefix(PREFIX).split(","):
        key, equals, value = part.partition("=")
        if equals and key == "prefix":
            old, arrow, new = value.partition("->")
            if not arrow or not old:
                raise UsageError(f"'{part}' in {spec} is not a rule for paths", "Write prefix=/old/folder->/new/folder")
            prefixes.append((old, new))
        elif equals and key == "classes":
            classes = Path(value).expanduser()
        else:
            locations.append(Path(part).expanduser())
    if locations and locations[0].is_dir() and len(locations) == 1:
        parts = _lists_in(locations[0])
        if not parts:
            raise UsageError(f"{locations[0]} has no list such as train_images.npy", _HOW)
        return parts, prefixes, classes
    if not 1 <= len(locations) <= 2 or not all(path.suffix.lower() in _SUFFIXES for path in locations):
        raise UsageError(f"'{spec}' does not name one or two lists (.npy or .pkl)", _HOW)
    for path in locations:
        if not path.is_file():
            raise UsageError(f"{spec}: there is no file {path}", _HOW)
    return {"all": (locations[0], locations[1] if len(locations) > 1 else None)}, prefixes, classes


def _lists_in(folder: Path) -> Lists:
    if not folder.is_dir():
        return {}
    files = {s: _list_file(folder, f"{s}_images") for s in _SPLITS}
    return {s: (images, _list_file(folder, f"{s}_labels")) for s, images in files.items() if images is not None}


def _label_lists(folder: Path) -> dict[str, Path]:
    """Return the lists of labels in a folder that has none of images, by split."""
    files = {split: _list_file(folder, f"{split}_labels") for split in _SPLITS}
    return {} if _lists_in(folder) else {split: file for split, file in files.items() if file is not None}


def _list_file(folder: Path, stem: str) -> Path | None:
    return next((path for suffix in _SUFFIXES if (path := folder / f"{stem}{suffix}").is_file()), None)


def _read(path: Path) -> Any:
    """Read an array or list without running anything in the file."""
    with unpickling(path, "not a list written by numpy or pickle") as load, path.open("rb") as file:
        if path.suffix.lower() == ".npy":
            old = np.lib.format.read_magic(file) == (1, 0)
            header = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
            _, _, dtype = header(file)
            # Arrays of objects are pickles, which go through the reader below that runs nothing.
            if not dtype.hasobject:
                return _checked_text(np.load(path, mmap_mode="r", allow_pickle=False))
        return load(file)


def _checked_text(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array if its text is valid: numpy takes any four bytes for a character, Python does not."""
    if values.dtype.kind == "U" and values.size:
        codes = np.ascontiguousarray(values).view(f"{values.dtype.str[0]}u4")
        if codes.max() > sys.maxunicode:
            raise ValueError("there are numbers in it that are no characters")
    return values


def _paths(path: Path) -> list[str]:
    values = _read(path)
    values = values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values
    listed = list(values) if isinstance(values, list | tuple) else []
    names = [os.fsdecode(value) if isinstance(value, bytes) else value for value in listed]
    if not names or not all(isinstance(name, str) and _can_be_path(name) for name in names):
        raise DataError(f"{path} is not a list of paths", "It should hold one path per image.")
    return names


def _can_be_path(name: str) -> bool:
    try:
        return bool(name) and b"\0" not in os.fsencode(name)
    except ValueError:  # half a character
        return False


def _checked(path: Path, values: Any) -> Any:
    if not isinstance(values, np.ndarray | list | tuple):
        raise DataError(f"{path} is not a list of labels")
    if isinstance(values, np.ndarray) and values.ndim == 0:
        raise DataError(f"{path} is one value, not a list of labels")
    return values


def _labels(
    path: Path | None, values: Any, n: int, names_file: Path | None
) -> tuple[list[int], Target, tuple[str, ...]]:
    """Return the positions of the images to keep, their labels, and notes."""
    everything = list(range(n))
    if path is None:
        return everything, Unlabelled(n), ()
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.ndim == 2 and values.shape[1] > 1:
        return everything, _matrix(path, np.asarray(values), names_file), ()
    rows = values.tolist() if isinstance(values, np.ndarray) else list(values)
    rows = [
        row[0] if isinstance(row, list) and len(row) == 1 and isinstance(values, np.ndarray) else row for row in rows
    ]
    if any(isinstance(row, list | tuple | np.ndarray) for row in rows):
        lists = [
            [_text(path, one) for one in (row if isinstance(row, list | tuple | np.ndarray) else [row])] for row in rows
        ]
        names = names_by_number(names_file, {one for row in lists for one in row})
        return everything, multi_labels([[names.get(one, one) for one in row] for row in lists]), ()
    texts = [_text(path, row) for row in rows]
    kept = [i for i, text in enumerate(texts) if text != "-1"]
    if not kept:
        raise DataError(f"{path}: every label is -1" if texts else f"{path} has no labels")
    notes = (f"{path}: {counted(n - len(kept), 'image')} left out, whose label is -1",) if len(kept) < n else ()
    names = names_by_number(names_file, {texts[i] for i in kept})
    return kept, single_labels([names.get(texts[i], texts[i]) for i in kept]), notes


def _matrix(path: Path, values: npt.NDArray[Any], names_file: Path | None) -> Target:
    if not np.isin(values, (-1, 0, 1)).all():
        raise DataError(
            f"{path} has the shape {values.shape} and other values than 1 (present), 0 (absent), -1 (ignore)"
        )
    columns = [str(i) for i in range(values.shape[1])]
    names = names_by_number(names_file, columns)
    return MultiLabel(tuple(names.get(c, c) for c in columns), values.astype(np.int8))


def _text(path: Path, value: object) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | np.integer | str) and str(value):
        return str(value)
    raise DataError(f"{path}: the label {value!r:.50} is neither a number nor a name")


FORMAT = SourceFormat(
    __doc__,
    SampleReader(recognises, lambda request: open(request.spec), NoOptions),
    labels=LabelReader(recognises_labels, open_labels),
)
