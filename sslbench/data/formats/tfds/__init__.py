"""TFDS without TensorFlow (`tfds:FOLDER`, `tfds:cifar10[train:20%]`): TFRecord or ArrayRecord files on disk."""

import dataclasses
import functools
import json
import re
from pathlib import Path

import numpy as np

from sslbench.data.containers.index import indexed
from sslbench.data.containers.members import by_split, safe_name, split_name
from sslbench.data.containers.slices import joined, whole_places
from sslbench.data.format import NoOptions, SampleReader, SourceFormat
from sslbench.data.formats.tfds.array_record import ArrayRecords, build_array_record
from sslbench.data.formats.tfds.info import Info, find_folder, read_info
from sslbench.data.formats.tfds.tfrecord import AGAIN, build_tfrecord
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Images, Target
from sslbench.text import printable

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


@dataclasses.dataclass(frozen=True)
class _Shards:
    """Records of a split."""

    images: Images
    names: list[str]
    labels: list[list[int | str]]


def _open_split(spec: str, info: Info, split: str, part: str | None) -> Source:
    shards = _read(info, split)
    total = len(shards.names)
    width = len(str(max(total - 1, 0)))
    names = [safe_name(name) for name in shards.names]
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
    labels, about = _labels(info, shards.labels)
    chosen = np.arange(first, stop, dtype=np.int64)
    name = spec if "[" in spec else f"{spec} ({split_name(split) or split})"
    found = by_split(name, ids[first:stop], labels.select(chosen), shards.images.select(chosen), None, (*notes, *about))
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


def _read(info: Info, split: str) -> _Shards:
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
        return _Shards(joined(parts), names, labels)
    places = [
        np.column_stack([np.full(len(index.names), i), np.arange(len(index.names)), index.numbers])
        for i, (_, index, _) in enumerate(found)
    ]
    stacked = np.concatenate(places).astype(np.int64) if places else np.zeros((0, 4), dtype=np.int64)
    containers, stamps = tuple(str(file) for file, _, _ in found), tuple(stamp for _, _, stamp in found)
    return _Shards(ArrayRecords(containers, stamps, stacked), names, labels)


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
