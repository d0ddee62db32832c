"""Scores over training: the results of the checkpoints of one run, as table, CSV and plot."""

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path

from sslbench.errors import ResultError
from sslbench.identity import comparability_key
from sslbench.leaderboard.compare import Comparison, compare
from sslbench.leaderboard.plots import finish_panel, panels, plot_intervals, write_png
from sslbench.leaderboard.tables import number, write_text
from sslbench.metrics.catalog import find
from sslbench.results import MetricValue, Result
from sslbench.results.records import slug
from sslbench.text import csv_text
from sslbench.train.checkpoints import Position

_STYLES = (":", "--", "-.", (0, (6, 2, 1, 2, 1, 2)))
"""Lines of the floors."""


@dataclasses.dataclass(frozen=True)
class TrainingPoint:
    """Result of one checkpoint."""

    at: Position
    result: Result

    @property
    def score(self) -> MetricValue:
        """Leading metric with its interval."""
        return self.result.metrics[self.result.headline]


@dataclasses.dataclass(frozen=True)
class TrainingCurve:
    """Results of one protocol at one layer over the checkpoints of a run.

    Attributes:
        points: results in the order of training.
        gain: paired comparison of the last with the first checkpoint; None for a single checkpoint, or if the records
            have no scores of each sample.
    """

    points: tuple[TrainingPoint, ...]
    gain: Comparison | None = None

    @property
    def first(self) -> Result:
        """Result of the first checkpoint: protocol, layer, data and metric are those of all."""
        return self.points[0].result

    @property
    def title(self) -> str:
        """Protocol, layer and test data."""
        preset = f" ({self.first.preset.name})" if self.first.preset is not None else ""
        name = f"{self.first.protocol.name}{preset}"
        return f"{name} on {self.first.data.test.name}, {self.first.layer}{self.first.data.noise_text}"


def training_curves(results: Sequence[tuple[Position, Sequence[Result]]]) -> list[TrainingCurve]:
    """Return a curve for each protocol, layer and test part."""
    found: dict[tuple[object, ...], list[TrainingPoint]] = {}
    for at, own in sorted(results, key=lambda entry: entry[0].step):
        for result in own:
            preset = None if result.preset is None else result.preset.name
            key = (comparability_key(result), preset, result.layer)
            found.setdefault(key, []).append(TrainingPoint(at, result))
    return [TrainingCurve(tuple(points), _gain(points)) for points in found.values()]


def _gain(points: Sequence[TrainingPoint]) -> Comparison | None:
    if len(points) < 2:
        return None
    try:
        return compare(points[-1].result, points[0].result)
    except ResultError:
        return None


def write_training_curves(curves: Sequence[TrainingCurve], run: str, out: Path) -> tuple[Path, Path]:
    """Write a CSV and a PNG beside the records."""
    protocols = "+".join(dict.fromkeys(curve.first.protocol.name for curve in curves))
    table = out / f"training-{slug(run)}-{slug(protocols.replace('+', '-'))}.csv"
    rows: list[list[object]] = [
        ["protocol", "layer", "test", "metric", "step", "epoch", "value", "low", "high", "n", "record"]
    ]
    for point in (point for curve in curves for point in curve.points):
        result, score = point.result, point.score
        fixed = (result.protocol.name, result.layer, result.data.test.name, result.headline)
        values = map(number, (point.at.epoch, score.value, score.low, score.high, score.n))
        rows.append([*fixed, point.at.step, *values, result.file or ""])
    write_text(table, csv_text(rows))
    picture = table.with_suffix(".png")
    draw_training(curves, run, picture)
    return table, picture


def draw_training(curves: Sequence[TrainingCurve], run: str, path: Path) -> None:
    """Draw the scores over the epochs, a panel per curve, with 95 % intervals and the floors as grey lines."""
    drawn = [(curve, points) for curve in curves if (points := [p for p in curve.points if p.score.value is not None])]
    if not drawn:
        raise ResultError(f"no checkpoint of {run} has a score to draw")
    epochs = all(point.at.epoch is not None for _, points in drawn for point in points)
    figure, axes = panels(len(drawn))
    for i, (axis, (curve, points)) in enumerate(zip(axes, drawn, strict=True)):
        x = [point.at.epoch if epochs and point.at.epoch is not None else point.at.step for point in points]
        plot_intervals(axis, x, [point.score for point in points], run, i)
        metric = curve.first.headline
        floors = {name: values[metric] for name, values in points[-1].result.floors.items() if metric in values}
        for position, (name, value) in enumerate(floors.items()):
            if value is not None:
                axis.axhline(
                    value, color="#666666", linestyle=_STYLES[position % len(_STYLES)], linewidth=1, label=name
                )
        axis.set_xlabel("epoch" if epochs else "update")
        finish_panel(axis, textwrap.fill(f"{curve.title}: {metric}", 72), find(metric).unit)
    write_png(figure, path)
