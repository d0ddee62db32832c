"""TFDS without TensorFlow (`tfds:FOLDER`, `tfds:cifar10[train:20%]`): TFRecord or ArrayRecord files on disk."""

import dataclasses
import functools
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.index import InContainers, Index, OpenFiles, indexed
from sslbench.data.containers.members import by_split, class_names, safe_name, split_name
from sslbench.data.containers.slices import joined, whole_places
from sslbench.data.containers.sniff import json_of
from sslbench.data.format import NoOptions, SampleReader, SourceFormat
from sslbench.data.formats.tfds.tfrecord import AGAIN, Keys, build_tfrecord, entry, index_of
from sslbench.data.hashes import Stamp, check_unchanged
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.wording import counted, one_line, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Images, Target
from sslbench.text import printable

_CHUNK = 256
_MAX_OPEN = 1_000_000  # a reader has threads, and is never closed


def build_array_record(path: Path, keys: Keys) -> Index:
    """Index an ArrayRecord file: numbers are offset and size of the image in its record, texts labels as JSON."""
    reader = _reader(str(path))
    try:
        count = reader.num_records()
        entries = [
            entry(path, first + i, record, keys, 0)
            for first in range(0, count, _CHUNK)
            for i, record in enumerate(reader.read(list(range(first, min(first + _CHUNK, count)))))
        ]
        reader.close()  # raises the error that num_records hides
    except (RuntimeError, IndexError, ValueError) as error:
        raise DataError(f"{path} is damaged: {one_line(error)}", AGAIN) from error
    return index_of(entries)


def _reader(path: str) -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise DataError(
            "reading ArrayRecord files needs the package array_record", "pip install 'sslbench[tfds]'"
        ) from error
    try:
        return array_record_module.ArrayRecordReader(path)
    except RuntimeError as error:
        raise DataError(f"cannot read {path}: {one_line(error)}", AGAIN) from error


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayRecords(InContainers):
    """Encoded images in records of ArrayRecord files.

    Attributes:
        containers: the files.
        stamps: their state when `places` was found.
        places: int64 (N, 4): container, record, offset in the record, size.
    """

    containers: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    places: npt.NDArray[np.int64]
    _readers: OpenFiles = dataclasses.field(default_factory=OpenFiles, repr=False)

    def read(self, index: int) -> bytes:
        """Return the bytes of one image."""
        container, record, offset, size = self.places[index].tolist()
        path = self.containers[container]
        try:
            check_unchanged(path, Path(path).stat(), self.stamps[container])
            content: bytes = self._readers.get(path, _MAX_OPEN, _reader).read([record])[0]
        except (RuntimeError, IndexError) as error:
            raise OSError(f"record {record} of {path}: {one_line(error)}") from error
        if len(content) < offset + size:
            raise OSError(f"record {record} of {path} is shorter than it was")
        return content[offset : offset + size]

    def path(self, index: int) -> str:
        """Return file and record: 'x.array_record-00000-of-00001[17]'."""
        return printable(f"{self.containers[self.places[index, 0]]}[{self.places[index, 1]}]")

    def place_key(self, index: int) -> str:
        """Return record, offset and size of an image."""
        return str(self.places[index, 1:].tolist())


FORMATS = ("tfrecord", "array_record")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_LABELS = ("label", "labels", "class", "class_label", "target", "category")
_NAMES = ("file_name", "filename", "image/filename", "image/file_name", "file", "path", "image_id", "id")
_MAX_SHARDS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Info:
    """Data set that TFDS has prepared.

    Attributes:
        folder: folder of its files.
        name: prefix of the files' names.
        format: 'tfrecord' or 'array_record'.
        template: pattern of the files' names.
        splits: name -> number of records in each of its files.
        keys: the features that are used.
        classes: the names of the classes, in the order of their numbers; empty if it gives none.
        several: an image has any number of labels.
        notes: warnings for the user.
    """

    folder: Path
    name: str
    format: str
    template: str
    splits: dict[str, tuple[int, ...]]
    keys: Keys
    classes: tuple[str, ...]
    several: bool
    notes: tuple[str, ...]

    def shard(self, split: str, number: int) -> Path:
        """Return the file of shard `number` of a split."""
        count = len(self.splits[split])
        values = {
            "DATASET": self.name,
            "SPLIT": split,
            "FILEFORMAT": self.format,
            "SHARD_INDEX": f"{number:05d}",
            "NUM_SHARDS": f"{count:05d}",
            "SHARD_X_OF_Y": f"{number:05d}-of-{count:05d}",
        }
        name = self.template
        for key, value in values.items():
            name = name.replace("{" + key + "}", value)
        if "/" in name or name.startswith("."):
            raise DataError(f"{self.folder}/dataset_info.json names a file that is not beside it: '{name}'")
        return self.folder / name


