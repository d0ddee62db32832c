"""What an evaluation leaves behind: a protocol's outcome, and the record (one JSON file) made from it."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a protocol hands back. Rates are fractions here, as in scikit-learn; records and tables hold percent.

    Attributes:
        metrics: name -> (value, low, high): the value on test and its 95 % interval; NaN where not computable.
        headline: the metric that leads ('top1', 'mAP').
        scores: float32 (N_test, C), higher means more likely, columns in the order of the classes.
        per_class: class name -> recall (single label) or average precision (multi-label); NaN where not computable.
        train: the headline metric on the training samples as the final model was fitted on them; NaN if meaningless.
        selected: what was chosen and where, e.g. {'k': 20, 'on': 'held-out 10 % of train', 'score': 0.91};
            empty when nothing was chosen.
        variants: results of the settings that were not chosen, e.g. {'k=10': {'top1': 0.9}}; for information.
        converged: False marks the row; None for protocols without an iterative solver.
        notes: anything a reader of the number must know, one sentence each.
        absolute: the metrics that are no fractions (a rank, an exponent, a log likelihood); records hold them as they
            are, not in percent.
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


SCHEMA = 1


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProtocolUsed:
    """The protocol with all its settings, also those left at their default."""

    name: str
    version: int
    settings: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkUsed:
    """The named benchmark; `sha256` is of its resolved text, `modified` says that the user overrode some of it."""

    name: str
    version: int
    sha256: str
    modified: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataPart:
    """One side of the data: `n` samples were there, `n_used` of them could be read and were used."""

    name: str
    fingerprint: str
    n: int
    n_used: int
    classes: tuple[str, ...]


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
class Hardware:
    """What it ran on; not part of the measurement's identity."""

    device: str
    cpu: str
    threads: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The record of one measurement: one JSON file per (weights, layer, protocol, data).

    Rates are percent. Numbers that cannot be computed are None (JSON has no NaN).

    Attributes:
        schema: version of this class; a larger one than `SCHEMA` is not read.
        id: `measurement_id` of what was measured.
        created: UTC, ISO 8601.
        layer: name of the feature, with its pooling.
        preprocessing: the values of `Preprocessing`, with their origin.
        precision: of the forward pass ('fp32', 'bf16').
        headline: the metric that leads; a key of `metrics`.
        train: the headline metric on the training samples.
        floors: 'chance', 'majority', 'pixels', 'untrained' -> metric -> value.
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
    protocol: ProtocolUsed
    benchmark: BenchmarkUsed | None = None
    data: DataUsed
    headline: str
    metrics: dict[str, Metric]
    per_class: dict[str, float | None] = dataclasses.field(default_factory=dict)
    train: float | None = None
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    variants: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    converged: bool | None = None
    floors: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    seed: int
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: Hardware | None = None
    timings: dict[str, float] = dataclasses.field(default_factory=dict)
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
    if name not in absolute:
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


def measurement_id(
    *,
    weights: WeightsUsed,
    layer: str,
    preprocessing: Mapping[str, Any],
    precision: str,
    protocol: ProtocolUsed,
    data: DataUsed,
    seed: int,
) -> str:
    """16 hex digits that name what is measured; the machine, batch size, workers and time are not part of it.

    Two backbones may share all their tensors and still differ (another stride), so the backbone's name is included.
    Where the preprocessing values come from (their 'origin') is not.
    """
    parts = {
        "weights": [weights.sha256, weights.backbone],
        "layer": layer,
        "preprocessing": {key: value for key, value in preprocessing.items() if key != "origin"},
        "precision": precision,
        "protocol": protocol,
        "data": [data.train.fingerprint, data.test.fingerprint],
        "seed": seed,
    }
    return hashlib.sha256(canonical(parts).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Comparability:
    """What two results must have in common to stand in one column of a table.

    Weights, backbone, layer, preprocessing and precision may differ: they are what is compared, and stand in the row.
    The seed may differ: several seeds of one row are averaged, and said to be several. The benchmark's name does not
    matter: the same measurement may be made with and without it.
    """

    protocol: str
    version: int
    settings: str
    train: str
    test: str
    n_train: int
    n_test: int
    unreadable: int
    metric: str


def comparability_key(result: Result, metric: str | None = None) -> Comparability:
    """What must agree with another result for the two to be compared by `metric` (default: the headline)."""
    data = result.data
    return Comparability(
        protocol=result.protocol.name,
        version=result.protocol.version,
        settings=canonical(result.protocol.settings),
        train=data.train.fingerprint,
        test=data.test.fingerprint,
        n_train=data.train.n_used,
        n_test=data.test.n_used,
        unreadable=len(data.unreadable),
        metric=metric or result.headline,
    )
