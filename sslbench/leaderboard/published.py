"""Published rows, shown beside measured ones as their sources report them and never compared."""

import csv
import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

from sslbench import paths
from sslbench.errors import UsageError
from sslbench.leaderboard.model import Board, Cell, Published, Row, value
from sslbench.metrics.catalog import find
from sslbench.results import MetricValue


def read_published() -> list[Published]:
    """Return all published rows: those below the folders of $SSLBENCH_PATH, then the shipped ones.

    Raises:
        UsageError: a file does not have the columns of `Published`, or a value is no number; it names the line.
    """
    files = [f for root in paths.search_path("benchmarks") for f in sorted((root / "published").glob("*.csv"))]
    return [row for file in files for row in read_file(file)]


def read_file(file: Path) -> list[Published]:
    """Return the rows of one file.

    Raises:
        UsageError: see `read_published`.
    """
    columns = [field.name for field in dataclasses.fields(Published)]
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            reader = csv.DictReader(opened)
            if reader.fieldnames != columns:
                raise UsageError(f"{file}: the columns should be {','.join(columns)}")
            return [_row(file, reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error


def _row(file: Path, line: int, row: dict[str, str]) -> Published:
    empty = [name for name, text in row.items() if not text]
    if empty or None in row:
        raise UsageError(f"{file}, line {line}: {f'{empty[0]} is empty' if empty else 'more values than columns'}")
    try:
        number = float(row["value"])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{file}, line {line}: the value '{row['value']}' is not a number")
    texts = {name: text for name, text in row.items() if name != "value"}
    return Published(value=number, **texts)


def with_published(board: Board, published: Iterable[Published]) -> Board:
    """Return the board with the published rows of its benchmarks and metrics, best first by their first column.

    They have no interval and no per-sample scores, and their protocols are the sources' own: they are never marked as
    best or tied, count in no average, and stand in a block of their own.
    """
    # Of several columns of one benchmark (other data, other settings) the published numbers stand in an unmodified one.
    order = sorted(range(len(board.columns)), key=lambda i: not _modified(board, i))
    columns = [(i, board.columns[i]) for i in order]
    positions = {(c.group.benchmark.rpartition(" v")[0], c.metric): i for i, c in columns}
    cells: dict[tuple[str, str, str], dict[int, Published]] = {}
    for row in published:
        position = positions.get((row.benchmark, row.metric))
        if position is not None:
            cells.setdefault((row.weights, row.backbone, row.source), {})[position] = row
    rows = [_as_row(found, len(board.columns)) for found in cells.values()]
    if not rows:
        note = "No published numbers for these benchmarks and metrics (benchmarks/published)."
        return dataclasses.replace(board, notes=(*board.notes, note))
    rows.sort(key=lambda row: _best_first(row, board))
    measured, floors = ([row for row in board.rows if row.floor is floor] for floor in (False, True))
    note = "Published rows quote their sources, which used their own protocols: they are not compared."
    return dataclasses.replace(board, rows=(*measured, *rows, *floors), notes=(*board.notes, note))


def _modified(board: Board, position: int) -> bool:
    """Return whether all results of a column that name the benchmark changed it, or used other data."""
    cells = [cell for row in board.rows if (cell := row.cells[position]) is not None]
    return all(r.benchmark is None or r.benchmark.modified for cell in cells for r in cell.records)


def _as_row(found: dict[int, Published], n_columns: int) -> Row:
    first = next(iter(found.values()))
    protocols = "; ".join(dict.fromkeys(row.protocol for row in found.values()))
    row_cells = [
        Cell({found[i].metric: MetricValue(value=found[i].value)}, published=found[i]) if i in found else None
        for i in range(n_columns)
    ]
    return Row(
        label=f"{first.weights} ({first.backbone})",
        weights=first.weights,
        backbone=first.backbone,
        flags=(f"published: {protocols}",),
        published=True,
        cells=tuple(row_cells),
    )


def _best_first(row: Row, board: Board) -> tuple[int, float, str]:
    position = next(i for i, cell in enumerate(row.cells) if cell is not None)
    sign = find(board.columns[position].metric).sign
    return position, -sign * (value(row, position, board.columns) or 0.0), row.label
