"""Columns of a board on request: the score on train, and costs. A new column is one more `OptionalColumn`."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from sslbench.errors import UsageError
from sslbench.leaderboard.model import Board, Cell, Extra, Row
from sslbench.names import did_you_mean
from sslbench.results import Costs, Result, Stage
from sslbench.text import table_cell

if TYPE_CHECKING:
    from rich.table import Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionalColumn:
    """Column on request, computed from records.

    Attributes:
        name: heading in long CSV files.
        heading: heading elsewhere; default the name. One per cell stands behind the name of the board's column.
        option: word of `--columns` that shows it.
        of: the records of a row (all its cells), or of each cell (one per seed), that the value is computed from.
        value: function from these records to the number; None where it is not known.
        headline_only: True if long CSV files state it for the headline metric only.
    """

    name: str
    heading: str = ""
    option: Literal["train", "costs"]
    of: Literal["row", "cell"]
    value: Callable[[Sequence[Result]], float | None]
    headline_only: bool = False


def mean_train(records: Sequence[Result]) -> float | None:
    """Return the headline metric on train, the mean over the seeds; None where one has none."""
    scores = [record.train for record in records if record.train is not None]
    return sum(scores) / len(scores) if scores and len(scores) == len(records) else None


def _backbone_cost(value: Callable[[Costs], float | None]) -> Callable[[Sequence[Result]], float | None]:
    """Return the function to the first known cost of the backbone."""
    return lambda records: next(
        (v for record in records if record.costs is not None and (v := value(record.costs)) is not None), None
    )


def _extraction_cost(value: Callable[[Stage], float | None]) -> Callable[[Sequence[Result]], float | None]:
    """Return the function to the first known cost of extraction, from records that encoded images.

    Stored features cost nothing, so that records which reused them state no cost of extraction.
    """
    return _backbone_cost(
        lambda costs: (
            value(costs.stages["extract"])
            if costs.images_per_second is not None and "extract" in costs.stages
            else None
        )
    )


def _protocol_cost(value: Callable[[Stage], float | None]) -> Callable[[Sequence[Result]], float | None]:
    """Return the function to the cost of the protocol, from the first seed."""

    def of_first(records: Sequence[Result]) -> float | None:
        costs = records[0].costs if records else None
        stage = costs.stages.get(records[0].protocol.name) if costs is not None else None
        return None if stage is None else value(stage)

    return of_first


COLUMNS = (
    OptionalColumn(
        name="train_value", heading="train", option="train", of="cell", value=mean_train, headline_only=True
    ),
    OptionalColumn(name="parameters", option="costs", of="row", value=_backbone_cost(lambda costs: costs.parameters)),
    OptionalColumn(
        name="gflops",
        heading="GFLOPs per image",
        option="costs",
        of="row",
        value=_backbone_cost(lambda costs: costs.gflops),
    ),
    OptionalColumn(
        name="images_per_second",
        heading="images per second",
        option="costs",
        of="row",
        value=_backbone_cost(lambda costs: costs.images_per_second),
    ),
    OptionalColumn(
        name="extract_seconds",
        heading="extraction seconds",
        option="costs",
        of="row",
        value=_extraction_cost(lambda stage: stage.seconds),
    ),
    OptionalColumn(
        name="extract_peak_mib",
        heading="extraction peak MiB",
        option="costs",
        of="row",
        value=_extraction_cost(lambda stage: stage.ram_mib),
    ),
    OptionalColumn(
        name="extract_peak_gpu_mib",
        heading="extraction peak MiB of the GPU",
        option="costs",
        of="row",
        value=_extraction_cost(lambda stage: stage.gpu_mib),
    ),
    OptionalColumn(name="seconds", option="costs", of="cell", value=_protocol_cost(lambda stage: stage.seconds)),
    OptionalColumn(
        name="peak_mib",
        heading="peak MiB",
        option="costs",
        of="cell",
        value=_protocol_cost(lambda stage: stage.ram_mib),
    ),
    OptionalColumn(
        name="peak_gpu_mib",
        heading="peak MiB of the GPU",
        option="costs",
        of="cell",
        value=_protocol_cost(lambda stage: stage.gpu_mib),
    ),
)
OPTIONS = tuple(dict.fromkeys(column.option for column in COLUMNS))


def with_extras(board: Board, options: Sequence[str]) -> Board:
    """Return the board with columns on request, which writers show after its own.

    Args:
        board: board with all its rows.
        options: 'train': the headline metric on train, per column; 'costs': parameters, operations and images per
            second of the backbone, seconds and peak memory of extraction, and of the protocol per column.

    Raises:
        UsageError: there is no such option.
    """
    for option in options:
        if option not in OPTIONS:
            raise UsageError(f"there are no columns called '{option}'", did_you_mean(option, OPTIONS))
    found: list[Extra] = []
    for option in OPTIONS:
        columns = [column for column in COLUMNS if option in options and column.option == option]
        of_rows = [column for column in columns if column.of == "row"]
        found += [Extra(_heading(c), tuple(c.value(row_records(row)) for row in board.rows)) for c in of_rows]
        found += [
            Extra(f"{column.name} {_heading(c)}", tuple(c.value(cell_records(row.cells[i])) for row in board.rows))
            for i, column in enumerate(board.columns)
            for c in columns
            if c.of == "cell"
        ]
    shown = tuple(extra for extra in found if any(value is not None for value in extra.values))
    return dataclasses.replace(board, extras=shown)


def _heading(column: OptionalColumn) -> str:
    return column.heading or column.name


def row_records(row: Row) -> list[Result]:
    """Return the records of all cells of a row."""
    return [record for cell in row.cells for record in cell_records(cell)]


def cell_records(cell: Cell | None) -> tuple[Result, ...]:
    """Return the records of a cell; none for a hole."""
    return () if cell is None else cell.records


def extra_text(value: float | None) -> str:
    """Return the number of a column on request with three digits or more.

    >>> extra_text(23508032), extra_text(8.179), extra_text(None)
    ('23,508,032', '8.18', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def extra_texts(board: Board, row: Row) -> list[str]:
    """Return the columns on request of a row as text."""
    position = next(i for i, other in enumerate(board.rows) if other is row)
    return [extra_text(extra.values[position]) for extra in board.extras]


def to_rich(board: Board) -> "Table":
    """Return the columns on request for the terminal: a line each and a column per row, so that it stays narrow."""
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
