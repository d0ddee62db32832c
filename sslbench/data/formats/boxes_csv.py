"""Table of boxes (.csv): filename, width, height, class, xmin, ymin, xmax, ymax; one file, or train/, test/ of these.

TensorFlow's object detection tutorials (`train_labels.csv` beside `train/`) and Roboflow (`train/_annotations.csv`)
write such tables, a row per box; the order of the columns does not matter, and width and height may be missing.
Coordinates are read as TensorFlow does, which divides them by width and height: the first pixel reaches from 0 to 1.
(Pascal VOC's XML counts from 1; a table that was made of it has boxes that begin a pixel further right and down than
with the XML, so they are a pixel smaller there.)
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sslbench.config import setting
from sslbench.data.containers.listed import find_listed, folders_beside, images_folder
from sslbench.data.containers.members import split_name
from sslbench.data.containers.sniff import BOX_COLUMNS, box_column, has_box_columns
from sslbench.data.format import Reader, SampleReader, SampleRequest, SourceFormat
from sslbench.data.formats.table import read_cells
from sslbench.data.objects import ObjectOptions, ObjectSource
from sslbench.data.objects.boxes import AnnotatedImage, as_samples, object_sources, size_in_file
from sslbench.data.objects.crops import ElsewhereOptions
from sslbench.data.regular import reading
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.objects import Boxes

_FILE = ("filename", "file_name", "image", "image_path", "path", "file", "img", "image_name", "image_id", "imageid")
# Names of the columns of files and classes, in order of precedence.
_CLASS = ("class", "label", "cell_type", "category", "class_name", "category_name", "name", "label_name", "labelname")
_ROBOFLOW = "_annotations.csv"
_TENSORFLOW = "_labels.csv"
_SIDES = ("height", "width")


@dataclasses.dataclass(frozen=True)
class BoxTableOptions(ElsewhereOptions):
    """Options of a table of boxes: boxes.csv?group=patient&images=photos."""

    group: str = setting("", "column of groups that a seeded split keeps on one side: patient, video, scene")


def recognises(spec: str) -> bool:
    """Return whether the string is a .csv with columns of corners, or a folder with such tables of its splits."""
    path = Path(spec)
    return has_box_columns(spec) or (path.is_dir() and bool(_tables(path)))


def _tables(root: Path) -> dict[str, Path]:
    """Return split -> table of a folder of Roboflow or of TensorFlow's tutorials; empty for any other folder."""
    if has_box_columns(str(root / _ROBOFLOW)):
        return {"all": root / _ROBOFLOW}
    files = {name: root / name / _ROBOFLOW for name in ("train", "valid", "test")}
    if not any(file.is_file() for file in files.values()):
        files = {name: root / f"{name}{_TENSORFLOW}" for name in ("train", "valid", "val", "test")}
    return {str(split_name(name)): file for name, file in files.items() if has_box_columns(str(file))}


def open_objects(
    spec: str, below: Path | None = None, columns: Mapping[str, str] | None = None
) -> dict[str, ObjectSource]:
    """Return the images that the rows name, with their boxes. Images without a row are not part of the data.

    `below`: folder of the images; by default found beside the table. `columns`: names of the columns 'file', 'class'
    and 'group'; by default the first that is known, and no groups.

    Returns:
        Split name -> source, or {"all": source}; a column called `split` is honoured. Ids are the paths below the
        folder of the images.
    """
    path = Path(spec)
    tables = {"all": path} if path.is_file() else _tables(path)
    splits: dict[str, list[AnnotatedImage]] = {}
    with reading(f"{spec}: "):
        for split, table in tables.items():
            for own, images in _read(table, below, columns or {}).items():
                splits[split if own == "all" else own] = images
    return object_sources(spec, splits, grouped_by=(columns or {}).get("group", ""))


