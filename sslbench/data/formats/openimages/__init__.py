"""Open Images: *-annotations-bbox.csv and *-human-imagelabels.csv beside class-descriptions*.csv and the images.

Boxes are shares of the sides of an image, and those of groups (IsGroupOf) are crowds. A label of an image has been
verified: Confidence is 1 where the class is there and 0 where it is not; classes of which an image has no label are
unknown and do not count (Kuznetsova et al., IJCV 2020; the download page of V7). Tables lie in the folder or in its
`annotations/`, `labels/` or `csv/`, images in `train/`, `validation/` and `test/`, or as FiftyOne and CVAT write them.
"""

import csv
import dataclasses
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.config import setting
from sslbench.data.containers.members import by_split, split_name
from sslbench.data.containers.sniff import header_of, is_clutter, is_open_images, read_text
from sslbench.data.format import Reader, SampleReader, SampleRequest, SourceFormat
from sslbench.data.formats.openimages.photos import FOLDERS, Photos, photos_of
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import as_samples
from sslbench.data.objects.columns import ObjectColumns
from sslbench.data.objects.crops import CropOptions
from sslbench.data.objects.view import viewed
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.wording import counted, one_line, part_name, some
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection.matches import Federated, Frequency
from sslbench.names import did_you_mean
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.objects import Boxes
from sslbench.targets.target import Target

_CORNERS = ["XMin", "YMin", "XMax", "YMax"]
_INSIDE = ("", "annotations", "labels", "csv", "metadata")
_ROWS = 1 << 20  # of a table, read at once
_MOST_VALUES = 1 << 32  # images times classes, a byte each
_BEYOND = 0.1  # share of a side by which a corner may lie outside of the image


@dataclasses.dataclass(frozen=True)
class OpenImagesBoxes:
    """Options of boxes: openimages/?images=photos."""

    images: str = setting("", "folder, archive or shards of the images")
    only: str = setting(
        "", "file of the classes that count: a label (/m/01yrx) or a name per line, or a table of these"
    )


@dataclasses.dataclass(frozen=True)
class OpenImagesOptions(OpenImagesBoxes, CropOptions):
    """Options of images and crops: openimages/?unit=annotation&images=validation.tar."""


@dataclasses.dataclass(frozen=True)
class _Place:
    """Tables of a location.

    Attributes:
        spec: the location.
        root: folder around tables and images.
        boxes: split -> table of boxes.
        labels: split -> table of verified labels.
        alone: the location is one table.
    """

    spec: str
    root: Path
    boxes: Mapping[str, Path]
    labels: Mapping[str, Path]
    alone: bool = False

    def key(self, split: str) -> str:
        """Return the split of a source: that of a single table is said by the user."""
        return "all" if self.alone else split


def recognises(spec: str) -> bool:
    """Return whether the string is a table of Open Images, or a folder with such tables."""
    return any(True for _ in _tables(spec))


def recognises_boxes(spec: str) -> bool:
    """Return whether the string is a table of boxes of Open Images, or a folder with such tables."""
    return any(_has_boxes(table) for table in _tables(spec))


def _has_boxes(table: Path) -> bool:
    return set(_CORNERS) <= set(header_of(str(table)))


def _tables(spec: str) -> Iterator[Path]:
    path = Path(spec)
    files = _csv_files(path) if path.is_dir() else [path] if path.suffix.lower() == ".csv" and path.is_file() else []
    return (file for file in files if is_open_images(str(file)))


def _csv_files(root: Path) -> Iterator[Path]:
    for top in (root, *(root / name for names in FOLDERS.values() for name in names)):
        for name in _INSIDE if top == root else _INSIDE[1:]:
            yield from (file for file in matching(top / name, "*.csv") if not is_clutter(file.name))


def _place(spec: str) -> _Place:
    path, boxes, labels = Path(spec), dict[str, Path](), dict[str, Path]()
    if not path.is_dir():
        root = path.parent.parent if path.parent.name in _INSIDE else path.parent
        found = {_split_of(path): path}
        return _Place(spec, root, *((found, {}) if _has_boxes(path) else ({}, found)), alone=True)
    for table in _tables(spec):
        kind = boxes if _has_boxes(table) else labels
        split = _split_of(table)
        if kind is labels and "machine" in table.name:
            continue  # made by a network, and not verified
        if split in kind:
            raise DataError(
                f"{spec} has two tables of the {split} split: {kind[split].name} and {table.name}",
                "Give the tables themselves: --data TRAIN.csv --test-data VAL.csv.",
            )
        kind[split] = table
    return _Place(spec, path, boxes, labels)


