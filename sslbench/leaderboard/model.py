"""What a leaderboard is made of."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from sslbench.leaderboard.grouping import Group
from sslbench.results import Metric, Result


@dataclasses.dataclass(frozen=True)
class Published:
    """One number as it was published: a line of `benchmarks/published/*.csv`.

    Attributes:
        benchmark: ours that measures the same thing, on the same data.
        weights: what was evaluated, as its source calls it.
        backbone: by the name that `--backbone` takes, where there is one.
        metric: name of ours.
        value: in percent.
        protocol: how the source evaluated; seldom exactly as our benchmark does.
        source: the paper or file, with its date or commit.
        where: table or section.
    """

    benchmark: str
    weights: str
    backbone: str
    metric: str
    value: float
    protocol: str
    source: str
    where: str


@dataclasses.dataclass(frozen=True)
class Column:
    """Results that may be compared with each other.

    Attributes:
        name: unique on the board; a benchmark, or protocol/data.
        metric: the one that is shown.
        group: what all results of the column have in common.
    """

    name: str
    metric: str
    group: Group


@dataclasses.dataclass(frozen=True)
class Cell:
    """What one row scored in one column.

    Attributes:
        metrics: all of them, not only the one that is shown.
        records: one per seed; empty for a floor.
        best: no row has a higher value in this column.
        tied: the paired 95 % interval of the difference to the best row holds 0; None when that was not tested.
        published: where a published number comes from; it has no records.
    """

    metrics: Mapping[str, Metric]
    records: tuple[Result, ...] = ()
    best: bool = False
    tied: bool | None = None
    published: Published | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One backbone with its weights, layer and preprocessing, or one floor.

    Attributes:
        label: unique on the board together with the layer.
        weights: the file's name as the user called it; 'chance', 'majority', 'pixels' or 'untrained' for a floor.
        flags: what a reader must know, short.
        published: it is somebody else's number, shown beside and never compared.
        cells: one per column, None where nothing was measured.
        average: over the board's complete columns, when asked for.
    """

    label: str
    weights: str
    sha256: str = ""
    backbone: str = ""
    layer: str = ""
    preprocessing: str = ""
    precision: str = ""
    flags: tuple[str, ...] = ()
    floor: bool = False
    published: bool = False
    cells: tuple[Cell | None, ...]
    average: float | None = None

    @property
    def kind(self) -> Literal["result", "published", "floor"]:
        """Which block of the table it stands in."""
        return "floor" if self.floor else "published" if self.published else "result"


@dataclasses.dataclass(frozen=True)
class Extra:
    """A further column, shown on request: its heading, and a number per row of the board or None."""

    name: str
    values: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Board:
    """A table of results: rows best first by the first column, then by name; floors at the bottom.

    Attributes:
        notes: what a reader must know about the table as a whole, one sentence each.
        averaged: number of columns that the rows' average is over; 0 without one.
        extras: further columns.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    averaged: int = 0
    extras: tuple[Extra, ...] = ()


def shown(row: Row, position: int, columns: tuple[Column, ...]) -> Metric | None:
    """The metric shown in a row's cell; None for a hole and where it is not computable."""
    cell = row.cells[position]
    metric = None if cell is None else cell.metrics.get(columns[position].metric)
    return None if metric is None or metric.value is None else metric


def value(row: Row, position: int, columns: tuple[Column, ...]) -> float | None:
    """The value shown in a row's cell; None for a hole and where it is not computable."""
    metric = shown(row, position, columns)
    return None if metric is None else metric.value