def find_folder(location: str) -> Path:
    """Return the folder with dataset_info.json: the location itself, the newest version below it, or a name's."""
    if not location:
        raise UsageError("'tfds:' names no data set", "Write tfds:FOLDER or tfds:NAME.")
    given = Path(location).expanduser()
    root = Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    places = [given, root / location.replace(":", "/")]
    for place in places:
        if (place / "dataset_info.json").is_file():
            return place
        found = [p.parent for pattern in ("*", "*/*") for p in matching(place, f"{pattern}/dataset_info.json")]
        if found:
            if len({folder.parent for folder in found}) > 1:
                names = sorted({str(folder.parent.name) for folder in found})
                raise DataError(
                    f"{location} has several data sets or configurations: {some(names, 5)}", "Name one of them."
                )
            return max(found, key=lambda folder: _version(folder.name))
    named = not location.startswith((".", "/", "~"))
    package = "" if importlib.util.find_spec("tensorflow_datasets") else "pip install 'sslbench[tfds]', then "
    fetch = f"To download it: {package}sslbench data download tfds:{location}. " if named else ""
    raise DataError(
        f"TFDS has prepared no such data set in {places[0]} or {places[1]}",
        f"{fetch}If it lies elsewhere, give tfds:FOLDER, or set TFDS_DATA_DIR.",
    )


def _version(name: str) -> tuple[int, ...]:
    parts = name.split(".")
    return tuple(int(part) if part.isdecimal() and part.isascii() else -1 for part in parts)


