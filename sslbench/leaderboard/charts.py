"""Coordinates of the charts of a board's page: intervals and floors of a column, ranks in all columns."""

import dataclasses
import math
from collections.abc import Sequence

from sslbench.leaderboard.model import Board, Row, shown, value
from sslbench.leaderboard.pairs import Differences
from sslbench.leaderboard.plots import COLOURS
from sslbench.leaderboard.tables import cell_text, leads, marks
from sslbench.leaderboard.verdict import names_of
from sslbench.metrics.catalog import find
from sslbench.text import cut_middle

_MOST_LACKING = 5  # rows without a value that are named
_FAR = 1.0  # floors farther from the values than this multiple of their range are told, not drawn
_STEPS, _WIDTH = (44, 90), 1180  # pixels: least and largest distance of columns, and width that they should fit
_RANK_HEIGHT, _MARGIN = 24, 12  # pixels: between ranks, around
_CHARACTER = 7.5  # pixels, of a wide character of a label
_LETTERS = 16  # pixels, height of a line
_LONGEST_NAME = 40  # characters of a name


@dataclasses.dataclass(frozen=True)
class Mark:
    """Value of the board's row of that number; positions in percent of the width."""

    row: int
    label: str
    text: str
    kind: str
    leads: bool
    x: float
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True)
class VerticalLine:
    """Vertical line of a floor or a tick of the axis, in percent of the width."""

    label: str
    x: float


@dataclasses.dataclass(frozen=True)
class Chart:
    """Chart of the column at a position, best first; floors are lines through all of it.

    Attributes:
        beyond: floors too far from the values to be drawn, in words.
        lacking: rows of results without a value, in words.
    """

    position: int
    marks: tuple[Mark, ...]
    floors: tuple[VerticalLine, ...]
    ticks: tuple[VerticalLine, ...]
    beyond: tuple[str, ...]
    lacking: str


def intervals(board: Board) -> list[Chart]:
    """Return a chart for each column with at least one value that is no floor."""
    return [chart for i in range(len(board.columns)) if (chart := _chart(board, i)) is not None]


def _chart(board: Board, position: int) -> Chart | None:
    names = names_of(board.rows)
    entries, floors, lacking = [], {}, []
    for number, row in enumerate(board.rows):
        metric = shown(row, position, board.columns)
        if metric is None or metric.value is None:
            lacking += [names[id(row)]] if row.kind == "result" else []
        elif row.floor:
            floors[row.label] = metric.value
        else:
            entries.append((metric.value, (metric.low, metric.high), number, row))
    if not entries:
        return None
    sign = find(board.columns[position].metric).sign
    entries.sort(key=lambda entry: -sign * entry[0])
    ends = [end for v, interval, *_ in entries for end in (v, *interval) if end is not None]
    spread = max(ends) - min(ends) or 1.0
    reach = _FAR * spread if len(entries) > 1 else math.inf  # a single value is compared with its floors alone
    near = [v for v in floors.values() if min(ends) - reach <= v <= max(ends) + reach]
    low, high = min([*ends, *near]), max([*ends, *near])
    margin = 0.05 * (high - low) or 1.0
    low, high = low - margin, high + margin

    def place(number: float) -> float:
        return round(100 * (number - low) / (high - low), 2)

    found = tuple(
        Mark(
            row=number,
            label=names[id(row)],
            text=f"{marks(row.cells[position])} {v:.2f}".strip(),
            kind=row.kind,
            leads=leads(row.cells[position]),
            x=place(v),
            low=None if lower is None else place(lower),
            high=None if upper is None else place(upper),
        )
        for v, (lower, upper), number, row in entries
    )
    ranked = sorted(floors.items(), key=lambda floor: floor[1])
    lines = tuple(VerticalLine(f"{name} {number:.2f}", place(number)) for name, number in ranked if number in near)
    beyond = tuple(f"{name} {number:.2f}" for name, number in ranked if number not in near)
    ticks = tuple(VerticalLine(f"{number:g}", place(number)) for number in _ticks(low, high))
    more = len(lacking) - _MOST_LACKING
    without = ", ".join(lacking[:_MOST_LACKING]) + (f" and {more} more" if more > 0 else "")
    return Chart(position, found, lines, ticks, beyond, without)


def _ticks(low: float, high: float) -> list[float]:
    """Return three to eight round numbers between two ends."""
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    first = math.ceil(low / step)
    return [round(step * i, 10) for i in range(first, math.floor(high / step) + 1)]


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


def ranks(board: Board, differences: Sequence[Differences]) -> Ranks | None:
    """Return the drawing, for three columns and two rows of results or more.

    A rank counts the rows that are better. Of a pair that was compared, one is better if the interval of the difference
    does not cover 0, so that ties share a rank; of another pair, the one with the better value.
    """
    rows = [row for row in board.rows if row.kind == "result"]  # the first of the board
    if len(board.columns) < 3 or len(rows) < 2:
        return None
    places: list[dict[int, int]] = []  # of each column: row -> rank
    for position, (column, pairs) in enumerate(zip(board.columns, differences, strict=True)):
        sign = find(column.metric).sign
        scores = {i: sign * v for i, row in enumerate(rows) if (v := value(row, position, board.columns)) is not None}

        def better(other: int, own: int, scores: dict[int, float] = scores, pairs: Differences = pairs) -> bool:
            found = pairs.between(other, own)
            return scores[other] > scores[own] and (found is None or not found[1] <= 0 <= found[2])

        places.append({own: 1 + sum(better(other, own) for other in scores) for own in scores})
    called = names_of(board.rows)
    labels = [cut_middle(called[id(row)], _LONGEST_NAME) for row in rows]
    names = [cut_middle(column.name, _LONGEST_NAME) for column in board.columns]
    angled = math.ceil(_CHARACTER * max(map(len, names)))
    right = max(math.ceil(_CHARACTER * max(map(len, labels))) + 24, math.ceil(0.87 * angled))
    least, most = _STEPS
    step = min(max((_WIDTH - right - _MARGIN) / (len(names) - 1), least), most)
    xs = [round(_MARGIN + step * i, 1) for i in range(len(names))]
    lines: list[Line] = []  # from the upper to the lower label, which must not cover each other
    for line in sorted(
        (_line(board, row, i, places, labels[i], xs) for i, row in enumerate(rows)), key=lambda line: line.y
    ):
        least_y = lines[-1].y + _LETTERS if lines else line.y
        lines.append(dataclasses.replace(line, y=max(line.y, least_y)))
    lowest = max(_y(max(max(found.values(), default=1) for found in places)), *(line.y for line in lines))
    texts = tuple((x - 4, lowest + 24, name) for x, name in zip(xs, names, strict=True))
    return Ranks(tuple(lines), xs[-1] + 12, texts, math.ceil(xs[-1]) + right, math.ceil(lowest + 36 + angled / 2))


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


def _y(rank: int) -> float:
    return _MARGIN + _RANK_HEIGHT * (rank - 0.5)
