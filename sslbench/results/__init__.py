"""Outcome of a protocol, and the result record (one JSON file) made from it."""

import dataclasses
import html
import sys
from pathlib import Path
from typing import Any, Literal

from sslbench.results import tables
from sslbench.results.outcome import (
    Neighbours,
    NetworkWeights,
    Outcome,
    as_recorded,
    canonical,
    mean_line,
    mean_metric,
    metric_value,
    percent,
    percent_metrics,
    plain,
)
from sslbench.results.parts import (
    BenchmarkUsed,
    Costs,
    DataPart,
    DataUsed,
    ExcludedImage,
    GroupValue,
    Hardware,
    KnownBy,
    Metrics,
    MetricValue,
    Overlaps,
    PresetUsed,
    ProtocolUsed,
    Range,
    ReferenceCompared,
    RequestedParts,
    Stage,
    Training,
    WeightsUsed,
    WorkingFolder,
)

__all__ = [
    "SCHEMA",
    "BenchmarkUsed",
    "Costs",
    "DataPart",
    "DataUsed",
    "ExcludedImage",
    "GroupValue",
    "Hardware",
    "KnownBy",
    "MetricValue",
    "Neighbours",
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
    "mean_metric",
    "metric_value",
    "percent",
    "percent_metrics",
    "plain",
]


SCHEMA = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Record of one measurement: one JSON file per (weights, layer, protocol, data).

    Rates are percent, but for those in `selected`, which are fractions; R2 is 1 at best (percent in schema 1). Numbers
    that cannot be computed are None (JSON has no NaN).

    Attributes:
        schema: version of this class; a larger one than `SCHEMA` is not read.
        id: `identity.record_id` of the measurement.
        created: UTC, ISO 8601.
        request: the evaluation as `sslbench run` reads it; None in older records, and for objects of Python.
        layer: name of the feature, with its pooling.
        preprocessing: values of `Preprocessing`, with their origin.
        precision: precision of the forward pass ('fp32', 'bf16', 'fp16', 'int8').
        feature_dtype: dtype of the stored features; float32 in older records, which lack it.
        asked: requested parts beside the metrics; None in older records.
        headline: name of the leading metric; a key of `metrics`.
        per_class_metrics: metric -> class -> value, from the per-sample scores beside the record: 'n' (samples),
            'recall', 'precision', 'f1', 'average_precision', 'auroc', ...
        groups: column of the manifest -> headline metric on each of its groups, the worst first. The worst is also
            a metric of its own, `worst_group(COLUMN).METRIC`.
        overlaps: test images suspected to be in train too; None: not searched for.
        calibration: digest of the images that decide the ranges of int8; None in other precisions.
        references: published values for these weights on this benchmark, compared.
        floors: 'chance', 'majority', 'pixels', 'untrained', 'constant box' (detection), ... -> metric -> value.
        floor_ranges: floor -> metric -> lowest and highest value over several networks, whose mean is the floor; empty
            in older records, whose untrained floor is one network.
        missing_floors: floors among 'pixels' and 'untrained' that are missing -> the reason.
        working_folder: folder that the command ran in, with its git commit; None in older records.
        by: the person, group or machine of `$SSLBENCH_WHO`; None where it was not set.
        seeds: number of trainings that the metrics are means over; None for a protocol that trains no network or head
            by stochastic gradient descent, and in older records.
        ranges: metric -> lowest and highest value over them.
        scores_file: name of the file of per-sample scores beside the record.
        weights_file: name of the weights file beside the record, where the protocol trained a network.
        objects_file: name of the file of the objects of the test part beside the record, for detections.
        checksum: digest of the metrics as they were written, see `records.is_edited`; None in older records.
        file: path that the record was read from; not written.
    """

    schema: int = SCHEMA
    id: str
    created: str
    command: str
    request: dict[str, Any] | None = None
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
    calibration: str | None = None
    train: float | None = None
    probabilities: Literal["softmax", "scores"] | None = None
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    variants: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    converged: bool | None = None
    references: tuple[ReferenceCompared, ...] = ()
    floors: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    floor_ranges: dict[str, dict[str, Range]] = dataclasses.field(default_factory=dict)
    missing_floors: dict[str, str] = dataclasses.field(default_factory=dict)
    seed: int
    seeds: int | None = None
    trainings: tuple[Training, ...] = ()
    ranges: dict[str, Range] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: Hardware | None = None
    working_folder: WorkingFolder | None = None
    by: str | None = None
    timings: dict[str, float] = dataclasses.field(default_factory=dict)
    costs: Costs | None = None
    notes: tuple[str, ...] = ()
    scores_file: str | None = None
    weights_file: str | None = None
    objects_file: str | None = None
    checksum: str | None = dataclasses.field(default=None, compare=False)
    file: Path | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Let metrics name themselves where one is asked for that is not there."""
        object.__setattr__(self, "metrics", Metrics(self.metrics))

    @property
    def is_floor(self) -> bool:
        """True if the backbone is untrained, or stands for the images' own pixels."""
        return self.weights.is_floor

    @property
    def feature(self) -> str:
        """Layer without the part of train that the network was finetuned on."""
        return self.layer.partition(", ")[0] if self.data.train_part else self.layer

    def row(self) -> dict[str, Any]:
        """Return one row of a table: weights, protocol and data, the leading metric with its interval, all metrics."""
        leading = self.metrics[self.headline]
        return {
            "weights": self.weights.name,
            "layer": self.layer,
            "protocol": self.protocol.name,
            "test": self.data.test.name,
            "n": self.data.test.n_used if leading.n is None else leading.n,
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

    def floor_text(self, name: str) -> str:
        """Return a floor of the leading metric with the lowest and highest of its networks; '' without a value."""
        value = self.floors.get(name, {}).get(self.headline)
        spread = self.floor_ranges.get(name, {}).get(self.headline)
        if value is None or spread is None or spread.lowest is None or spread.highest is None:
            return "" if value is None else f"{name} {value:.2f}"
        return f"{name} {value:.2f} ({spread.lowest:.2f} to {spread.highest:.2f})"

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
        """Metrics of the only result."""
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
