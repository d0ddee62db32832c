"""Plot of the score over the layers of a network."""

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from sslbench.errors import ResultError
from sslbench.leaderboard.board import table
from sslbench.leaderboard.headings import natural
from sslbench.leaderboard.model import Board, value
from sslbench.leaderboard.writers.panels import COLOURS, MARKERS, finish_panel, panels, write_png
from sslbench.metrics.catalog import find
from sslbench.results import MetricValue, Result


@dataclasses.dataclass(frozen=True)
class LayerProfile:
    """Scores of one backbone by layer, in the order of the plot's axis.

    Attributes:
        label: name of the weights.
        points: layer -> score with its interval.
    """

    label: str
    points: dict[str, MetricValue]


def draw_layers(results: Iterable[Result], path: Path, *, metric: str | None = None) -> None:
    """Draw the score over the layers: a panel per column of the leaderboard, a line per weights.

    Args:
        results: records, as `records.read_tree` returns them.
        path: the PNG, replaced whole or not at all.
        metric: metric to draw; None: the leading metric of each benchmark.

    Raises:
        UsageError: no result has the metric.
        ResultError: no weights have results on several layers, or the file cannot be written.
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
            x = [shown.index(layer) for layer in line.points]
            y = [point.value or 0.0 for point in line.points.values()]
            ends = [(point.low, point.high) for point in line.points.values()]
            below = [v - (low if low is not None else v) for v, (low, _) in zip(y, ends, strict=True)]
            above = [(high if high is not None else v) - v for v, (_, high) in zip(y, ends, strict=True)]
            axis.errorbar(
                x, y, yerr=[below, above], color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)],
                label=line.label, markersize=4, linewidth=1.6, capsize=2,
            )  # fmt: skip
        axis.set_xticks(range(len(shown)), shown, rotation=30, ha="right")
        finish_panel(axis, textwrap.fill(f"{column.name} {column.metric}", 72), find(column.metric).unit)
    write_png(figure, Path(path))


_STAGES = (
    "conv",
    "pool",
    "res",
    "layer",
    "blocks",
    "features",
    "norm",
    "flatten",
    "last",
    "output",
    "head",
    "predictor",
)


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
    """Return the profile of each of the weights with results on several layers in a column, floors left out.

    Args:
        board: the leaderboard.
        position: of the column.
        order: layers in the order of the axis.
    """
    found: dict[str, dict[str, MetricValue]] = {}
    metric = board.columns[position].metric
    for row in board.rows:
        cell = row.cells[position]
        number = value(row, position, board.columns)
        if row.kind == "result" and cell is not None and number is not None and math.isfinite(number):
            found.setdefault(row.label, {})[row.layer] = cell.metrics[metric]
    ordered = {label: {layer: points[layer] for layer in order if layer in points} for label, points in found.items()}
    return [LayerProfile(label, points) for label, points in ordered.items() if len(points) > 1]
