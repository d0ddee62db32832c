"""What an evaluation leaves behind: a protocol's outcome, and the record (one JSON file) made from it."""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsUsed:
    """The weights that were measured.

    Attributes:
        name: as the user calls them, normally the file name.
        sha256: of the tensors as they were given to the backbone, so a copy of the file in another format agrees.
        format: whose key names the file has ('torchvision', 'vissl', ...).
        loaded: how many of the backbone's `total` tensors came from the file.
        partial: the user allowed tensors to be missing.
        untrained: the backbone was left as it is initialised.
        changed: what loading did to tensors of the file, in words: another dtype, positions resized, a stem mapped to
            another number of channels.
        code: what besides tensors decides the forward pass (`Backbone.identity`): timm's version, digests of a user's
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProtocolUsed:
    """The protocol with all its settings, also those left at their default; `code` is a digest of a user's own."""

    name: str
    version: int
    settings: dict[str, Any]
    code: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkUsed:
    """The named benchmark.

    Attributes:
        sha256: of its resolved text.
        modified: the user overrode some of it.
        metric: that it puts first; empty: the usual one of its protocol.
    """

    name: str
    version: int
    sha256: str
    modified: bool = False
    metric: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PresetUsed:
    """The published way that the protocol was run in; `modified` says that the user's settings came on top of it."""

    name: str
    version: int
    source: str
    sha256: str
    modified: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataPart:
    """One side of the data: `n` samples were there, `n_used` of them could be read and were used.

    Attributes:
        groups: how many groups (videos, patients, images that crops are from) the samples used belong to; None if every
            sample stands for itself. Choices and intervals keep groups together.
    """

    name: str
    fingerprint: str
    n: int
    n_used: int
    classes: tuple[str, ...]
    groups: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unreadable:
    """One image that was left out because it cannot be read."""

    id: str
    path: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataUsed:
    """What was trained and tested on; `how` is one sentence about where the split comes from."""

    train: DataPart
    test: DataPart
    how: str
    labels: Literal["single", "multi", "value", "none"]
    unreadable: tuple[Unreadable, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """A value (percent for rates) with its 95 % interval over `n` test samples; null where not computable."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The headline metric on the test samples of one group; `n` of the metric says how many they are."""

    name: str
    metric: Metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceCompared:
    """A published value for these weights on this benchmark, and the distance of the measured one from it.

    Attributes:
        weights: as the source calls them.
        metric: that is compared.
        published: value in the source.
        source: of it.
        tolerance: largest distance of a correct run.
        difference: measured less published; None where nothing was measured.
        within: whether the difference is within the tolerance.
    """

    weights: str
    metric: str
    published: float
    source: str
    tolerance: float
    difference: float | None
    within: bool

    def line(self) -> str:
        """Return one line for people: 'AP50 82.1, published 82.4 (MoCo v2): -0.30, within 0.5'."""
        if self.difference is None:
            return f"{self.metric} is missing, published {self.published:g} ({self.weights}, {self.source})"
        verdict = "within" if self.within else "NOT within"
        return (
            f"{self.metric} {self.published + self.difference:.2f}, published {self.published:g} ({self.weights}, "
            f"{self.source}): {self.difference:+.2f}, {verdict} the tolerance of {self.tolerance:g}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlaps:
    """Test images that are suspected to be in train too; the record's own metrics are of all of them.

    Attributes:
        n: how many.
        exact: those of them whose content is the same; the others look alike.
        by: what the images were compared by.
        without: the headline metric on the other test images; None where there are none, or the metric is not one of
            per-sample scores.
        problem: why images that look alike could not be told; empty if they could.
        pairs_file: name of the CSV beside the record that lists the pairs; None if there are none.
    """

    n: int
    exact: int
    by: str
    without: Metric | None = None
    problem: str = ""
    pairs_file: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """What one stage of the work cost, at most so much memory being in use at once; None where that is not known.

    Attributes:
        ram_mib: of this process, all of it, in MiB; processes that decode images come on top.
        gpu_mib: that torch had allocated on the CUDA device.
    """

    seconds: float
    ram_mib: float | None = None
    gpu_mib: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What the measurement cost; not part of its identity.

    Attributes:
        parameters: of the backbone, without a classifier.
        gflops: 10^9 floating-point operations of the backbone for one image, a multiply-add counting as two.
        images_per_second: encoded, decoding included; None when the features were stored already.
        stages: 'extract' (of train and test, all layers) and the protocol's name.
    """

    parameters: int | None = None
    gflops: float | None = None
    images_per_second: float | None = None
    stages: dict[str, Stage] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """What it ran on; not part of the measurement's identity."""

    device: str
    cpu: str
    threads: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """Requested parts of a record beside its metrics; not part of the measurement's identity.

    Attributes:
        groups: column that the metrics are broken down by -> digest of the group of every test sample.
        overlaps: test images that are in train too are looked for.
        floors: chance, majority, the pixels and the untrained backbone stand beside the metrics.
        baseline: protocols that train on images train on the untrained backbone too.
    """

    groups: dict[str, str] = dataclasses.field(default_factory=dict)
    overlaps: bool = True
    floors: bool = True
    baseline: bool = False


__all__ = [
    "ABSOLUTE",
    "SCHEMA",
    "Asked",
    "BenchmarkUsed",
    "Costs",
    "DataPart",
    "DataUsed",
    "Group",
    "Hardware",
    "Metric",
    "Outcome",
    "Overlaps",
    "PresetUsed",
    "ProtocolUsed",
    "ReferenceCompared",
    "Result",
    "Stage",
    "Unreadable",
    "WeightsUsed",
    "as_recorded",
    "canonical",
    "percent",
    "percent_metrics",
    "plain",
]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a protocol hands back. Rates are fractions here, as in scikit-learn; records and tables hold percent.

    Attributes:
        metrics: name -> (value, low, high): the value on test and its 95 % interval; NaN where not computable.
        headline: the metric that leads ('top1', 'mAP').
        scores: float32 (N_test, C), higher means more likely, columns in the order of the classes.
        draws: where the metrics are means over several draws of train, the scores of each; `scores` are the first.
        per_class: class name -> recall (single label) or average precision (multi-label); NaN where not computable.
        train: the headline metric on the training samples as the final model was fitted on them; NaN if meaningless.
        selected: what was chosen and where, e.g. {'k': 20, 'on': 'held-out 10 % of train', 'score': 0.91};
            empty when nothing was chosen.
        variants: results of the settings that were not chosen, e.g. {'k=10': {'top1': 0.9}}; for information.
        converged: False marks the row; None for protocols without an iterative solver.
        notes: anything a reader of the number must know, one sentence each.
        absolute: the metrics that are no fractions (a rank, an exponent, a log likelihood), beside those that never
            are (`ABSOLUTE`); records hold them as they are, not in percent.
        probabilities: how the scores become probabilities: their 'softmax', or 'scores': they are some already; None
            where they do not, as the decision values of SVMs.
    """

    metrics: dict[str, tuple[float, float, float]]
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


ABSOLUTE = frozenset({"nll", "brier", "mae", "rmse"})
"""Metrics that are no fractions whoever computes them."""


SCHEMA = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The record of one measurement: one JSON file per (weights, layer, protocol, data).

    Rates are percent. Numbers that cannot be computed are None (JSON has no NaN).

    Attributes:
        schema: version of this class; a larger one than `SCHEMA` is not read.
        id: `identity.record_id` of what was measured.
        created: UTC, ISO 8601.
        layer: name of the feature, with its pooling.
        preprocessing: the values of `Preprocessing`, with their origin.
        precision: of the forward pass ('fp32', 'bf16').
        feature_dtype: of the stored features; older records do not say, and float32 is the default.
        asked: what the record was asked to hold beside its metrics; None in older records.
        headline: the metric that leads; a key of `metrics`.
        per_class_metrics: metric -> class -> value, of the per-sample scores beside the record: 'n' (samples),
            'recall', 'precision', 'f1', 'average_precision', 'auroc', ...
        groups: column of the manifest -> the headline metric on each of its groups, the worst first. The worst is also
            a metric of its own, `worst_group(COLUMN).METRIC`.
        overlaps: test images that are suspected to be in train too; None: they were not looked for.
        train: the headline metric on the training samples.
        probabilities: see `Outcome`.
        costs: time, memory and work.
        references: published values for these weights on this benchmark, compared.
        floors: 'chance', 'majority', 'pixels', 'untrained' -> metric -> value.
        missing_floors: those of 'pixels' and 'untrained' that are not among `floors`, and the reason.
        timings: stage -> seconds.
        scores_file: name of the per-sample scores beside the record.
        file: where the record was read from; not written.
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
    asked: Asked | None = None
    protocol: ProtocolUsed
    benchmark: BenchmarkUsed | None = None
    preset: PresetUsed | None = None
    data: DataUsed
    headline: str
    metrics: dict[str, Metric]
    per_class: dict[str, float | None] = dataclasses.field(default_factory=dict)
    per_class_metrics: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    groups: dict[str, tuple[Group, ...]] = dataclasses.field(default_factory=dict)
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
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: Hardware | None = None
    timings: dict[str, float] = dataclasses.field(default_factory=dict)
    costs: Costs | None = None
    notes: tuple[str, ...] = ()
    scores_file: str | None = None
    file: Path | None = dataclasses.field(default=None, compare=False)


def percent(fraction: float) -> float | None:
    """A fraction as percent, None when it is NaN."""
    return None if math.isnan(fraction) else 100.0 * float(fraction)


def percent_metrics(outcome: Outcome, n: int) -> dict[str, Metric]:
    """The metrics of an outcome as a record holds them; `n` is the number of test samples they were computed on."""
    return {
        name: Metric(
            **{part: as_recorded(name, v, outcome.absolute) for part, v in zip(_PARTS, values, strict=True)}, n=n
        )
        for name, values in outcome.metrics.items()
    }


_PARTS = ("value", "low", "high")


def as_recorded(name: str, value: float, absolute: Collection[str]) -> float | None:
    """A metric's value as records hold it: percent, unless it is `absolute`; None when it is NaN."""
    if name not in absolute and name not in ABSOLUTE:
        return percent(value)
    return None if math.isnan(value) else float(value)


def plain(value: Any) -> Any:
    """`value` as JSON holds it: dataclasses are mappings, tuples lists, NumPy numbers plain ones, NaN and inf null."""
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
    """One text per value: JSON with sorted keys and no spaces."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
