"""Outcome of a protocol, and the result record (one JSON file) made from it."""

import dataclasses
import html
import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.labels import LabelKind
from sslbench.metrics import catalog
from sslbench.metrics.intervals import Interval
from sslbench.metrics.sample_means import SampleMeans
from sslbench.names import did_you_mean
from sslbench.results import tables

KnownBy = Literal["ids", "rows", "features"]
"""Identity of samples of features made elsewhere, see `DataUsed`."""


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """First images that a query found.

    Attributes:
        query: id of the test sample.
        found: id of each image, nearest first, and whether it is right.
        part: that the images found belong to.
    """

    query: str
    found: tuple[tuple[str, bool], ...]
    part: Literal["train", "test"] = "test"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsUsed:
    """Evaluated weights.

    Attributes:
        name: name given by the user, normally the file name.
        source: address that the file was fetched from, with its commit on the Hub; empty for local files.
        sha256: digest of the tensors as given to the backbone, equal for copies of the file in other formats.
        format: format of the key names in the file ('torchvision', 'vissl', ...).
        loaded: number of the backbone's `total` tensors that came from the file.
        partial: True if the user allowed missing tensors.
        untrained: True if the backbone is as initialised.
        changed: changes of the file's tensors by loading, in words: another dtype, positions resized, a stem mapped to
            another number of channels.
        code: identity of the forward pass besides tensors (`Backbone.identity`): timm's version, digests of a user's
            module; empty for sslbench's own networks and in older records.
    """

    name: str
    path: str | None
    sha256: str
    format: str
    backbone: str
    loaded: int
    total: int
    partial: bool = False
    untrained: bool = False
    changed: tuple[str, ...] = ()
    code: dict[str, str] = dataclasses.field(default_factory=dict)
    source: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProtocolUsed:
    """Protocol with all its settings, defaults included; `code` is the digest of a user's own protocol."""

    name: str
    version: int
    settings: dict[str, Any]
    code: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkUsed:
    """Named benchmark.

    Attributes:
        sha256: digest of its resolved text.
        modified: True if the user overrode some of it.
        metric: its leading metric; empty: that of its protocol.
    """

    name: str
    version: int
    sha256: str
    modified: bool = False
    metric: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PresetUsed:
    """Preset that the protocol was run by; `modified` by further settings of the user."""

    name: str
    version: int
    source: str
    sha256: str
    modified: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataPart:
    """Training or test data: `n` samples, of which `n_used` could be read and were used.

    Attributes:
        groups: number of groups (videos, patients, images that crops are from) of the used samples; None if every
            sample stands for itself. Hold-outs and intervals keep groups together.
    """

    name: str
    fingerprint: str
    n: int
    n_used: int
    classes: tuple[str, ...]
    groups: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExcludedImage:
    """Image that was left out because it cannot be read."""

    id: str
    path: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataUsed:
    """Training and test data; `how` is one sentence about the origin of the split.

    Attributes:
        further: other sets of images that decide the metrics: changed versions of test, further test sets.
        label_noise: share of the train labels that were replaced by wrong ones (--noise).
        split_seed: seed of the split, where it is another than that of the training (`Training`).
        known_by: identity of the samples; None: content and labels of the images. Of features made elsewhere: 'ids' and
            labels, or labels of the 'rows' in their order, which do not tell other images with the same labels apart,
            or the 'features', where there are no labels.
    """

    train: DataPart
    test: DataPart
    how: str
    labels: LabelKind
    unreadable: tuple[ExcludedImage, ...] = ()
    further: tuple[DataPart, ...] = ()
    label_noise: float = 0.0
    split_seed: int | None = None
    known_by: KnownBy | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricValue:
    """Value (percent for rates) with its 95 % interval over `n` test samples; null where not computable."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None


class Metrics(dict[str, MetricValue]):
    """Metrics of a record by name; a name that it lacks is answered with those that it has.

    >>> Metrics({"mAP": MetricValue(value=50.0)})["map"]
    Traceback (most recent call last):
    KeyError: "no metric 'map'; there are: mAP"
    """

    def __missing__(self, name: str) -> MetricValue:
        near = did_you_mean(name, self)
        hint = f" {near}" if near.startswith("Did you mean") else ""
        raise KeyError(f"no metric '{name}'; there are: {', '.join(self) or 'none'}{hint and '.'}{hint}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One of several trainings that differ in their seed; it has a record of its own.

    Attributes:
        seed: of the training.
        record: id of its record.
        record_file: name of its file, beside the record of all.
        metrics: name -> value.
    """

    seed: int
    record: str
    record_file: str
    metrics: dict[str, float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """Lowest and highest value of a metric over several trainings; null where not computable."""

    lowest: float | None
    highest: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupValue:
    """Headline metric on the test samples of one group; `n` of the metric is their number."""

    name: str
    metric: MetricValue


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceCompared:
    """Published value for these weights on this benchmark, and its difference from the measured one.

    Attributes:
        weights: name of the weights in the source.
        metric: name of the metric.
        published: value in the source.
        source: paper or file.
        tolerance: largest difference of a correct run.
        difference: measured less published; None where nothing was measured.
        within: True if the difference is within the tolerance.
    """

    weights: str
    metric: str
    published: float
    source: str
    tolerance: float
    difference: float | None
    within: bool

    def line(self) -> str:
        """Return one line of text: 'AP50 82.1, published 82.4 (MoCo v2): -0.30, within 0.5'."""
        if self.difference is None:
            return f"{self.metric} is missing, published {self.published:g} ({self.weights}, {self.source})"
        verdict = "within" if self.within else "NOT within"
        return (
            f"{self.metric} {self.published + self.difference:.2f}, published {self.published:g} ({self.weights}, "
            f"{self.source}): {self.difference:+.2f}, {verdict} the tolerance of {self.tolerance:g}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlaps:
    """Test images suspected to be in train too; the record's metrics include them.

    Attributes:
        n: number of suspected images.
        exact: number of those with the same content; the others look alike.
        by: method of comparison.
        without: headline metric on the other test images; None where there are none, or the metric is not one of
            per-sample scores.
        problem: reason why images that look alike could not be found; empty if they could.
        pairs_file: name of the CSV beside the record that lists the pairs; None if there are none.
    """

    n: int
    exact: int
    by: str
    without: MetricValue | None = None
    problem: str = ""
    pairs_file: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Time and peak memory of one stage; None where not known.

    Attributes:
        seconds: wall-clock time.
        ram_mib: peak memory of this process in MiB, without those that decode images.
        gpu_mib: peak memory that torch allocated on the CUDA device, in MiB.
    """

    seconds: float
    ram_mib: float | None = None
    gpu_mib: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of the measurement; not part of its identity.

    Attributes:
        parameters: number of parameters of the backbone, without a classifier.
        gflops: 10^9 floating-point operations of the backbone for one image, a multiply-add counting as two.
        images_per_second: speed of encoding, decoding included; None when the features were stored already.
        stages: 'extract' (of train and test, all layers) and the protocol's name.
    """

    parameters: int | None = None
    gflops: float | None = None
    images_per_second: float | None = None
    stages: dict[str, Stage] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """Hardware of the run; not part of the measurement's identity."""

    device: str
    cpu: str
    threads: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkingFolder:
    """Folder that a command ran in, and its state in git; not part of the measurement's identity.

    Attributes:
        path: of the folder.
        commit: the commit that is checked out; None outside git.
        changed: True if files that git tracks differ from the commit; None outside git.
    """

    path: str
    commit: str | None = None
    changed: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestedParts:
    """Requested parts of a record beside its metrics; not part of the measurement's identity.

    Attributes:
        groups: column of the breakdown -> digest of the group of every test sample.
        overlaps: True if test images that are in train too are searched for.
        floors: True if chance, majority, pixels and the untrained backbone stand beside the metrics.
        baseline: True if protocols that train on images also train on the untrained backbone.
        against: ids of the records that a detector is compared with.
    """

    groups: dict[str, str] = dataclasses.field(default_factory=dict)
    overlaps: bool = True
    floors: bool = True
    baseline: bool = False
    against: tuple[str, ...] = ()


__all__ = [
    "SCHEMA",
    "BenchmarkUsed",
    "Costs",
    "DataPart",
    "DataUsed",
    "ExcludedImage",
    "GroupValue",
    "Hardware",
    "MetricValue",
    "NetworkWeights",
    "Outcome",
    "Overlaps",
    "PresetUsed",
    "ProtocolUsed",
    "Range",
    "ReferenceCompared",
    "RequestedParts",
    "Result",
    "Results",
    "Stage",
    "Training",
    "WeightsUsed",
    "WorkingFolder",
    "as_recorded",
    "canonical",
    "mean_line",
    "percent",
    "percent_metrics",
    "plain",
]


@dataclasses.dataclass(frozen=True)
class NetworkWeights:
    """Network that a protocol has trained, for a weights file beside the record.

    Attributes:
        backbone: name of the architecture.
        tensors: canonical name -> tensor of the backbone.
        heads: name -> tensor of its classifier.
        metadata: provenance: numbers and text.
    """

    backbone: str
    tensors: Mapping[str, Any]
    heads: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of a protocol. Rates are fractions here, as in scikit-learn; records and tables hold percent.

    Attributes:
        metrics: name -> (value, low, high): the value on test and its 95 % interval; NaN where not computable.
        headline: name of the leading metric ('top1', 'mAP').
        scores: float32 (N_test, C), higher means more likely, columns in the order of the classes.
        draws: for metrics that are means over several draws of train, the scores of each; `scores` are the first.
        per_class: class name -> recall (single label) or average precision (multi-label); NaN where not computable.
        train: headline metric of the final model on its training samples; NaN if meaningless.
        selected: settings and data of the choice, e.g. {'k': 20, 'on': 'held-out 10 % of train', 'score': 0.91};
            empty when nothing was chosen. Its scores are as computed, in records too: rates are fractions.
        variants: results of the settings that were not chosen, e.g. {'k=10': {'top1': 0.9}}.
        converged: False marks the row; None for protocols without an iterative solver.
        notes: remarks on the numbers, one sentence each.
        absolute: metrics of a user's protocol that are no fractions (a rank, an exponent), which records hold as they
            are and not in percent; the unit of sslbench's own metrics is known.
        probabilities: conversion of scores to probabilities: 'softmax', or 'scores' for none; None where there is no
            conversion, as for the decision values of SVMs.
        weights: trained network; None where none is trained.
        neighbours: first images found by a few queries, for a sheet of pictures.
        chance: expected metrics of a random answer, of protocols that predict no classes; None: chance is that of
            guessing classes.
        floors: further floors that the protocol computes, e.g. {'position only': {'mIoU': 0.1}}.
        picture: PNG of some test images with prediction and truth, written beside the record; empty: none.
        means: metrics that are means over the test samples, with the outcomes of each sample; None where there are
            none beside those computed from `scores`.
        scored: number of test samples that the metrics are over; None: all.
    """

    metrics: dict[str, Interval]
    headline: str
    scores: npt.NDArray[np.float32]
    per_class: dict[str, float]
    train: float = float("nan")
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    variants: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    converged: bool | None = None
    notes: tuple[str, ...] = ()
    absolute: frozenset[str] = frozenset()
    probabilities: Literal["softmax", "scores"] | None = None
    draws: tuple[npt.NDArray[np.float32], ...] = ()
    weights: NetworkWeights | None = None
    chance: Mapping[str, float] | None = None
    floors: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    picture: bytes = b""
    neighbours: tuple[Neighbours, ...] = ()
    means: SampleMeans | None = None
    scored: int | None = None


SCHEMA = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Record of one measurement: one JSON file per (weights, layer, protocol, data).

    Rates are percent, but for those in `selected`, which are fractions. Numbers that cannot be computed are None (JSON
    has no NaN).

    Attributes:
        schema: version of this class; a larger one than `SCHEMA` is not read.
        id: `identity.record_id` of the measurement.
        created: UTC, ISO 8601.
        layer: name of the feature, with its pooling.
        preprocessing: values of `Preprocessing`, with their origin.
        precision: precision of the forward pass ('fp32', 'bf16').
        feature_dtype: dtype of the stored features; float32 in older records, which lack it.
        asked: requested parts beside the metrics; None in older records.
        headline: name of the leading metric; a key of `metrics`.
        per_class_metrics: metric -> class -> value, from the per-sample scores beside the record: 'n' (samples),
            'recall', 'precision', 'f1', 'average_precision', 'auroc', ...
        groups: column of the manifest -> headline metric on each of its groups, the worst first. The worst is also
            a metric of its own, `worst_group(COLUMN).METRIC`.
        overlaps: test images suspected to be in train too; None: not searched for.
        train: headline metric on the training samples.
        probabilities: see `Outcome`.
        costs: time, memory and floating-point operations.
        references: published values for these weights on this benchmark, compared.
        floors: 'chance', 'majority', 'pixels', 'untrained', 'constant box' (detection), ... -> metric -> value.
        missing_floors: floors among 'pixels' and 'untrained' that are missing -> the reason.
        working_folder: folder that the command ran in, with its git commit; None in older records.
        seeds: number of trainings that the metrics are means over; None for a protocol that trains no network or head
            by stochastic gradient descent, and in older records.
        trainings: each of several trainings.
        ranges: metric -> lowest and highest value over them.
        timings: stage -> seconds.
        scores_file: name of the file of per-sample scores beside the record.
        weights_file: name of the weights file beside the record, where the protocol trained a network.
        objects_file: name of the file of the objects of the test part beside the record, for detections.
        file: path that the record was read from; not written.
    """

    schema: int = SCHEMA
    id: str
    created: str
    command: str
    weights: WeightsUsed
    layer: str
    preprocessing: dict[str, Any]
    precision: str
    feature_dtype: str = "float32"
    asked: RequestedParts | None = None
    protocol: ProtocolUsed
    benchmark: BenchmarkUsed | None = None
    preset: PresetUsed | None = None
    data: DataUsed
    headline: str
    metrics: dict[str, MetricValue]
    per_class: dict[str, float | None] = dataclasses.field(default_factory=dict)
    per_class_metrics: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    groups: dict[str, tuple[GroupValue, ...]] = dataclasses.field(default_factory=dict)
    overlaps: Overlaps | None = None
    train: float | None = None
    probabilities: Literal["softmax", "scores"] | None = None
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    variants: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    converged: bool | None = None
    references: tuple[ReferenceCompared, ...] = ()
    floors: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    missing_floors: dict[str, str] = dataclasses.field(default_factory=dict)
    seed: int
    seeds: int | None = None
    trainings: tuple[Training, ...] = ()
    ranges: dict[str, Range] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: Hardware | None = None
    working_folder: WorkingFolder | None = None
    timings: dict[str, float] = dataclasses.field(default_factory=dict)
    costs: Costs | None = None
    notes: tuple[str, ...] = ()
    scores_file: str | None = None
    weights_file: str | None = None
    objects_file: str | None = None
    file: Path | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Let metrics name themselves where one is asked for that is not there."""
        object.__setattr__(self, "metrics", Metrics(self.metrics))

    def row(self) -> dict[str, Any]:
        """Return one row of a table: weights, protocol and data, the leading metric with its interval, all metrics."""
        leading = self.metrics[self.headline]
        return {
            "weights": self.weights.name,
            "layer": self.layer,
            "protocol": self.protocol.name,
            "test": self.data.test.name,
            "n": self.data.test.n_used,
            "metric": self.headline,
            "value": leading.value,
            "low": leading.low,
            "high": leading.high,
            **{name: metric.value for name, metric in self.metrics.items()},
        }

    def metric_rows(self) -> list[dict[str, Any]]:
        """Return one row per metric: value, interval and floors."""
        floors = {floor: values for floor, values in self.floors.items() if values}
        return [
            {
                "metric": name,
                "value": metric.value,
                "low": metric.low,
                "high": metric.high,
                **{floor: values.get(name) for floor, values in floors.items()},
            }
            for name, metric in self.metrics.items()
        ]

    def title(self) -> str:
        """Return weights, layer, protocol and data in one line."""
        return f"{self.weights.name}, {self.layer}, {self.protocol.name}: {self.data.test.name}, {self.data.how}"

    def __str__(self) -> str:
        """Return all metrics with their intervals and floors, and the notes."""
        images = [line] if (line := self.images()) else []
        return "\n".join([self.title(), *images, tables.as_text(self.metric_rows()), *self.notes])

    def images(self) -> str:
        """Return the size of the images with its origin in a line; '' where there were none, or no size was set."""
        steps = [f"{step} {_size(self.preprocessing[step])}" for step in _SIZES if self.preprocessing.get(step)]
        origin = self.preprocessing.get("origin")
        return f"images: {', '.join(steps)}" + (f" ({origin})" if origin else "") if steps else ""

    def show(self) -> None:
        """Print all metrics with their intervals and floors."""
        sys.stdout.write(f"{self}\n")

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a line per metric."""
        return tables.as_frame(self.metric_rows())

    def _repr_html_(self) -> str:
        """Return the metrics as a table, for notebooks."""
        return f"<p>{html.escape(self.title())}</p>{tables.as_html(self.metric_rows())}"


_SIZES = ("resize", "squash", "crop")


def _size(size: Any) -> str:
    """Return the height x width of a step, or its single number.

    >>> _size((224, 224)), _size(256)
    ('224x224', '256')
    """
    return "x".join(map(str, size)) if isinstance(size, list | tuple) else str(size)


class Results(list[Result]):
    """List of results that notebooks display as a table.

    `print` shows the same; the single result's metrics are `results[0].metrics`, or `results.metrics`.

    >>> Results().to_pandas().empty
    True
    """

    @property
    def metrics(self) -> dict[str, MetricValue]:
        """Metrics of the only result.

        Raises:
            AttributeError: there are several results, or none.
        """
        if len(self) != 1:
            raise AttributeError(
                f"{len(self)} results have no metrics in common: take those of one, results[0].metrics"
            )
        return self[0].metrics

    def __repr__(self) -> str:
        """Return a line per result, the leading metric with its interval, and the preprocessing of the images."""
        images = dict.fromkeys(line for result in self if (line := result.images()))
        return "\n".join([tables.as_text(self._rows()), *images]) if self else "no results"

    __str__ = __repr__

    def _rows(self) -> list[dict[str, Any]]:
        """Return the rows of the short table."""
        short = ("weights", "layer", "protocol", "test", "n", "metric", "value", "low", "high")
        return [{name: result.row()[name] for name in short} for result in self]

    def show(self) -> None:
        """Print a line per result, the leading metric with its interval, and the preprocessing of the images."""
        sys.stdout.write(f"{self}\n")

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a line per result, and a column per metric."""
        return tables.as_frame([result.row() for result in self])

    def _repr_html_(self) -> str:
        """Return the table of `show` as HTML, for notebooks."""
        return tables.as_html(self._rows())


def mean_line(metric: str, values: Sequence[float | None], first_seed: int) -> str:
    """Return 'AP 21.6, the mean of 3 trainings: 18.0, 21.2, 23.6 (seeds 0 to 2)'."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"{metric} of {len(values)} trainings is not computable for each"
    digits = 1 if metric == "AP" else 2
    each = ", ".join(f"{value:.{digits}f}" for value in known)
    mean = sum(known) / len(known)
    last = first_seed + len(known) - 1
    return f"{metric} {mean:.{digits}f}, the mean of {len(known)} trainings: {each} (seeds {first_seed} to {last})"


def percent(fraction: float) -> float | None:
    """Return a fraction in percent, None when it is NaN.

    >>> percent(0.25)
    25.0
    """
    return None if math.isnan(fraction) else 100.0 * float(fraction)


def percent_metrics(outcome: Outcome, n: int) -> dict[str, MetricValue]:
    """Return the metrics of an outcome in the units of records; `n` is the number of test samples."""
    n = n if outcome.scored is None else outcome.scored
    return {
        name: MetricValue(
            **{part: as_recorded(name, v, outcome.absolute) for part, v in zip(_PARTS, values, strict=True)}, n=n
        )
        for name, values in outcome.metrics.items()
    }


_PARTS = ("value", "low", "high")


def as_recorded(name: str, value: float, absolute: Collection[str]) -> float | None:
    """Return a metric's value in the unit of records: percent for rates and for unknown metrics not in `absolute`.

    None when it is NaN.
    """
    metric = catalog.known(name)
    if metric is not None:
        return metric.recorded(value)
    if name not in absolute:
        return percent(value)
    return None if math.isnan(value) else float(value)


def plain(value: Any) -> Any:
    """Return a value in JSON's types: dataclasses are mappings, tuples lists, NumPy numbers plain, NaN and inf null.

    >>> plain({"a": (1, np.float32(0.5)), "b": float("nan")})
    {'a': [1, 0.5], 'b': None}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "file"}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def canonical(value: Any) -> str:
    """Return the canonical JSON of a value: sorted keys and no spaces.

    >>> canonical({"b": 1, "a": (2,)})
    '{"a":[2],"b":1}'
    """
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
