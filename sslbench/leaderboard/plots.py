"""Plots in PNG files: score over the number of training samples, and over the layers; panels for plots of others."""

import dataclasses
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sslbench.errors import ResultError
from sslbench.leaderboard.board import table
from sslbench.leaderboard.columns import natural
from sslbench.leaderboard.model import Board, Column, value
from sslbench.metrics.catalog import find
from sslbench.paths import not_written
from sslbench.results import MetricValue, Result, mean_metric
from sslbench.results.records import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")  # Okabe and Ito
MARKERS = "osD^vP*X"
_GREY = ("#666666", "#999999", "#bbbbbb")
_POINT = re.compile(r"(k=)?([0-9.]+)( %)?")
_STAGES = "conv pool res layer blocks features norm flatten last output head predictor".split()
"""Beginnings of the names of layers, from the image to the output."""


def panels(n: int) -> "tuple[Figure, list[Axes]]":
    """Return a figure with n empty panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, n)
    rows = -(-n // columns)
    figure = Figure(figsize=(6.2 * columns, 4.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axis in axes[n:]:
        axis.set_axis_off()
    return figure, axes[:n]


def plot_intervals(axis: "Axes", x: Sequence[float], points: Sequence[MetricValue], label: str, number: int) -> None:
    """Draw the line of that number through points, with their 95 % intervals where they have some."""
    y = [point.value or 0.0 for point in points]
    below = [v - (point.low if point.low is not None else v) for v, point in zip(y, points, strict=True)]
    above = [(point.high if point.high is not None else v) - v for v, point in zip(y, points, strict=True)]
    axis.errorbar(
        x, y, yerr=[below, above], color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
        label=label, markersize=4, linewidth=1.6, capsize=2,
    )  # fmt: skip


def finish_panel(axis: "Axes", title: str, unit: str) -> None:
    """Give a panel its title, unit, grid and legend."""
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylabel(unit)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False)


def write_png(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, replaced whole or not at all."""

    def save(file: IO[bytes]) -> None:
        figure.savefig(file, format="png", dpi=110)

    try:
        replace_file(path, save)
    except OSError as error:
        raise ResultError(not_written(path, error)) from error


@dataclasses.dataclass(frozen=True)
class EfficiencyCurve:
    """Curve of one backbone: training samples (per class, or in percent of train) -> mean over the draws."""

    label: str
    floor: bool
    points: dict[float, MetricValue]


def data_efficiency(results: Iterable[Result], path: Path, *, metric: str | None = None) -> None:
    """Draw score over the number of training samples: a panel per benchmark, a line per backbone and layer.

    `metric`: metric to draw; None: the leading metric of each benchmark.
    """
    # The line is the mean over the draws, the band its 95 % interval over the draws. Results without such points (of
    # protocols that learn from all of train) are left out. Floors are grey; chance is dotted.
    curves = [result for result in results if any(f"{result.headline}_low" in v for v in result.variants.values())]
    board = table(curves, metric=metric)
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
        records = [r for row in board.rows if (cell := row.cells[board.columns.index(column)]) for r in cell.records]
        levels = (r.floors.get("chance", {}).get(column.metric) for r in records)
        _panel(axis, column, unit, lines, next((level for level in levels if level is not None), None))
    write_png(figure, Path(path))


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


def _panel(axis: "Axes", column: Column, unit: str, lines: Sequence[EfficiencyCurve], chance: float | None) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

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
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(sorted({x for line in lines for x in line.points})))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("training samples per class" if unit == "k" else "% of the training samples")
    finish_panel(axis, textwrap.fill(f"{column.name} {column.metric}", 72), find(column.metric).unit)


@dataclasses.dataclass(frozen=True)
class LayerProfile:
    """Scores of one backbone by layer, in the order of the plot's axis.

    Attributes:
        points: layer -> score with its interval.
    """

    label: str
    points: dict[str, MetricValue]


def draw_layers(results: Iterable[Result], path: Path, *, metric: str | None = None) -> None:
    """Draw the score over the layers: a panel per column of the leaderboard, a line per weights.

    `metric`: metric to draw; None: the leading metric of each benchmark.
    """
    board = table(results, metric=metric)
    order = layer_order(row.layer for row in board.rows if row.kind == "result")
    columns = [(column, lines) for i, column in enumerate(board.columns) if (lines := profiles(board, i, order))]
    if not columns:
        raise ResultError(
            "no weights have results on several layers",
            "Evaluate some: sslbench eval svm --layers res2,res3,res4,res5.",
        )
    figure, axes = panels(len(columns))
    for axis, (column, lines) in zip(axes, columns, strict=True):
        shown = [layer for layer in order if any(layer in line.points for line in lines)]
        for i, line in enumerate(lines):
            plot_intervals(axis, [shown.index(layer) for layer in line.points], [*line.points.values()], line.label, i)
        axis.set_xticks(range(len(shown)), shown, rotation=30, ha="right")
        finish_panel(axis, textwrap.fill(f"{column.name} {column.metric}", 72), find(column.metric).unit)
    write_png(figure, Path(path))


def layer_order(layers: Iterable[str]) -> list[str]:
    """Return layers from the image to the output, by their names: numbers count, heads come last.

    >>> layer_order(["head", "head.0", "res5avg", "res10", "res5:avg(6,1)", "conv1", "res2"])
    ['conv1', 'res2', 'res5:avg(6,1)', 'res5avg', 'res10', 'head.0', 'head']
    """

    def place(layer: str) -> tuple[int, bool, list[tuple[int, str]]]:
        stage = next((i for i, name in enumerate(_STAGES) if layer.startswith(name)), _STAGES.index("features"))
        return stage, layer in _STAGES, natural(layer)  # a whole head is its last layer

    return sorted(set(layers), key=place)


def profiles(board: Board, position: int, order: Sequence[str]) -> list[LayerProfile]:
    """Return the profile of each of the weights with results on several layers in a column, floors left out."""
    found: dict[str, dict[str, MetricValue]] = {}
    metric = board.columns[position].metric
    for row in board.rows:
        cell = row.cells[position]
        number = value(row, position, board.columns)
        if row.kind == "result" and cell is not None and number is not None and math.isfinite(number):
            found.setdefault(row.label, {})[row.layer] = cell.metrics[metric]
    ordered = {label: {layer: points[layer] for layer in order if layer in points} for label, points in found.items()}
    return [LayerProfile(label, points) for label, points in ordered.items() if len(points) > 1]
