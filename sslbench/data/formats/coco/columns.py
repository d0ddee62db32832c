"""Streaming reader of COCO manifests: rows are checked one by one and kept as columns, a few bytes per annotation."""

import contextlib
import dataclasses
import io
import re
import unicodedata
import zipfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.containers.sniff import encoding_of, head
from sslbench.data.formats.coco.assets import Assets
from sslbench.data.formats.coco.rows import NotAMappingError, is_sqlite, json_rows, view_entries
from sslbench.data.labels import marks
from sslbench.data.wording import one_line, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean

TABLES = ("images", "annotations", "categories")
ID_KEY, VALUES_KEY = "sslbench_id", "sslbench_values"
"""Keys of an image in manifests that `sslbench data to-kwcoco` writes: its id, and the numbers to predict."""

INFO_TYPE = "sslbench"
"""Type of the entry in 'info' of such manifests."""
GROUPED_KEY, CHANNELS_KEY = "grouped_by", "channels"
"""Keys of that entry: the attribute whose images belong together, and the channels that were chosen."""
# Text of a number, which is not another one's: '007' is a name.
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
# Remedies.
_TWICE = {
    ("images", "id"): "Keep one entry per image, and give every image an id of its own, which its annotations name.",
    ("annotations", "id"): "Keep one entry per annotation, and give every annotation an id of its own.",
    ("categories", "id"): "Keep one entry per category, and give every category an id of its own.",
    ("categories", "name"): "Keep one of them, and give the annotations of the others its id.",
}
VIDEO, FRAME = "video", "frame_index"
"""Attributes of a frame: the name of its video, and its position there."""
Rows = dict[str, list[dict[str, Any]]]
"""Table -> its rows, as they stand in the manifest."""


def _integers() -> "array[int]":
    """Return an array, which takes 8 bytes a number: a list takes several times as much."""
    return array("q")


