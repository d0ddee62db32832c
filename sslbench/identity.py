"""The keys of stored work: features, records, floors, checkpoints, and the columns and rows of a leaderboard.

All stored work is named by a key of this module. A key is a digest of the content that decides a number. Names of
files, folders and data, the machine and the way of computing are not part of any key.

================================================  ========  ======  ======  ===
change                                            features  record  column  row
================================================  ========  ======  ======  ===
a tensor of the weights                           new       new             new
the backbone's name or one of its options         new       new             new
timm's version, for timm's models                 new       new             new
code, structure or state of a user's module       new       new             new
a tensor or layer of a head, for its layers       new       new             new
a tensor or layer of a head, for other layers     new
a value of the preprocessing, code of a decoder   new       new             new
precision, dtype of the stored features           new       new             new
images that decide the ranges of int8             new       new
the layer or its pool                             file      new             new
content, ids or number of images                  new       new     new
labels, classes, queries, groups of a split                 new     new
content of further sets, versions of changes                new     new
the protocol, its version, a setting                        new     new
code of a user's protocol                                   new     new
benchmark or preset: name, version, file                    new     name
the metric that a benchmark puts first                      new     new
the metric that a board or comparison is asked for                  new
the members of a group (`--groups`)                         asked   group
part of train, of a network finetuned on it                 new     new
images that could not be read                                       new
seed of splits, hold-outs and resamples                     new
number of trainings (`seeds=`)                              new
`--groups`, `--no-overlaps`, `--no-floors`                  asked
where a value comes from, names and paths of files
batch size, workers, device, number of processes
torch, Pillow, the operating system
================================================  ========  ======  ======  ===

"features": the folder of the feature store (`FeatureKey`); each layer is a file in it. "record": the id of a record,
which also names floors in the cache and the checkpoints of protocols that train on images (`record_id`). "asked": the
record keeps its id and is replaced, and a suite does not take it for finished work (`Asked`). "column":
`comparability_key`; a result without a benchmark joins the column of the only benchmark that measures the same, hence
"name", and the members count for the metric of a group only. "row": `row_key`; the seed is not part of it, because the
seeds of one row are averaged; neither is the number of trainings, of which the records are left out beside that of
their mean.

Features made elsewhere: the fingerprint of their data holds ids, labels, classes and groups, and their digest stands
for the weights (`features.external.FeaturePair`). Without ids the rows are taken in their order.

Versions of torch and Pillow change roundings, as another device does, and stand in the record. sslbench's own networks
and its way from a file to features change with `ENCODING`, which every key holds; a protocol has its own `version`.
Features of a module passed from Python are kept for the process only: no file tells all of its code.

A run gets of a backbone and of samples what its key holds, and nothing else (`FeatureInputs` and `ImageInputs` of
`protocols`, `evaluation.images.as_hashed`, `Source.as_hashed`). Where the settings of a protocol say the sizes of
images, these are no part of the preprocessing; its `trained_side` is, if the settings are `enlarge=trained`.

This module knows values only and lies at the level of records: the feature store above it and the leaderboard, which
must not load torch, use the same keys. The values come from their owners: `Backbone.identity`, `Source.fingerprint`,
`Preprocessing.values`, `user_code.sha256`.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sslbench.results import BenchmarkUsed, DataUsed, PresetUsed, ProtocolUsed, Result, WeightsUsed, canonical

ENCODING = 1
"""Version of the computation from image files to features, raised when the same input gives other features."""


def encoding_of(preprocessing: Mapping[str, Any]) -> int:
    """Return `ENCODING`; one more for one channel, for which grey pictures once kept 8 of their 16 bits."""
    return ENCODING + (len(preprocessing.get("mean", ())) == 1)


def digest(value: Any, digits: int = 16) -> str:
    """Return the first hex digits of the SHA-256 of a value's canonical text.

    >>> digest({"b": (1, 2), "a": None}) == digest({"a": None, "b": [1, 2]})
    True
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:digits]


@dataclasses.dataclass(frozen=True)
class FeatureKey:
    """Key of a feature store entry: everything that features depend on except the layer.

    Attributes:
        weights: SHA-256 of the backbone's tensors.
        backbone: name and other properties of the backbone that decide the forward pass (`Backbone.identity`).
        images: fingerprint of ids and image contents.
        preprocessing: values that decide the pixels.
        precision: precision of the computation, 'fp32', 'bf16', 'fp16' or 'int8'.
        dtype: dtype of the stored array, 'float32' or 'float16'.
    """

    weights: str
    backbone: dict[str, str]
    images: str
    preprocessing: dict[str, Any]
    precision: str
    dtype: str
    encoding: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoding", self.encoding or encoding_of(self.preprocessing))

    def digest(self) -> str:
        """Return the 16 hex digits that end the name of the entry."""
        return digest(self)


@dataclasses.dataclass(frozen=True)
class Comparability:
    """Key of a table's column: the properties that comparable results share.

    Weights, backbone, layer, preprocessing, precision and dtype may differ: they are compared, and make the row
    (`row_key`). The seed may differ: several seeds of one row are averaged, and their number is shown. The benchmark's
    name does not matter: the same measurement may be made with and without it.

    Attributes:
        train_part: part of train that a network was finetuned on; '' for all of it.
        further: name, fingerprint and number of used images of each further set.
    """

    protocol: str
    version: int
    settings: str
    train: str
    test: str
    n_train: int
    n_test: int
    metric: str
    train_part: str = ""
    unreadable: tuple[str, ...] = ()
    groups: str = ""
    code: str = ""
    further: tuple[tuple[str, str, int], ...] = ()


