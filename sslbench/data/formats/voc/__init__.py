"""Pascal VOC tree (`VOCdevkit/VOC2007`, `VOC2007`): the lists in ImageSets/Main, difficult objects ignored."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.data.format import SampleReader, SourceFormat, plain_reader
from sslbench.data.formats.voc import maps, objects
from sslbench.data.formats.voc.tree import IMAGES, MAIN_LISTS, SPLITS, find_years, image_files, one_year, read_lines
from sslbench.data.images import Files
from sslbench.data.maps.foreground import map_readers
from sslbench.data.objects.crops import WHOLE_IMAGES, CropOptions, crops_of
from sslbench.data.regular import matching, reading
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.objects import Boxes

# Value in a list (present, present in difficult objects only, absent) -> value in `MultiLabel`
_VALUES = {"1": 1, "0": -1, "-1": 0}


def recognises(spec: str) -> bool:
    """Return whether the string is a folder with ImageSets/Main in it, in VOC*/ or in VOCdevkit/VOC*/."""
    return bool(find_years(Path(spec), MAIN_LISTS))


def open(spec: str, *, options: CropOptions = WHOLE_IMAGES) -> dict[str, Source]:
    """Return the images of one year, with every class as present, absent, or to be ignored (difficult objects only).

    The location is the year's folder, or one that holds a single year. Train is trainval if test has labels too, which
    is how VOC is scored; else the parts are those of train, val and test that there are. Ids are the names of the
    files.
    """
    year = one_year(spec, find_years(Path(spec), MAIN_LISTS))
    if options.classes == "supercategory":
        raise UsageError(f"{spec}: Pascal VOC has no supercategories")
    if options.unit == "annotation":
        return crops_of(spec, objects.open_objects(spec), options)
    with reading():
        return _open(spec, year)


def _open(spec: str, year: Path) -> dict[str, Source]:
    lists = {split: matching(year / MAIN_LISTS, f"*_{split}.txt") for split in SPLITS}
    classes_of = {
        split: {path.name.removesuffix(f"_{split}.txt") for path in paths if path.is_file()}
        for split, paths in lists.items()
    }
    classes = sorted(set().union(*classes_of.values()))
    if not classes:
        raise DataError(f"{year / MAIN_LISTS} has no lists such as aeroplane_train.txt")
    for split, found in classes_of.items():
        if found and (missing := sorted(set(classes) - found)):
            raise DataError(
                f"{year / MAIN_LISTS}: {missing[0]}_{split}.txt is missing ({counted(len(missing), 'list')})"
            )
    files = image_files(year)
    with_labels = [split for split in SPLITS if classes_of[split]]
    whole = "trainval" in with_labels and "test" in with_labels
    chosen = (
        {"train": "trainval", "test": "test"} if whole else {s: s for s in ("train", "val", "test") if s in with_labels}
    )
    if not chosen:
        chosen = {"train": "trainval"}
    notes = (f"{spec}: train is trainval, as usual for VOC",) if whole else ()
    if not classes_of["test"] and (year / MAIN_LISTS / "test.txt").is_file():
        notes = (*notes, f"{spec}: test has no labels and is left out")
    return {name: _source(spec, year, name, split, classes, files, notes) for name, split in chosen.items()}


def _source(
    spec: str, year: Path, name: str, split: str, classes: Sequence[str], files: dict[str, str], notes: tuple[str, ...]
) -> Source:
    first = year / MAIN_LISTS / f"{classes[0]}_{split}.txt"
    rows = _read(first)
    stems = sorted(rows)
    values: npt.NDArray[np.int8] = np.zeros((len(stems), len(classes)), dtype=np.int8)
    for column, label in enumerate(classes):
        path = year / MAIN_LISTS / f"{label}_{split}.txt"
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
    labels = MultiLabel(tuple(classes), values[order])
    return Source(f"{spec} ({name})", ids, labels, Files(ids, str(year / IMAGES)), notes)


def _read(path: Path) -> dict[str, int]:
    """Return stem -> 1, 0 or -1, as in `MultiLabel`, of the list of one class."""
    rows: dict[str, int] = {}
    for i, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        stem, _, value = line.strip().rpartition(" ")
        # Lists align their values: before a 1 stand two spaces.
        stem = stem.strip()
        if value not in _VALUES or not stem:
            raise DataError(f"{path}, line {i}: {line.strip()[:60]!r}, should be an image and 1, 0 or -1")
        if stem in rows:
            raise DataError(f"{path}, line {i}: '{stem}' is listed twice")
        rows[stem] = _VALUES[value]
    if not rows:
        raise DataError(f"{path} is empty")
    return rows


FORMAT = SourceFormat(
    __doc__,
    SampleReader(recognises, lambda request: open(request.spec, options=request.options), CropOptions),
    {
        Boxes: plain_reader(objects.recognises, objects.open_objects),
        **map_readers(maps.recognises, maps.open_maps, maps.VocMapOptions, alone=maps.maps_only),
    },
)