def _split_of(table: Path) -> str:
    """Return the split of oidv7-val-annotations-human-imagelabels.csv, or of train/labels/detections.csv."""
    words = [*re.split(r"[-_.]", table.stem), *(folder.name for folder in table.parents[:2])]
    return next((split for word in words if (split := split_name(word))), "all")


def open_objects(spec: str, options: OpenImagesBoxes) -> dict[str, ObjectSource]:
    """Return the images that lie here with their boxes; all splits have the same classes.

    Where the verified labels of a split lie beside its boxes, the classes that are known to be absent are those of
    `Boxes.federated`, as in LVIS.
    """
    place = _place(spec)
    if not place.boxes:
        raise UsageError(f"{spec} has labels of whole images, but no boxes", "Boxes are in *-annotations-bbox.csv.")
    found = {place.key(split): _kept_boxes(place, split, options) for split in place.boxes}
    names = tuple(sorted({name for part in found.values() for name in part.target.classes}))
    return {split: part.with_classes(names, tuple(range(1, len(names) + 1))) for split, part in found.items()}


def _kept_boxes(place: _Place, split: str, options: OpenImagesBoxes) -> ObjectSource:
    table, labels, photos = (
        place.boxes[split],
        place.labels.get(split),
        photos_of(place.spec, place.root, split, options.images),
    )
    arguments = [photos.shown, photos.stamp(), options.only, *_stamps(place, labels, options.only)]
    found = viewed(
        str(table),
        "openimages boxes",
        arguments,
        lambda: {"all": _boxes_of(place, table, photos, labels, options.only)},
    )
    return dataclasses.replace(found["all"], name=part_name(place.spec, place.key(split)))


def open(request: SampleRequest[OpenImagesOptions]) -> dict[str, Source]:
    """Return the images with their verified labels; of tables of boxes alone, the classes of these; or crops."""
    spec, options = request.spec, request.options
    place = _place(spec)
    if options.unit == "annotation" or not place.labels:
        sources = as_samples(spec, open_objects(spec, options), options)
        if options.unit == "annotation":
            return sources
        note = f"{spec}: no verified labels beside the boxes, so a class without a box in an image counts as absent"
        return {split: dataclasses.replace(part, notes=(*part.notes, note)) for split, part in sources.items()}
    if options.classes == "supercategory":
        raise UsageError(f"{spec}: classes=supercategory is an option of COCO manifests; here are none")
    found = {place.key(split): _kept_labels(place, split, options) for split in place.labels}
    names = tuple(sorted({name for part in found.values() for name in part.target.classes}))
    return {split: dataclasses.replace(part, target=_among(part.target, names)) for split, part in found.items()}


def _kept_labels(place: _Place, split: str, options: OpenImagesBoxes) -> Source:
    table, photos = place.labels[split], photos_of(place.spec, place.root, split, options.images)
    arguments = [photos.shown, photos.stamp(), options.only, *_stamps(place, None, options.only)]
    found = viewed(
        str(table), "openimages labels", arguments, lambda: {"all": _labels_of(place, table, photos, options.only)}
    )
    return dataclasses.replace(found["all"], name=part_name(place.spec, place.key(split)))


def _among(target: Target, names: tuple[str, ...]) -> Target:
    """Return labels with all classes of the location; those that a split lacks are unknown there."""
    if target.classes == names:
        return target
    values = np.full((len(target), len(names)), -1, dtype=np.int8)
    values[:, [names.index(name) for name in target.classes]] = target.values
    return MultiLabel(names, values)


def _stamps(place: _Place, labels: Path | None, only: str) -> list[Any]:
    """Return the states of the files beside a table that its sources depend on."""
    files = [*_descriptions(place.root), *([labels] if labels else []), *([_only_file(place, only)] if only else [])]
    return [[str(file), file.stat().st_mtime_ns] for file in files]


def _descriptions(root: Path) -> list[Path]:
    """Return the tables of names: class-descriptions*.csv, or FiftyOne's metadata/classes.csv."""
    return [
        file
        for file in _csv_files(root)
        if "class-descriptions" in file.name or (file.name == "classes.csv" and file.parent.name == "metadata")
    ]


