"""Metadata of TFDS beside the records: dataset_info.json, features.json and the names of the classes."""

import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sslbench.data.containers.members import class_names
from sslbench.data.containers.sniff import json_of
from sslbench.data.formats.tfds.tfrecord import Keys
from sslbench.data.regular import matching
from sslbench.data.wording import some
from sslbench.errors import DataError, UsageError

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
