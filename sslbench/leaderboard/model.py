"""Parts of a leaderboard: columns, rows, cells, floors."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from sslbench.leaderboard.grouping import ColumnKey
from sslbench.results import MetricValue, Result, tables


@dataclasses.dataclass(frozen=True)
class Published:
    """Published number: a line of `benchmarks/published/*.csv`.

    Attributes:
        benchmark: name of sslbench's benchmark of the same task and data.
        backbone: name for `--backbone`, where there is one.
        protocol: the source's evaluation in words; seldom exactly that of the benchmark.
        source: the paper or file, with its date or commit.
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
    """Column of results that may be compared with each other.

    Attributes:
        name: unique on the board; a benchmark, or protocol/data.
    """

    name: str
    metric: str
    group: ColumnKey

    @property
    def title(self) -> str:
        """Heading in tables of text, such as 'knn/photos top1'."""
        return f"{self.name} {self.metric}"


@dataclasses.dataclass(frozen=True)
class Cell:
    """Results of one row in one column.

    Attributes:
        metrics: all metrics, not only the one shown.
        records: one per seed; empty for a floor.
        best: True if no row has a better value in this column.
        tied: True if the paired 95 % interval of the difference to the best row covers 0; None when not tested.
        published: source of a published number, which has no records.
    """

    metrics: Mapping[str, MetricValue]
    records: tuple[Result, ...] = ()
    best: bool = False
    tied: bool | None = None
    published: Published | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Row of one backbone with its weights, layer and preprocessing, or of one floor.

    Attributes:
        label: unique on the board together with the layer.
        weights: name of the file; 'chance', 'majority', 'pixels' or 'untrained' for a floor.
        flags: short remarks on the row.
        published: True if the numbers are published ones, shown beside and never compared.
        cells: one per column, None for a hole.
        average: mean over the board's complete columns, on request.
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
        """Block of the table that it belongs to."""
        return "floor" if self.floor else "published" if self.published else "result"


@dataclasses.dataclass(frozen=True)
class Extra:
    """Column on request: its heading, and a number per row of the board or None."""

    name: str
    values: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Board:
    """Table of results: rows best first by the first column, then by name; floors at the bottom.

    Attributes:
        notes: remarks on the table as a whole, one sentence each.
        averaged: number of columns in the rows' average; 0 without one.
        extras: columns on request.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    averaged: int = 0
    extras: tuple[Extra, ...] = ()

    def __repr__(self) -> str:
        """Return a line per row, a column per benchmark, and the notes."""
        return "\n".join([tables.as_text(self._rows(shown)), *self.notes]) if self.rows else "no results"

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return tables.as_html(self._rows(shown))

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a line per row and the value of each column as a number."""
        return tables.as_frame(self._rows(value))

    def _rows(self, cell: Callable[[Row, int, tuple[Column, ...]], Any]) -> list[dict[str, Any]]:
        """Return weights, layer and the columns of each row, by their headings."""
        return [
            {"weights": row.label, "layer": row.layer or None}
            | {column.title: cell(row, i, self.columns) for i, column in enumerate(self.columns)}
            for row in self.rows
        ]


def shown(row: Row, position: int, columns: tuple[Column, ...]) -> MetricValue | None:
    """Return the metric shown in a row's cell; None for a hole and where it is not computable."""
    cell = row.cells[position]
    metric = None if cell is None else cell.metrics.get(columns[position].metric)
    return None if metric is None or metric.value is None else metric


def value(row: Row, position: int, columns: tuple[Column, ...]) -> float | None:
    """Return the value shown in a row's cell; None for a hole and where it is not computable."""
    metric = shown(row, position, columns)
    return None if metric is None else metric.value