def _names(root: Path) -> dict[str, str]:
    """Return label -> name of its class; a name of several labels is followed by the label."""
    found: dict[str, str] = {}
    for file in _descriptions(root):
        for number, row in enumerate(csv.reader(io.StringIO(read_text(file)[0])), 1):
            if len(row) != 2 or not all(cell.strip() for cell in row):
                raise DataError(f"{file}, line {number}: {','.join(row)[:60]!r} is not a label and its name")
            if row != ["LabelName", "DisplayName"]:
                found.setdefault(row[0].strip(), row[1].strip())
    labels: dict[str, str] = {}
    twice = {name for label, name in found.items() if labels.setdefault(name, label) != label}
    return {label: f"{name} ({label})" if name in twice else name for label, name in found.items()}


def _only_file(place: _Place, only: str) -> Path:
    base = Path(place.spec) if Path(place.spec).is_dir() else Path(place.spec).parent
    if not (base / only).is_file():
        raise UsageError(f"{place.spec}?only={only}: there is no file {base / only}", f"It is relative to {base}.")
    return base / only


class _Classes:
    """Names of labels, and those that count."""

    def __init__(self, place: _Place, only: str) -> None:
        self._names = _names(place.root)
        self._only: set[str] | None = None
        self.unnamed: set[str] = set()
        if only:
            rows = csv.reader(io.StringIO(read_text(_only_file(place, only))[0]))
            self._only = {row[0].strip() for row in rows if row} - {"", "LabelName"}
            known = set(self._names) | set(self._names.values())
            if self._names and (unknown := sorted(self._only - known)):
                raise UsageError(
                    f"{place.spec}?only={only}: not among the classes of Open Images: {some(unknown)}",
                    did_you_mean(unknown[0], sorted(known)),
                )

    def name(self, label: str) -> str:
        """Return the name of a label, the label itself if nothing names it."""
        if label not in self._names:
            self.unnamed.add(label)
        return self._names.get(label, label)

    def counts(self, label: str) -> bool:
        """Return whether a class is asked for."""
        return self._only is None or label in self._only or self._names.get(label) in self._only

    def notes(self, table: Path) -> tuple[str, ...]:
        """Return a note on labels without a name."""
        if not self.unnamed:
            return ()
        many = counted(len(self.unnamed), "label")
        return (f"{table}: {many} without a name in class-descriptions*.csv: {some(sorted(self.unnamed))}",)


@dataclasses.dataclass(frozen=True)
class _Block:
    """Rows of a table whose image lies here and whose class counts.

    Attributes:
        lines: int64 (n,), lines in the file.
        rows: int64 (n,), positions of the images.
        labels: of the block, each once.
        codes: int64 (n,), positions among them.
        numbers: float64 (n, k), the columns of numbers.
        absent: rows that were left out since their image does not lie here.
    """

    lines: IntArray
    rows: IntArray
    labels: list[str]
    codes: IntArray
    numbers: npt.NDArray[np.float64]
    absent: int


def _blocks(table: Path, photos: Photos, classes: _Classes, columns: Sequence[str]) -> Iterator[_Block]:
    """Read a table of millions of rows by columns, some rows at a time."""
    import pandas as pd

    wanted, line = ["ImageID", "LabelName", *columns], 2
    kinds = {"ImageID": str, "LabelName": str} | dict.fromkeys(columns, np.float64)
    try:
        with pd.read_csv(
            table, usecols=wanted, dtype=kinds, index_col=False, chunksize=_ROWS, encoding="utf-8-sig"
        ) as chunks:
            for chunk in chunks:
                odd = np.flatnonzero(chunk.isna().any(axis=1).to_numpy())
                if len(odd):
                    raise DataError(f"{table}, line {line + odd[0]:,}: a cell is empty", "Is the file complete?")
                numbered, ids = pd.factorize(chunk["ImageID"])
                codes, labels = pd.factorize(chunk["LabelName"])
                rows = photos.rows(list(ids))[numbered]
                kept = (rows >= 0) & np.array([classes.counts(label) for label in labels], dtype=np.bool_)[codes]
                at = np.flatnonzero(kept)
                numbers = chunk[list(columns)].to_numpy()[at]
                yield _Block(line + at, rows[at], list(labels), codes[at], numbers, int((rows < 0).sum()))
                line += len(chunk)
    except OSError as error:
        raise DataError(f"cannot read {table}: {error.strerror or error}") from error
    except (ValueError, OverflowError) as error:  # of pandas, too
        raise DataError(f"{table} is damaged in line {line:,} or behind it: {one_line(error)}") from error


