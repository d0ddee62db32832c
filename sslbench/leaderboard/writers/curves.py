"""Plot of the score over the number of training samples."""

import dataclasses
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sslbench.errors import ResultError
from sslbench.leaderboard.board import table
from sslbench.leaderboard.model import Board, Column
from sslbench.leaderboard.writers.panels import COLOURS, MARKERS, finish_panel, panels, write_png
from sslbench.metrics.catalog import find
from sslbench.results import MetricValue, Result, mean_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREY = ("#666666", "#999999", "#bbbbbb")
_POINT = re.compile(r"(k=)?([0-9.]+)( %)?")


@dataclasses.dataclass(frozen=True)
class EfficiencyCurve:
    """Curve of one backbone: training samples (per class, or in percent of train) -> mean over the draws."""

    label: str
    floor: bool
    points: dict[float, MetricValue]


def data_efficiency(results: Iterable[Result], path: Path, *, metric: str | None = None) -> None:
    """Draw score over the number of training samples: a panel per benchmark, a line per backbone and layer.

    The line is the mean over the draws, the band its 95 % interval over the draws. Results without such points (of
    protocols that learn from all of train) are left out. Floors are grey; chance is dotted.

    Args:
        results: records, as `records.read_tree` returns them.
        path: the PNG, replaced whole or not at all.
        metric: metric to draw; None: the leading metric of each benchmark.

    Raises:
        UsageError: no result has the metric.
        ResultError: no result has a curve, or the file cannot be written.
    """
    board = table((result for result in results if _has_curve(result)), metric=metric)
    shown = [
        (board.columns[i], unit, lines)
        for i in range(len(board.columns))
        for unit in ("k", "%")
        if (lines := _lines(board, i, unit))
    ]
    if not shown:
        raise ResultError(
            "no result has scores for several numbers of training samples", "Run `sslbench eval low-shot lsr`."
        )
    figure, axes = panels(len(shown))
    for axis, (column, unit, lines) in zip(axes, shown, strict=True):
        chance = _chance(board, board.columns.index(column))
        _panel(axis, column, unit, lines, chance)
    write_png(figure, Path(path))


def _has_curve(result: Result) -> bool:
    return any(f"{result.headline}_low" in values for values in result.variants.values())


def _lines(board: Board, position: int, unit: str) -> list[EfficiencyCurve]:
    """Return the curves of one column, best first, floors last; seeds are averaged as in tables."""
    lines = []
    several = len({row.layer for row in board.rows if not row.floor}) > 1
    for row in board.rows:
        cell = row.cells[position]
        if cell is None or not cell.records:
            continue
        points = _points(cell.records, board.columns[position].metric, unit)
        if points:
            lines.append(EfficiencyCurve(f"{row.label} {row.layer}" if several else row.label, row.floor, points))
    return lines


def _points(records: Sequence[Result], metric: str, unit: str) -> dict[float, MetricValue]:
    """Return the points that all records (one per seed) have, ascending."""
    found: dict[float, MetricValue] = {}
    for name in records[0].variants:
        match = _POINT.fullmatch(name)
        if match is None or (match[1] is not None) != (unit == "k") or not all(name in r.variants for r in records):
            continue
        values = [record.variants[name] for record in records]
        merged = [
            MetricValue(value=v.get(metric), low=v.get(f"{metric}_low"), high=v.get(f"{metric}_high")) for v in values
        ]
        point = mean_metric(metric, merged)
        if point.value is not None:
            found[float(match[2])] = point
    return dict(sorted(found.items()))


def _chance(board: Board, position: int) -> float | None:
    """Return the chance level of a column, from the records that state it."""
    metric = board.columns[position].metric
    cells = [row.cells[position] for row in board.rows]
    levels = [r.floors.get("chance", {}).get(metric) for cell in cells if cell is not None for r in cell.records]
    return next((value for value in levels if value is not None), None)


def _panel(axis: "Axes", column: Column, unit: str, lines: Sequence[EfficiencyCurve], chance: float | None) -> None:
    measured = [line for line in lines if not line.floor]
    for i, line in enumerate([*measured, *(line for line in lines if line.floor)]):
        own = i < len(measured)
        colour = COLOURS[i % len(COLOURS)] if own else _GREY[(i - len(measured)) % len(_GREY)]
        x, values = list(line.points), list(line.points.values())
        marker = MARKERS[i % len(MARKERS)]
        style = "-" if own else "--"
        y = [value.value or 0.0 for value in values]
        axis.plot(x, y, style, color=colour, marker=marker, markersize=4, linewidth=1.6, label=line.label)
        if all(value.low is not None and value.high is not None for value in values):
            low, high = [value.low or 0.0 for value in values], [value.high or 0.0 for value in values]
            axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    if chance is not None:
        axis.axhline(chance, color="#666666", linestyle=":", linewidth=1, label="chance")
    _x_axis(axis, unit, sorted({x for line in lines for x in line.points}))
    finish_panel(axis, textwrap.fill(f"{column.name} {column.metric}", 72), find(column.metric).unit)


def _x_axis(axis: "Axes", unit: str, ticks: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("training samples per class" if unit == "k" else "% of the training samples")