def read_info(folder: Path) -> Info:
    """Read dataset_info.json and features.json."""
    contents = []
    for name in ("dataset_info.json", "features.json"):
        contents.append(json_of(folder / name))
        if not isinstance(contents[-1], dict):
            raise DataError(f"{folder / name} is not a JSON object")
    info, features = contents
    form = str(info.get("fileFormat") or "tfrecord").lower()
    if form not in FORMATS:
        raise DataError(f"{folder} holds files of the format {form}", "Prepare it as tfrecord or array_record.")
    try:
        splits, templates = {}, set()
        for split in info["splits"]:
            splits[str(split["name"])] = tuple(int(length) for length in split["shardLengths"])
            templates.add(str(split.get("filepathTemplate") or _TEMPLATE).rsplit("/", 1)[-1])
        kinds = dict(_flat(features["featuresDict"]["features"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{folder}: dataset_info.json or features.json is not in TFDS's form: {error!r}") from error
    splits = {name: lengths for name, lengths in splits.items() if sum(lengths) > 0}
    if not splits or len(templates) != 1 or any(len(n) > _MAX_SHARDS or min(n) < 0 for n in splits.values()):
        raise DataError(f"{folder}/dataset_info.json lists no records")
    keys, several, notes = _keys(folder, kinds)
    file = folder / f"{keys.label.replace('/', '-')}.labels.txt"
    # -1: the numbers in the records are compared with the names when they are read.
    classes = class_names(file, -1) if keys.label and file.is_file() else ()
    return Info(folder, str(info.get("name")), form, templates.pop(), splits, keys, classes, several, notes)


def _flat(features: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return key in an example -> kind: 'Image', 'ClassLabel', 'Text', '[ClassLabel]' for a list of them."""
    for name, feature in features.items():
        kind = str(feature["pythonClassName"]).rpartition(".")[2]
        if "featuresDict" in feature:
            yield from _flat(feature["featuresDict"]["features"], f"{prefix}{name}/")
        elif "sequence" in feature:
            inner = feature["sequence"]["feature"]
            yield prefix + name, f"[{str(inner['pythonClassName']).rpartition('.')[2]}]"
        else:
            yield prefix + name, kind


def _keys(folder: Path, kinds: dict[str, str]) -> tuple[Keys, bool, tuple[str, ...]]:
    images = [key for key, kind in kinds.items() if kind == "Image"]
    labels = [key for key, kind in kinds.items() if kind in ("ClassLabel", "[ClassLabel]")]
    labels = labels or [key for key, kind in kinds.items() if key in _LABELS and kind == "Text"]
    if not images:
        raise DataError(f"{folder} has no feature that is an image, only: {some(list(kinds), 8)}")
    image = "image" if "image" in images else images[0]
    label = next((key for key in (*_LABELS, *labels) if key in labels), "")
    name = next((key for key in _NAMES if key in kinds and kinds[key] in ("Text", "FeatureConnector", "Tensor")), "")
    notes = tuple(
        f"{folder}: '{chosen}' is used, not {some([key for key in found if key != chosen])}"
        for chosen, found in ((image, images), (label, labels))
        if len(found) > 1
    )
    return Keys(image, label, name), kinds.get(label, "").startswith("["), notes


PREFIX = "tfds:"
_SLICE = re.compile(r"(?P<split>[\w.-]+?)\s*(?:\[(?P<range>[^\[\]]*)\]|:(?P<first>\d+%?))?")
_BOUND = re.compile(r"(?P<number>-?\d+)(?P<percent>%?)")


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'tfds:', or is a folder that TFDS has prepared."""
    if spec.startswith(PREFIX):
        return True
    return (Path(spec) / "dataset_info.json").is_file() and (Path(spec) / "features.json").is_file()


def open(spec: str) -> dict[str, Source]:
    """Return the images of a data set that TFDS has prepared; nothing is downloaded.

    The location is the folder with dataset_info.json, one above it, or the name below $TFDS_DATA_DIR
    (~/tensorflow_datasets). Behind it may stand one split: [train]; its first part: [train:20%], [train:100]; or a part
    as TFDS writes it: [train[100:200]], [train[20%:]], [train[-50:]]. Parts are counted in the order of the records.
    Ids are the file names that the data set keeps; if it keeps none, the split and the number of the record.
    """
    location, _, wanted = spec.removeprefix(PREFIX).partition("[")
    if wanted and not wanted.endswith("]"):
        raise UsageError(f"'{spec}' has an opening bracket and no closing one at its end")
    info = read_info(find_folder(location))
    if not wanted:
        return {split_name(split) or split: _open_split(spec, info, split, None) for split in info.splits}
    match = _SLICE.fullmatch(wanted[:-1].strip())
    if match is None:
        raise UsageError(
            f"'[{wanted}' in {spec} is not a part of a split", "Write [train], [train:20%], [train[100:200]]."
        )
    if match["split"] not in info.splits:
        raise UsageError(f"{info.folder} has no split '{match['split']}'", did_you_mean(match["split"], info.splits))
    part = f":{match['first']}" if match["first"] else match["range"]
    return {split_name(match["split"]) or match["split"]: _open_split(spec, info, match["split"], part)}


def _open_split(spec: str, info: Info, split: str, part: str | None) -> Source:
    images, own_names, of_records = _read(info, split)
    total = len(own_names)
    width = len(str(max(total - 1, 0)))
    names = [safe_name(name) for name in own_names]
    ids, notes = [printable(name) for name in names if name], info.notes
    if len(ids) < total or len(set(ids)) < total:
        ids = [f"{split}/{i:0{width}d}" for i in range(total)]
        if info.keys.name:
            notes = (*notes, f"{info.folder}: '{info.keys.name}' is not unique, so ids are numbers")
    first, stop = 0, total
    if part is not None:
        start, colon, end = part.partition(":")
        if not colon:
            raise UsageError(
                f"'[{part}]' in {spec} is not a part of a split", "Write [train[100:200]] or [train[:20%]]."
            )
        first, stop = _bound(spec, start, total, 0), _bound(spec, end, total, total)
    if first >= stop:
        raise UsageError(f"{spec} selects none of the {counted(total, 'image')} of {split}")
    labels, about = _labels(info, of_records)
    chosen = np.arange(first, stop, dtype=np.int64)
    name = spec if "[" in spec else f"{spec} ({split_name(split) or split})"
    found = by_split(name, ids[first:stop], labels.select(chosen), images.select(chosen), None, (*notes, *about))
    return found["all"]


def _bound(spec: str, text: str, total: int, default: int) -> int:
    """Return an end of a part; percentages are rounded to the nearest record, as in TFDS."""
    if not text.strip():
        return default
    match = _BOUND.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' in {spec} is neither a number nor a percentage")
    number = int(match["number"])
    if match["percent"]:
        if abs(number) > 100:
            raise UsageError(f"{text} in {spec} is more than 100 %")
        number = round(number * total / 100)
    # By the sign in the text: -0 counts from the end, too.
    return min(max(number + total if text.strip().startswith("-") else number, 0), total)


def _read(info: Info, split: str) -> tuple[Images, list[str], list[list[int | str]]]:
    """Return the images of the records of a split, their names and their labels."""
    lengths = info.splits[split]
    files = [info.shard(split, i) for i in range(len(lengths))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{info.folder}: {counted(len(missing), 'file')} of {split} missing: {some(missing)}", AGAIN)
    build = build_tfrecord if info.format == "tfrecord" else build_array_record
    kind = f"{info.format} {json.dumps(dataclasses.astuple(info.keys))}"
    found = [(file, *indexed(file, kind, functools.partial(build, keys=info.keys))) for file in files]
    for (file, index, _), length in zip(found, lengths, strict=True):
        if len(index.names) != length:
            raise DataError(
                f"{file} has {counted(len(index.names), 'record')}, dataset_info.json says {length:,}", AGAIN
            )
    names = [name for _, index, _ in found for name in index.names]
    labels = [json.loads(text) for _, index, _ in found for text in index.texts]
    if info.format == "tfrecord":
        parts = ((file, stamp, index.names, whole_places(index.numbers)) for file, index, stamp in found)
        return joined(parts), names, labels
    places = [
        np.column_stack([np.full(len(index.names), i), np.arange(len(index.names)), index.numbers])
        for i, (_, index, _) in enumerate(found)
    ]
    stacked = np.concatenate(places).astype(np.int64) if places else np.zeros((0, 4), dtype=np.int64)
    containers, stamps = tuple(str(file) for file, _, _ in found), tuple(stamp for _, _, stamp in found)
    return ArrayRecords(containers, stamps, stacked), names, labels


def _labels(info: Info, labels: list[list[int | str]]) -> tuple[Target, tuple[str, ...]]:
    """Return the labels of a whole split, so that every part of it has the same classes."""
    if not info.keys.label or not any(labels):
        return Unlabelled(len(labels)), (f"{info.folder}: no feature is a class label, so there are no labels",)
    # TFDS writes -1 in test parts whose labels are not public.
    if all(row == [-1] for row in labels):
        return Unlabelled(len(labels)), (f"{info.folder}: every label is -1, so there are no labels",)
    names = [[_class_name(info, value) for value in row] for row in labels]
    used = {name for row in names for name in row}
    listed = [name for name in info.classes if name in used] or sorted(used)
    if info.several:
        return multi_labels(names, classes=listed), ()
    odd = [i for i, row in enumerate(names) if len(row) != 1]
    if odd:
        raise DataError(f"{info.folder}: record {odd[0]} has {len(names[odd[0]])} labels ('{info.keys.label}')")
    return single_labels([row[0] for row in names], listed), ()


def _class_name(info: Info, value: int | str) -> str:
    if not info.classes or isinstance(value, str):
        return str(value)
    if not 0 <= value < len(info.classes):
        raise DataError(f"{info.folder}: a label is {value}, but there are {len(info.classes)} classes")
    return info.classes[value]


FORMAT = SourceFormat(__doc__, SampleReader(recognises, lambda request: open(request.spec), NoOptions))