class _Order:
    """Images that have rows, in the order of their first ones.

    Attributes:
        rows: their positions.
    """

    def __init__(self, n: int) -> None:
        self._place = np.full(n, -1, dtype=np.int64)
        self.rows: list[int] = []

    def add(self, rows: IntArray) -> IntArray:
        """Return the places of images among those with rows."""
        fresh = np.unique(rows[self._place[rows] < 0])
        self._place[fresh] = len(self.rows) + np.arange(len(fresh))
        self.rows += fresh.tolist()
        return self._place[rows]


def _chosen(table: Path, photos: Photos, order: _Order, absent: int, what: str) -> tuple[IntArray, tuple[str, ...]]:
    """Return the positions of the images that have rows, and notes on what is left out."""
    if not order.rows:
        raise DataError(
            f"{table} has no {what} of the {counted(len(photos), 'image')} in {photos.shown}",
            "Images are named by their ids (0001eeaf4aed83f9.jpg). Name their folder or archive: ?images=PLACE.",
        )
    notes = (f"{table}: {counted(absent, what)} of images that are not in {photos.shown} left out",) if absent else ()
    if without := len(photos) - len(order.rows):
        notes = (*notes, f"{table}: {counted(without, 'image')} without a {what} in it left out")
    return np.array(order.rows, dtype=np.int64), notes


def _boxes_of(place: _Place, table: Path, photos: Photos, labels: Path | None, only: str) -> ObjectSource:
    classes, columns, order, absent = _Classes(place, only), ObjectColumns(str(table), "line"), _Order(len(photos)), 0
    groups = ["IsGroupOf"] if "IsGroupOf" in header_of(str(table)) else []
    sizes: list[tuple[int, int]] = []
    flat: list[tuple[int, int, str]] = []  # line, image and class of the boxes without area
    for block in _blocks(table, photos, classes, [*_CORNERS, *groups]):
        corners = block.numbers[:, :4]
        wrong = np.flatnonzero(~(np.abs(corners - 0.5) <= 0.5 + _BEYOND).all(axis=1))
        if len(wrong):
            raise DataError(
                f"{table}, line {block.lines[wrong[0]]:,}: the corners are {corners[wrong[0]].tolist()}",
                "In tables of Open Images they are shares of width and height, from 0 to 1.",
            )
        images = order.add(block.rows)
        sizes += [photos.size(row) for row in order.rows[len(sizes) :]]
        sides = np.array(sizes, dtype=np.float64).reshape(-1, 2)[images]
        names = [classes.name(label) for label in block.labels]
        crowd = block.numbers[:, 4] == 1 if groups else np.zeros(len(images), dtype=np.bool_)
        for i in np.flatnonzero((corners[:, 2:] <= corners[:, :2]).any(axis=1)).tolist():
            corners[i] = _a_pixel_wide(corners[i], sides[i])
            crowd[i] = True
            flat.append((int(block.lines[i]), int(block.rows[i]), names[block.codes[i]]))
        columns.extend(images, block.lines, corners * np.tile(sides[:, ::-1], 2), names, block.codes, crowd)
        absent += block.absent
    at, notes = _chosen(table, photos, order, absent, "box")
    if unread := [photos.names[row] for row, size in zip(order.rows, sizes, strict=True) if not all(size)]:
        raise DataError(
            f"{table}: {counted(len(unread), 'image')} cannot be read, so their boxes have no size: {some(unread)}",
            "Remove these files, or get them again.",
        )
    if flat:
        lines = some([f"line {line}" for line, _, _ in flat])
        many = counted(len(flat), "box")
        notes = (*notes, f"{table}: {many} without width or height, whose objects do not count: {lines}")
    ids, notes = [photos.names[row] for row in at], (*notes, *classes.notes(table))
    (source,) = columns.sources(ids, photos.images.select(at), np.array(sizes), notes=notes, sized=False).values()
    if labels is None:
        return source
    pairs = [(row, name) for _, row, name in flat]
    federated = _looked_for(labels, photos, classes, source, pairs)
    return dataclasses.replace(source, target=source.target.changed(federated=federated))


