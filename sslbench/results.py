"""What an evaluation leaves behind: a protocol's outcome, and the record (one JSON file) made from it."""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.record_parts import (
    Asked,
    BenchmarkUsed,
    Costs,
    DataPart,
    DataUsed,
    Group,
    Hardware,
    Metric,
    Overlaps,
    PresetUsed,
    ProtocolUsed,
    ReferenceCompared,
    Stage,
    Unreadable,
    WeightsUsed,
)

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