def _read(table: Path, below: Path | None, named: Mapping[str, str]) -> dict[str, list[AnnotatedImage]]:
    """Return the images of a table by the split in its rows, 'all' without such a column."""
    rows, columns = _cells(table, named)
    by_file: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for number, row in rows:
        name = row[columns["file"]]
        if not name:
            raise DataError(f"{table}, {number}: the cell of {columns['file']} is empty")
        by_file.setdefault(name, []).append((number, row))
    listed = find_listed(str(table), list(by_file), [below] if below else folders_beside(table), "?images=FOLDER")
    splits: dict[str, list[AnnotatedImage]] = {}
    for name, path, own_id in zip(by_file, listed.paths, listed.ids, strict=True):
        of_image = by_file[name]
        where = f"{table}, {of_image[0][0]}"
        size = _once(where, name, [_size(f"{table}, {n}", row) for n, row in of_image])
        split = _once(where, name, [_split(f"{table}, {n}", row) for n, row in of_image])
        group = _once(where, name, [row[columns["group"]] for _, row in of_image]) if "group" in columns else ""
        file = listed.folder / path
        boxes = []
        for n, row in of_image:
            line = f"{table.name}, {n}"
            if not row[columns["class"]]:
                raise DataError(f"{line}: the cell of {columns['class']} is empty")
            corners = tuple(_number(line, row, key) for key in BOX_COLUMNS)
            plain = {"crowd": False, "difficult": False, "area": None, "mask": None}
            boxes.append({"name": line, "class": row[columns["class"]], "box": corners, **plain})
        splits.setdefault(split, []).append(
            AnnotatedImage(own_id, file, size if all(size) else size_in_file(file), boxes, group, all(size))
        )
    return splits


def _cells(table: Path, named: Mapping[str, str]) -> tuple[list[tuple[str, dict[str, str]]], dict[str, str]]:
    """Return the rows with their lines, and the columns of the file, the class and any group."""
    cells = read_cells(table)
    fields = {box_column(name): name for name in cells.columns}
    rows = [
        (cells.row_name(i), {key: str(cells.columns[name][i]) for key, name in fields.items()})
        for i in range(len(next(iter(cells.columns.values()))))
    ]
    columns = {}
    known_names: dict[str, tuple[str, ...]] = {"file": _FILE, "class": _CLASS} | (
        {"group": ()} if "group" in named else {}
    )
    for what, known in known_names.items():
        if what in named and named[what].lower() not in fields:
            raise UsageError(f"{table} has no column '{named[what]}'", did_you_mean(named[what], fields))
        found = next((name for name in (named.get(what, "").lower(), *known) if name in fields), None)
        if found is None:
            wanted = "image files" if what == "file" else "classes"
            raise DataError(
                f"{table} has no column of {wanted}: it has {', '.join(fields)}",
                f"Call it {known[0]}; also known are {', '.join(known[1:])}.",
            )
        columns[what] = found
    return rows, columns


def _once(where: str, name: str, values: Sequence[Any]) -> Any:
    """Return the value that all rows of an image share."""
    other = next((value for value in values if value != values[0]), None)
    if other is not None:
        raise DataError(f"{where}: the rows of {name} contradict each other: {values[0]} and {other}")
    return values[0]


def _size(where: str, row: Mapping[str, str]) -> tuple[int, int]:
    """Return height and width, zeros without the columns."""
    if not all(row.get(side) for side in _SIDES):
        return 0, 0
    height, width = (_number(where, row, side) for side in _SIDES)
    if not (height >= 1 and width >= 1 and height == int(height) and width == int(width)):
        raise DataError(f"{where}: width and height are {width:g} and {height:g}, not whole numbers of pixels")
    return int(height), int(width)


def _split(where: str, row: Mapping[str, str]) -> str:
    given = row.get("split", "")
    if "split" in row and not given:
        raise DataError(f"{where}: the cell of split is empty")
    return split_name(given) or given.lower() or "all"


def _number(where: str, row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    # Negated, so that NaN is refused, too.
    if not abs(value) < 1e9:
        raise DataError(f"{where}: {column} is {row[column][:40]!r}, not a number of pixels")
    return value


def open(request: SampleRequest[BoxTableOptions]) -> dict[str, Source]:
    """Return the images labelled with the classes of their boxes, or crops of these; see `open_objects`."""
    given = {"file": request.image_column, "class": request.label_column, "group": request.options.group}
    columns = {what: name for what, name in given.items() if name}
    found = open_objects(request.spec, images_folder(request.spec, request.options.images), columns)
    return as_samples(request.spec, found, request.options)


FORMAT = SourceFormat(
    __doc__,
    SampleReader(recognises, open, BoxTableOptions, frozenset(("image", "label"))),
    {
        Boxes: Reader(
            lambda spec, _: recognises(spec),
            lambda spec, options: open_objects(
                spec, images_folder(spec, options.images), {"group": options.group} if options.group else None
            ),
            ObjectOptions,
        )
    },
)