def _a_pixel_wide(corners: npt.NDArray[np.float64], size: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a box without area, as shares of an image of this height and width, with sides of a pixel at least.

    It is kept as a crowd, so that its class is unknown in the image and not absent.
    """
    pixel = 1 / np.maximum(size[::-1], 1)
    low = np.minimum(np.minimum(corners[:2], corners[2:]), 1 - pixel)
    return np.concatenate([low, np.maximum(np.maximum(corners[:2], corners[2:]), low + pixel)])


def _looked_for(
    labels: Path, photos: Photos, classes: _Classes, source: ObjectSource, flat: Sequence[tuple[int, str]]
) -> Federated:
    """Return the classes that are verified to be absent from each image, and those of boxes without area.

    `flat`: position among the photos and class of each of the latter.
    """
    row_of = {name: i for i, name in enumerate(source.ids)}
    rows = np.array([row_of.get(name, -1) for name in photos.names], dtype=np.int64)
    class_of = {name: i for i, name in enumerate(source.target.classes)}
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    for block in _blocks(labels, photos, classes, ["Confidence"]):
        numbers = np.array([class_of.get(classes.name(label), -1) for label in block.labels], dtype=np.int64)
        found = np.stack([rows[block.rows], numbers[block.codes]], axis=1)
        pairs.append(found[(block.numbers[:, 0] == 0) & (found >= 0).all(axis=1)])
    frequencies: list[Frequency] = [""] * len(class_of)
    doubtful = np.array([(rows[row], class_of[name]) for row, name in flat], dtype=np.int64).reshape(-1, 2)
    return Federated(np.unique(np.concatenate(pairs), axis=0), np.unique(doubtful, axis=0), tuple(frequencies))


def _labels_of(place: _Place, table: Path, photos: Photos, only: str) -> Source:
    classes, order, columns, absent = _Classes(place, only), _Order(len(photos)), dict[str, int](), 0
    parts: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.bool_]]] = []
    for block in _blocks(table, photos, classes, ["Confidence"]):
        there = block.numbers[:, 0]
        odd = np.flatnonzero(~np.isin(there, (0, 1)))
        if len(odd):
            raise DataError(
                f"{table}, line {block.lines[odd[0]]:,}: Confidence is {there[odd[0]]:g}, not 0 or 1",
                "Give the table of labels that persons verified: *-annotations-human-imagelabels.csv.",
            )
        used = np.unique(block.codes)
        number = np.zeros(len(block.labels), dtype=np.int32)
        number[used] = [columns.setdefault(classes.name(block.labels[c]), len(columns)) for c in used]
        parts.append((order.add(block.rows).astype(np.int32), number[block.codes], there == 1))
        absent += block.absent
    at, notes = _chosen(table, photos, order, absent, "label")
    if len(at) * len(columns) > _MOST_VALUES:
        raise DataError(
            f"{table}: labels of {counted(len(at), 'image')} and {counted(len(columns), 'class')} do not fit into "
            f"{_MOST_VALUES >> 30} GB",
            "Name the classes that count, such as ?only=oidv7-class-descriptions-boxable.csv.",
        )
    names = sorted(columns)
    moved = np.argsort(np.argsort(np.array(list(columns), dtype=object), kind="stable"), kind="stable")
    present, ruled_out = (np.zeros((len(at), len(names)), dtype=np.bool_) for _ in range(2))
    for rows, numbers, is_there in parts:
        present[rows[is_there], moved[numbers[is_there]]] = True
        ruled_out[rows[~is_there], moved[numbers[~is_there]]] = True
    values = np.where(present, np.int8(1), np.int8(-1))
    values[ruled_out & ~present] = 0
    both = present & ruled_out
    values[both] = -1
    if both.any():
        notes = (*notes, f"{table}: {int(both.sum()):,} labels are verified both to be there and not, and do not count")
    ids = [photos.names[row] for row in at]
    labels = MultiLabel(tuple(names), values)
    notes = (*notes, *classes.notes(table), f"{table}: classes without a verified label of an image do not count there")
    return by_split(str(table), ids, labels, photos.images.select(at), None, notes)["all"]


FORMAT = SourceFormat(
    __doc__,
    SampleReader(recognises, open, OpenImagesOptions),
    {Boxes: Reader(lambda spec, _: recognises_boxes(spec), open_objects, OpenImagesBoxes)},
)