@dataclasses.dataclass(eq=False)
class Columns:
    """Manifest of N images, M annotations that have an image and a category, and C categories, read row by row.

    Rows are checked as they are read, their references at the end.

    Attributes:
        spec: the manifest, for messages.
        attributes: name -> N texts: requested keys that an image has, and of frames 'video' and 'frame_index'.
        keeps_rows: all rows are kept, for readers of boxes and masks.
        rows: the rows, if they are kept.
        assets: N images with their files, as they stand there.
        splits: N texts, '' where there is none.
        own_ids: N ids that sslbench wrote, '' where there is none.
        values: numbers to predict that sslbench wrote, None for images without.
        keys: keys with plain values that an image has; collected only if attributes are requested.
        numbers: int64 (N,), the ids of the images.
        images: int64 (M,), positions of the annotations' images.
        classes: int64 (M,), positions of their categories.
        marked: bool (M,), iscrowd, ignore or difficult.
        skipped: annotations without image or category.
        names: C names in order of the categories' ids.
        supers: C supercategories, the name itself where there is none.
        info: content of the key 'info'.
        grouped_by: the attribute whose images belong together, '' if there is none.
        keypoint_kinds: content of kwcoco's key 'keypoint_categories', None without it.
    """

    spec: str
    attributes: dict[str, list[str]]
    keeps_rows: bool
    assets: Assets
    rows: Rows = dataclasses.field(default_factory=lambda: {table: [] for table in TABLES})
    splits: list[str] = dataclasses.field(default_factory=list)
    own_ids: list[str] = dataclasses.field(default_factory=list)
    values: list[list[float] | None] = dataclasses.field(default_factory=list)
    keys: set[str] = dataclasses.field(default_factory=set)
    numbers: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    images: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    classes: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    marked: npt.NDArray[np.bool_] = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    skipped: int = 0
    names: list[str] = dataclasses.field(default_factory=list)
    supers: list[str] = dataclasses.field(default_factory=list)
    info: Any = None
    grouped_by: str = ""
    keypoint_kinds: Any = None
    # Of the annotations: their ids, the ids of image and category, interleaved, and their marks.
    _annotation_ids: "array[int]" = dataclasses.field(default_factory=_integers)
    _places: "array[int]" = dataclasses.field(default_factory=_integers)
    _marks: bytearray = dataclasses.field(default_factory=bytearray)
    _categories: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)
    _videos: dict[int | str, str] = dataclasses.field(default_factory=dict)
    _frames: dict[int, tuple[int | str, str]] = dataclasses.field(
        default_factory=dict
    )  # position -> video, place in it
    _shared: dict[str, str] = dataclasses.field(default_factory=dict)
    _with_numbers: set[str] = dataclasses.field(default_factory=set)
    _of_texts: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)

    @property
    def texts(self) -> dict[str, dict[int, str]]:
        """Table -> number -> its id, where ids are texts."""
        return {table: {number: text for text, number in kept.items()} for table, kept in self._of_texts.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the ids."""
        return tuple(
            f"{self.spec}: the ids of '{table}' are texts, which are numbered in their order ({some(list(texts))})"
            for table, texts in self._of_texts.items()
            if table != "annotations"
        )

    def whole(self, key: str, value: Any) -> None:
        """Take a key of the manifest that is no list of rows."""
        if key in TABLES and value != []:
            found = _no_manifest(self.spec, f"a mapping whose '{key}' is {value!r:.40}") if key == "images" else None
            raise found or DataError(f"{self.spec}: '{key}' is not a list of mappings")
        if key == "info":
            self.info = value
            self.grouped_by = provenance(value, GROUPED_KEY)
            if self.grouped_by and not self.own_ids:  # it precedes the images in files written by sslbench
                self.attributes.setdefault(self.grouped_by, [])
        if key == "keypoint_categories":
            self.keypoint_kinds = value
        if key == "videos":
            self._read_videos(value or [])

    def add(self, table: str, row: Any) -> None:
        """Take a row of a table."""
        if not isinstance(row, dict):
            raise DataError(f"{self.spec}: '{table}' is not a list of mappings")
        number = row["id"] = self._number(table, "id", row, table)
        if self.keeps_rows:
            self.rows[table].append(row)
        if table == "annotations":
            self._annotation(number, row)
        elif table == "images":
            self._image(number, row)
        else:
            name = row.get("name")
            if name is None:
                raise DataError(f"{self.spec}: an entry of '{table}' has no 'name': {one_line(row)}")
            if not isinstance(name, str | int):
                raise DataError(f"{self.spec}: name of '{table}' should be text, not {name!r}")
            # On macOS accents may be characters of their own, which make no other class.
            row["name"] = unicodedata.normalize("NFC", str(name))
            self._categories.append((number, row["name"], str(row.get("supercategory") or row["name"])))

    def _read_videos(self, rows: object) -> None:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{self.spec}: 'videos' is not a list of mappings")
        for row in rows:
            number = row.get("id")
            if not isinstance(number, int | str) or number in self._videos:
                what = "there twice" if isinstance(number, int | str) else "not a whole number or a name"
                raise DataError(f"{self.spec}: the id {number!r} of an entry of 'videos' is {what}")
            self._videos[number] = str(row.get("name") or number)

    def _number(self, table: str, key: str, row: dict[str, Any], named: str) -> int:
        """Return an id of an entry of the table `named`; texts are numbered in the order in which they occur."""
        value = row.get(key)
        if (isinstance(value, float) and value.is_integer()) or (isinstance(value, str) and _WHOLE.fullmatch(value)):
            value = int(value)
        # By exact type, since true is an int, too; the range is that of the array's 64 bits.
        if type(value) is int and -(1 << 63) <= value < 1 << 63:
            self._with_numbers.add(named)
            return value
        if value is None:
            raise DataError(f"{self.spec}: an entry of '{table}' has no '{key}': {one_line(row)}")
        if isinstance(value, str) and value.strip():
            numbers = self._of_texts.setdefault(named, {})
            return numbers.setdefault(value.strip(), len(numbers) + 1)
        raise DataError(f"{self.spec}: {key} of '{table}' should be a whole number or a name, not {value!r}")

    def _image(self, number: int, row: dict[str, Any]) -> None:
        video, frame = row.get("video_id"), row.get(FRAME)
        if video is not None and not isinstance(video, int | str):
            raise DataError(f"{self.spec}: video_id of 'images' should be a whole number or a name, not {video!r}")
        if video is not None:
            self._frames[len(self.own_ids)] = video, "" if frame is None else str(frame).strip()
        self.assets.add(number, row)
        self.splits.append(self._text(row.get("split") or ""))
        self.own_ids.append(str(row.get(ID_KEY) or ""))
        self.values.append(row.get(VALUES_KEY))
        for name, column in self.attributes.items():
            column.append(self._text(text_of(row.get(name))))
            self.keys.update(key for key, value in row.items() if isinstance(value, str | int | float))

    def _text(self, value: object) -> str:
        """Return a value as text; equal values share one object."""
        text = str(value).strip()
        return self._shared.setdefault(text, text)

    def _annotation(self, number: int, row: dict[str, Any]) -> None:
        self._annotation_ids.append(number)
        if row.get("category_id") is None or row.get("image_id") is None:
            self.skipped += 1
            return
        row["image_id"] = self._number("annotations", "image_id", row, "images")
        row["category_id"] = self._number("annotations", "category_id", row, "categories")
        self._places.extend((row["image_id"], row["category_id"]))
        self._marks.append(any(marks(self.spec, row)))

    def finish(self) -> None:
        """Check what several rows say together, and set the columns that depend on all of them."""
        if mixed := sorted(self._with_numbers & set(self._of_texts)):
            text = next(iter(self._of_texts[mixed[0]]))
            raise DataError(
                f"{self.spec}: ids of '{mixed[0]}' are numbers and texts ({text!r})", "Write all of them as one kind."
            )
        self.assets.check()
        of_videos = self._of_videos()
        self.attributes |= of_videos
        self.keys |= set(of_videos)
        self.grouped_by = self.grouped_by or (VIDEO if VIDEO in of_videos else "")
        if self.grouped_by not in self.keys:
            self.attributes.pop(self.grouped_by, None)
            self.grouped_by = ""
        self.attributes = {name: column for name, column in self.attributes.items() if name in self.keys}
        self._categories.sort()
        self.names = [name for _, name, _ in self._categories]
        self.supers = [group for *_, group in self._categories]
        self.numbers = np.array(self.assets.numbers, dtype=np.int64)
        category_ids = np.array([number for number, *_ in self._categories], dtype=np.int64)
        self._once("images", "id", self.numbers)
        self._once("annotations", "id", np.array(self._annotation_ids, dtype=np.int64))
        self._once("categories", "id", category_ids)
        self._once("categories", "name", np.array(self.names, dtype=object))
        places = np.array(self._places, dtype=np.int64).reshape(-1, 2)
        self.images = self._positions("image_id", "images", places[:, 0], self.numbers)
        self.classes = self._positions("category_id", "categories", places[:, 1], category_ids)
        self.marked = np.frombuffer(self._marks, dtype=np.bool_)

    def _of_videos(self) -> dict[str, list[str]]:
        """Return 'video' and 'frame_index' -> one text per image; without columns that are asked for or empty."""
        used = {number for number, _ in self._frames.values()}
        if unknown := sorted(used - set(self._videos), key=str):
            raise DataError(f"{self.spec}: images have video_id {some(unknown)}, which is not in 'videos'")
        alike = len(set(self._videos.values())) < len(self._videos)  # the names are not unique
        shown = {number: f"{name} ({number})" if alike else name for number, name in self._videos.items()}
        frames = [self._frames.get(i) for i in range(len(self.own_ids))]
        found = {
            VIDEO: ["" if frame is None else shown[frame[0]] for frame in frames],
            FRAME: ["" if frame is None else frame[1] for frame in frames],
        }
        asked = self.keys & set(self.attributes)
        return {key: column for key, column in found.items() if key not in asked and any(column)}

    def _once(self, table: str, key: str, values: npt.NDArray[Any]) -> None:
        unique, counts = np.unique(values, return_counts=True)
        twice = [str(value) for value in unique[counts > 1]]
        if twice:
            raise DataError(f"{self.spec}: the same {key} occurs twice in '{table}': {some(twice)}", _TWICE[table, key])

    def _positions(self, key: str, table: str, used: IntArray, known: IntArray) -> IntArray:
        order = np.argsort(known, kind="stable")
        place = np.searchsorted(known, used, sorter=order)
        # For a number behind all others searchsorted returns the length; the comparison below refuses it.
        there = order[np.minimum(place, len(known) - 1)] if len(known) else np.zeros(len(used), dtype=np.int64)
        wrong = np.unique(used[known[there] != used] if len(known) else used)
        if len(wrong):
            texts = list(self._of_texts.get(table, ()))
            names = [texts[number - 1] if texts else number for number in wrong.tolist()]
            raise DataError(f"{self.spec}: annotations have {key} {some(names)}, which is not in '{table}'")
        return np.asarray(there, dtype=np.int64)


def read_columns(spec: str, attributes: Sequence[str] = (), *, rows: bool = False) -> Columns:
    """Return the columns of a manifest, checked to be consistent.

    Args:
        spec: a .json, a .zip with one, or kwcoco's view of one (.sqlite).
        attributes: keys of the images to keep as text; 'video' is the name of the video that a frame is from.
        rows: keep all rows, too.
    """
    columns, keys = Columns(spec, {name: [] for name in attributes}, rows, Assets(spec)), list[str]()
    try:
        for key, value, is_row in _entries(spec):
            if is_row:
                columns.add(key, value)
            else:
                keys.append(key)
                columns.whole(key, value)
    except OSError as error:
        raise DataError(f"cannot read {spec}: {error.strerror or error}") from error
    except NotAMappingError as error:
        raise _no_manifest(spec, error.found) from error
    except (ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{spec} is not a COCO manifest: {one_line(error)}") from error
    if "images" not in keys:
        raise _no_manifest(spec, f"a mapping with the keys {some(sorted(keys), 6)}")
    if not columns.own_ids:
        raise DataError(f"{spec} lists no images")
    columns.finish()
    return columns


def refuse_unknown_keys(spec: str, columns: Columns, attributes: Sequence[str]) -> None:
    """Refuse attributes that no image has."""
    unknown = next((name for name in attributes if name not in columns.attributes), None)
    if unknown is not None:
        raise UsageError(
            f"no image of {spec} has a key '{unknown}' (of groups or targets)", did_you_mean(unknown, columns.keys)
        )


def _entries(spec: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield key, value, and whether it is a row of a table, of a manifest or kwcoco's view of one."""
    if is_sqlite(spec):
        yield from view_entries(spec, TABLES)
        return
    with _text(spec) as file:
        yield from json_rows(file, TABLES)


def _no_manifest(spec: str, found: str) -> DataError:
    return DataError(
        f"{spec} is not a COCO manifest: it has no list 'images', it is {found}",
        "A manifest is a mapping with the lists images, annotations and categories. A table is a list of records "
        '[{"path": "a.jpg", "label": "cat"}, ...] (of pandas: df.to_json(FILE, orient="records")), or maps each image '
        "to its label.",
    )


def provenance(info: Any, key: str) -> str:
    """Return a value of sslbench's entry in 'info', '' if there is none."""
    entries = info if isinstance(info, list) else [info]
    entry = next((e for e in entries if isinstance(e, dict) and e.get("type") == INFO_TYPE), {})
    return str(entry.get(key) or "")


def text_of(value: object) -> str:
    """Return a value as the text of an attribute."""
    return "" if value is None else str(value).strip()


@contextlib.contextmanager
def _text(spec: str) -> Iterator[TextIO]:
    if not spec.lower().endswith(".zip"):
        with Path(spec).open(encoding=encoding_of(head(spec))) as file:
            yield file
        return
    with zipfile.ZipFile(spec) as archive:
        members = [name for name in archive.namelist() if name.lower().endswith(".json")]
        if len(members) != 1:
            raise ValueError(f"the archive should hold one .json, it holds {len(members)}")
        with archive.open(members[0]) as binary:
            yield io.TextIOWrapper(binary, encoding="utf-8-sig")