def _pixels(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a preprocessing without their origin, which is text."""
    return {key: value for key, value in preprocessing.items() if key != "origin"}


def _compared_weights(result: Result) -> list[Any]:
    """Return the weights of a row. Untrained backbones count as equal, although each seed gives other tensors."""
    used = result.weights
    code = {name: value for name, value in used.code.items() if not (used.untrained and name == "probe")}
    return ["untrained" if used.untrained else used.sha256, used.backbone, code]


def _shared_data(result: Result) -> dict[str, Any]:
    data = result.data
    return {
        "train": data.train.fingerprint,
        "test": data.test.fingerprint,
        "n_train": data.train.n_used,
        "n_test": data.test.n_used,
        "train_part": data.train_part,
        "unreadable": tuple(sorted(image.id for image in data.unreadable)),
        "further": tuple((part.name, part.fingerprint, part.n_used) for part in data.further),
    }


def _counts(
    *,
    record: Callable[[Any], Any] = lambda value: value,
    row: Callable[[Result], list[Any]] = lambda result: [],
    column: Callable[[Result], dict[str, Any]] = lambda result: {},
) -> dict[str, Callable[[Any], Any]]:
    """Return the shares of a field of `Measurement` in the keys of records, rows and columns."""
    return {"record": record, "row": row, "column": column}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """Everything that decides the numbers of a run, and its place on a leaderboard, as records hold it.

    A run gets nothing else (`protocols.FeatureInputs`, `protocols.ImageInputs`), and every key follows from these
    fields: each is in the key of a record, as it is or by the part that counts; a field that a leaderboard compares is
    in the key of the row, one that must be equal in that of the column.
    """

    weights: WeightsUsed = dataclasses.field(
        metadata=_counts(record=lambda used: [used.sha256, used.backbone, used.code], row=_compared_weights)
    )
    layer: str = dataclasses.field(metadata=_counts(row=lambda result: [result.feature]))
    preprocessing: Mapping[str, Any] = dataclasses.field(
        metadata=_counts(record=_pixels, row=lambda result: [_pixels(result.preprocessing)])
    )
    precision: str = dataclasses.field(metadata=_counts(row=lambda result: [result.precision]))
    feature_dtype: str = dataclasses.field(metadata=_counts(row=lambda result: [result.feature_dtype]))
    protocol: ProtocolUsed = dataclasses.field(
        metadata=_counts(
            column=lambda result: {
                "protocol": result.protocol.name,
                "version": result.protocol.version,
                "settings": canonical(result.protocol.settings),
                "code": result.protocol.code,
            }
        )
    )
    benchmark: BenchmarkUsed | None = dataclasses.field(metadata=_counts())
    preset: PresetUsed | None = dataclasses.field(
        # The publication is text about the same settings.
        metadata=_counts(record=lambda used: used and [used.name, used.version, used.sha256, used.modified])
    )
    data: DataUsed = dataclasses.field(
        metadata=_counts(
            record=lambda data: [
                *(data.train.fingerprint, data.test.fingerprint),
                *(f"{part.name} {part.fingerprint}" for part in data.further),
            ],
            column=_shared_data,
        )
    )
    seed: int = dataclasses.field(metadata=_counts())
    seeds: int | None = dataclasses.field(
        default=None, metadata=_counts(record=lambda seeds: None if seeds == 1 else seeds)
    )
    calibration: str | None = dataclasses.field(default=None, metadata=_counts())


def record_id(measured: Measurement | Result) -> str:
    """Return the 16 hex digits that name a record; the machine, batch size, workers and time are not part of them."""
    parts: dict[str, Any] = {"encoding": encoding_of(measured.preprocessing)}
    for field in dataclasses.fields(Measurement):
        value = field.metadata["record"](getattr(measured, field.name))
        # A field that came later leaves the keys of older records as they were.
        if value is not None or field.default is dataclasses.MISSING:
            parts[{"feature_dtype": "dtype"}.get(field.name, field.name)] = value
    return digest(parts)


def row_key(result: Result) -> str:
    """Return the key of a result's row in a table: everything that is compared, apart from the seed."""
    return canonical([part for field in dataclasses.fields(Measurement) for part in field.metadata["row"](result)])


def comparability_key(result: Result, metric: str | None = None) -> Comparability:
    """Return the key that two results must share to be compared by `metric` (default: the headline)."""
    metric = metric or result.headline
    shared: dict[str, Any] = {"metric": metric, "groups": _groups(result, metric)}
    for field in dataclasses.fields(Measurement):
        shared |= field.metadata["column"](result)
    return Comparability(**shared)


def groups_digest(ids: Sequence[str], groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return, for each column, a digest of the group of every test sample."""
    return {name: digest([list(ids), list(column)]) for name, column in groups.items()}


def _groups(result: Result, metric: str) -> str:
    """Return the members of a worst-group metric's groups, or for older records the groups and their sizes; else ''."""
    found = re.fullmatch(r"worst_group\((.*)\)\.\w+", metric)
    if not found:
        return ""
    if result.asked is not None and found[1] in result.asked.groups:
        return result.asked.groups[found[1]]
    groups = result.groups.get(found[1], ())
    return ", ".join(sorted(f"{group.name} {group.metric.n}" for group in groups))
