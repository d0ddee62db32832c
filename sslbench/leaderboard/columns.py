"""Columns of a board that are shown on request: the score on train, and what the numbers cost."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sslbench.errors import UsageError
from sslbench.leaderboard.model import Board, Cell, Extra, Row
from sslbench.names import did_you_mean
from sslbench.results import Costs, Result, Stage
from sslbench.text import table_cell

if TYPE_CHECKING:
    from rich.table import Table

KINDS = ("train", "costs")


def with_extras(board: Board, kinds: Sequence[str]) -> Board:
    """The board with further columns, which writers show after its own.

    Args:
        board: with all its rows.
        kinds: 'train': the leading metric on train, per column; 'costs': parameters, work and images per second of the
            backbone, seconds and peak memory of extraction, and of the protocol per column.

    Raises:
        UsageError: there is no such kind.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"there are no columns called '{kind}'", did_you_mean(kind, KINDS))
    found: list[Extra] = []
    if "train" in kinds:
        found += [
            Extra(f"{column.name} train", tuple(train_value(row.cells[i]) for row in board.rows))
            for i, column in enumerate(board.columns)
        ]
    if "costs" in kinds:
        names = list(row_costs([]))
        of_rows = [row_costs([record for cell in row.cells if cell for record in cell.records]) for row in board.rows]
        found += [Extra(name, tuple(costs[name] for costs in of_rows)) for name in names]
        for i, column in enumerate(board.columns):
            of_cells = [cell_costs(row.cells[i]) for row in board.rows]
            found += [
                Extra(f"{column.name} {name}", tuple(costs[name] for costs in of_cells)) for name in cell_costs(None)
            ]
    shown = tuple(extra for extra in found if any(value is not None for value in extra.values))
    return dataclasses.replace(board, extras=shown)


def train_value(cell: Cell | None) -> float | None:
    """The leading metric on train, the mean over the seeds; None where one has none."""
    records = cell.records if cell is not None else ()
    known = [record.train for record in records if record.train is not None]
    return sum(known) / len(known) if known and len(known) == len(records) else None


def row_costs(records: Sequence[Result]) -> dict[str, float | None]:
    """What a backbone costs, from the first of its records that says so."""
    found = [record.costs for record in records if record.costs is not None]

    def first(get: Callable[[Costs], float | None]) -> float | None:
        return next((value for costs in found if (value := get(costs)) is not None), None)

    def of_extraction(get: Callable[[Stage], float | None]) -> float | None:
        # Features that were stored already cost nothing: only what encoded the images tells their cost.
        encoded = [costs for costs in found if costs.images_per_second is not None and "extract" in costs.stages]
        return next((value for costs in encoded if (value := get(costs.stages["extract"])) is not None), None)

    return {
        "parameters": first(lambda costs: costs.parameters),
        "gflops": first(lambda costs: costs.gflops),
        "images_per_second": first(lambda costs: costs.images_per_second),
        "extract_seconds": of_extraction(lambda stage: stage.seconds),
        "extract_peak_mib": of_extraction(lambda stage: stage.ram_mib),
        "extract_peak_gpu_mib": of_extraction(lambda stage: stage.gpu_mib),
    }


def cell_costs(cell: Cell | None) -> dict[str, float | None]:
    """What the protocol cost, from the first seed."""
    first = cell.records[0] if cell is not None and cell.records else None
    stages: Mapping[str, Stage] = first.costs.stages if first is not None and first.costs is not None else {}
    stage = stages.get(first.protocol.name) if first is not None else None
    return {
        "seconds": None if stage is None else stage.seconds,
        "peak_mib": None if stage is None else stage.ram_mib,
        "peak_gpu_mib": None if stage is None else stage.gpu_mib,
    }


def extra_text(value: float | None) -> str:
    """A further column's number for people: three digits or more."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def extra_texts(board: Board, row: Row) -> list[str]:
    """The further columns of a row, as people read them."""
    position = next(i for i, other in enumerate(board.rows) if other is row)
    return [extra_text(extra.values[position]) for extra in board.extras]


def to_rich(board: Board) -> "Table":
    """The further columns for the terminal: a line each and a column per row of the board, so that it stays narrow."""
    from rich.table import Table

    shown = [i for i in range(len(board.rows)) if any(extra.values[i] is not None for extra in board.extras)]
    table = Table(padding=(0, 1))
    table.add_column("")
    several = len({board.rows[i].layer for i in shown}) > 1
    for i in shown:
        row = board.rows[i]
        table.add_column(
            table_cell(f"{row.label} {row.layer}" if several else row.label, overflow="fold"), justify="right"
        )
    for extra in board.extras:
        table.add_row(table_cell(extra.name), *(table_cell(extra_text(extra.values[i])) for i in shown))
    return table
