"""Coordinates of a drawing of the ranks of all rows in all columns of a board."""

import dataclasses
import math
from collections.abc import Iterable

from sslbench.leaderboard.model import Board, Row, value
from sslbench.leaderboard.writers.panels import COLOURS
from sslbench.leaderboard.writers.tables import cell_text, several_layers
from sslbench.metrics.catalog import find
from sslbench.text import cut_middle

_STEPS, _WIDTH = (44, 90), 1180  # pixels: least and largest distance of columns, and width that they should fit
_HEIGHT, _MARGIN = 24, 12  # pixels: between ranks, around
_CHARACTER, _LETTERS = 7.5, 16  # pixels: width of a character, height of a line
_LONGEST = 40  # characters of a name


@dataclasses.dataclass(frozen=True)
class Line:
    """Line of a row: its parts between gaps, its dots with their values, and the height of its label."""

    label: str
    colour: str
    parts: tuple[str, ...]
    dots: tuple[tuple[float, float, str], ...]
    y: float


@dataclasses.dataclass(frozen=True)
class Ranks:
    """Drawing of the ranks; labels of lines begin at `x`, `names` are the columns: x, y, text."""

    lines: tuple[Line, ...]
    x: float
    names: tuple[tuple[float, float, str], ...]
    width: int
    height: int


def ranks(board: Board) -> Ranks | None:
    """Return the drawing, for three columns and two rows of results or more; equal values share the better rank."""
    rows = [row for row in board.rows if row.kind == "result"]
    if len(board.columns) < 3 or len(rows) < 2:
        return None
    places = [_places(board, rows, i) for i in range(len(board.columns))]
    labels = [cut_middle(_label(board, row), _LONGEST) for row in rows]
    names = [cut_middle(column.name, _LONGEST) for column in board.columns]
    angled = math.ceil(_CHARACTER * max(map(len, names)))
    right = max(math.ceil(_CHARACTER * max(map(len, labels))) + 24, math.ceil(0.87 * angled))
    least, most = _STEPS
    step = min(max((_WIDTH - right - _MARGIN) / (len(names) - 1), least), most)
    xs = [round(_MARGIN + step * i, 1) for i in range(len(names))]
    lines = _apart(_line(board, row, i, places, labels[i], xs) for i, row in enumerate(rows))
    lowest = max(_y(max(max(found.values(), default=1) for found in places)), *(line.y for line in lines))
    texts = tuple((x - 4, lowest + 24, name) for x, name in zip(xs, names, strict=True))
    return Ranks(lines, xs[-1] + 12, texts, math.ceil(xs[-1]) + right, math.ceil(lowest + 36 + angled / 2))


def _apart(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines from the upper to the lower label, with labels that do not cover each other."""
    placed: list[Line] = []
    for line in sorted(lines, key=lambda line: line.y):
        least = placed[-1].y + _LETTERS if placed else line.y
        placed.append(dataclasses.replace(line, y=max(line.y, least)))
    return tuple(placed)


def _places(board: Board, rows: list[Row], position: int) -> dict[int, int]:
    """Return row -> rank in a column."""
    sign = find(board.columns[position].metric).sign
    found = {i: sign * v for i, row in enumerate(rows) if (v := value(row, position, board.columns)) is not None}
    return {i: 1 + sum(other > own for other in found.values()) for i, own in found.items()}


def _line(board: Board, row: Row, number: int, places: list[dict[int, int]], label: str, xs: list[float]) -> Line:
    dots, parts, part = list[tuple[float, float, str]](), list[list[str]](), list[str]()
    for position, found in enumerate(places):
        if number not in found:
            parts, part = [*parts, part], []
            continue
        x, y = xs[position], _y(found[number])
        text = f"{label}: {board.columns[position].name} {cell_text(board, row, position)}, rank {found[number]}"
        dots.append((x, y, text))
        part.append(f"{x},{y}")
    last = dots[-1][1] if dots else _y(1)
    colour = COLOURS[number % len(COLOURS)].replace("#000000", "#7f7f7f")  # black is not seen on a dark page
    kept = tuple(" ".join(points) for points in (*parts, part) if len(points) > 1)
    return Line(label if dots else "", colour, kept, tuple(dots), last)


def _label(board: Board, row: Row) -> str:
    return f"{row.label} {row.layer}" if several_layers(board) and row.layer else row.label


def _y(rank: int) -> float:
    return _MARGIN + _HEIGHT * (rank - 0.5)
