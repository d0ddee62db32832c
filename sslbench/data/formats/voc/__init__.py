"""Pascal VOC tree (`VOCdevkit/VOC2007`, `VOC2007`): the lists in ImageSets/Main, difficult objects ignored."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.names import refuse_columns
from sslbench.data.formats.voc import objects
from sslbench.data.images import Files
from sslbench.data.maps.layout import walk
from sslbench.data.objects.crops import WHOLE_IMAGES, Options, crops_of
from sslbench.data.source import Labels, Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError

_LISTS = Path("ImageSets") / "Main"
_SPLITS = ("train", "val", "trainval", "test")
_VALUES = {"1": 1, "0": -1, "-1": 0}
"""In the files: present, present in difficult objects only, absent. In `Labels`: present, ignore, absent."""


def recognises(spec: str) -> bool:
    """Whether the string is a folder with ImageSets/Main in it, in one of its folders, or in VOCdevkit/ in it."""
    return bool(_years(Path(spec)))


def open(
    spec: str, *, image_column: str | None = None, label_column: str | None = None, options: Options = WHOLE_IMAGES
) -> dict[str, Source]:
    """The images of one year, with every class as present, absent, or to be ignored (difficult objects only).

    Args:
        spec: the year's folder, or one that holds a single year.
        image_column: for tables only.
        label_column: for tables only.
        options: see there; crops of the boxes in Annotations/ in place of images.

    Returns:
        {"train": trainval, "test": test} if both have labels, which is how VOC is scored; else those of train, val and
        test that there are. Ids are the names of the image files.

    Raises:
        DataError: several years, lists that are missing, damaged or do not agree, an image that is missing.
        UsageError: a column was named.
    """
    refuse_columns(spec, image_column, label_column)
    years = _years(Path(spec))
    if len(years) > 1:
        raise DataError(f"{spec} holds several years: {some(sorted(y.name for y in years))}", f"Name one: {years[0]}")
    if options.classes == "supercategory":
        raise UsageError(f"{spec}: the classes of Pascal VOC have no supercategories")
    if options.unit == "annotation":
        return crops_of(spec, objects.open_trees([spec]), options)
    try:
        return _open(spec, years[0])
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error


def _years(root: Path) -> list[Path]:
    """The folders with ImageSets/Main at or below `root`."""
    candidates = [root, root / "VOCdevkit"]
    if not root.is_dir():
        return []
    if (root / _LISTS).is_dir():
        return [root]
    return sorted(
        path.parent.parent for folder in candidates for path in folder.glob(f"VOC*/{_LISTS}") if path.is_dir()
    )


def _open(spec: str, year: Path) -> dict[str, Source]:
    classes_of = {split: _classes(year, split) for split in _SPLITS}
    classes = sorted(set().union(*classes_of.values()))
    if not classes:
        raise DataError(f"{year / _LISTS} has no lists such as aeroplane_train.txt")
    for split, found in classes_of.items():
        if found and (missing := sorted(set(classes) - found)):
            raise DataError(f"{year / _LISTS}: {missing[0]}_{split}.txt is missing ({counted(len(missing), 'list')})")
    files = _files(year)
    with_labels = [split for split in _SPLITS if classes_of[split]]
    whole = "trainval" in with_labels and "test" in with_labels
    chosen = (
        {"train": "trainval", "test": "test"} if whole else {s: s for s in ("train", "val", "test") if s in with_labels}
    )
    if not chosen:
        chosen = {"train": "trainval"}
    notes = (f"{spec}: train is trainval, as VOC is usually scored",) if whole else ()
    if not classes_of["test"] and (year / _LISTS / "test.txt").is_file():
        notes = (*notes, f"{spec}: test has no labels and is left out")
    return {name: _source(spec, year, name, split, classes, files, notes) for name, split in chosen.items()}


def _classes(year: Path, split: str) -> set[str]:
    ending = f"_{split}.txt"
    return {path.name.removesuffix(ending) for path in (year / _LISTS).glob(f"*{ending}") if path.is_file()}


def _files(year: Path) -> dict[str, str]:
    """Name without suffix -> file name, of the year's images."""
    folder = year / "JPEGImages"
    if not folder.is_dir():
        raise DataError(f"{folder} is missing", "It should hold the images that ImageSets/Main lists.")
    files: dict[str, str] = {}
    for name in walk(folder):
        stem = os.path.splitext(name)[0]  # noqa: PTH122 - a Path per image is slow
        if stem in files:
            raise DataError(f"{folder} has two images for '{stem}': {files[stem]} and {name}")
        files[stem] = name
    return files


def _source(
    spec: str,
    year: Path,
    name: str,
    split: str,
    classes: Sequence[str],
    files: dict[str, str],
    notes: tuple[str, ...],
) -> Source:
    first = year / _LISTS / f"{classes[0]}_{split}.txt"
    rows = _read(first)
    stems = sorted(rows)
    values: npt.NDArray[np.int8] = np.zeros((len(stems), len(classes)), dtype=np.int8)
    for column, label in enumerate(classes):
        path = year / _LISTS / f"{label}_{split}.txt"
        row_of = _read(path)
        if row_of.keys() != rows.keys():
            odd = sorted(row_of.keys() ^ rows.keys())
            raise DataError(f"{path} and {first} do not list the same images: {some(odd)} in one of them only")
        values[:, column] = [row_of[stem] for stem in stems]
    missing = [stem for stem in stems if stem not in files]
    if missing:
        raise DataError(
            f"{first}: {len(missing):,} of {counted(len(stems), 'image file')} missing: {some(missing)}",
            f"Looked in {year / 'JPEGImages'}",
        )
    order = sorted(range(len(stems)), key=lambda i: files[stems[i]])
    ids = tuple(files[stems[i]] for i in order)
    labels = Labels("multi", tuple(classes), values[order])
    return Source(f"{spec} ({name})", ids, labels, Files(ids, str(year / "JPEGImages")), notes)


def _read(path: Path) -> dict[str, int]:
    """Image -> 1, 0 or -1, from one list."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text in UTF-8: {error}") from error
    rows: dict[str, int] = {}
    for i, line in enumerate(lines, 1):
        if not line.strip():
            continue
        stem, _, value = line.strip().rpartition(" ")
        stem = stem.strip()
        if value not in _VALUES or not stem:
            raise DataError(f"{path}, line {i}: {line.strip()[:60]!r}, should be an image and 1, 0 or -1")
        if stem in rows:
            raise DataError(f"{path}, line {i}: '{stem}' is listed twice")
        rows[stem] = _VALUES[value]
    if not rows:
        raise DataError(f"{path} is empty")
    return rows
