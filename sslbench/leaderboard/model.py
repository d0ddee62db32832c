"""Parts of a leaderboard: groups of comparable results, columns, rows, cells, published numbers."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sslbench.identity import Comparability, comparability_key, digest, row_key
from sslbench.results import MetricValue, Result, tables

FLOORS = ("untrained", "pixels")
"""Floors that rows are tested against, which have records of their own."""
UNSET = "unset"
"""Text for a setting that the other record has and this one lacks."""


@dataclasses.dataclass(frozen=True)
class Property:
    """Property that comparable results share, as text.

    Attributes:
        value: for comparisons, in full.
        text: for lists of differences.
    """

    value: str
    text: str
    heading: str


@dataclasses.dataclass(frozen=True)
class ColumnKey:
    """Key of the results of one column; `benchmark` is its name and version, empty without one."""

    key: Comparability
    benchmark: str = ""

    def properties(self) -> dict[str, Property]:
        """Return every field of the key by its title; each setting and each further set has a title of its own."""
        key = self.key
        version = self.benchmark.rpartition(" v")[2]
        found = {
            f"setting {name}": Property(json.dumps(value), _plain(value), f"{name}={short_text(value)}")
            for name, value in json.loads(key.settings).items()
        }
        plain = {
            "metric": (key.metric, key.metric),
            "benchmark": (self.benchmark or UNSET, f"v{version}" if version else "no benchmark"),
            "protocol": (key.protocol, key.protocol),
            "protocol version": (str(key.version), f"{'protocol ' if version else ''}v{key.version}"),
            "part of train": (key.train_part or "all", key.train_part or "all of train"),
            "train samples used": (str(key.n_train), f"n_train={key.n_train}"),
            "test samples used": (str(key.n_test), f"n={key.n_test}"),
            "code of the protocol": (key.code, f"code {key.code[:4]}"),
            "groups": (key.groups, f"groups {key.groups[:4]}"),
        }
        found |= {title: Property(value, value, heading) for title, (value, heading) in plain.items()}
        for title, fingerprint, start in (("train data", key.train, "train"), ("test data", key.test, "data")):
            found[title] = Property(fingerprint, fingerprint[:8], f"{start} {fingerprint[:4]}")
        names = key.unreadable
        more = f" and {len(names) - 3}" if len(names) > 3 else ""
        listed = f"{len(names)} ({', '.join(names[:3])}{more})" if names else "0"
        found["unreadable images"] = Property(json.dumps(names), listed, f"{len(names)} skipped")
        for name, fingerprint, n in key.further:
            text = f"{fingerprint[:8]}, {n:,} images"
            found[f"further set {name}"] = Property(f"{fingerprint} {n}", text, self.sets_heading)
        return found

    @property
    def sets_heading(self) -> str:
        """All further sets in the heading of a column; ImageNet-C has 75."""
        return f"sets {digest(self.key.further)[:4]}" if self.key.further else "no sets"

    def lacking(self, title: str) -> Property:
        """Return the property in place of a setting or further set that only another key has."""
        setting = f"{title.removeprefix('setting ')}={UNSET}"
        return Property("", UNSET, setting if title.startswith("setting ") else self.sets_heading)


def differences(keys: Sequence[ColumnKey]) -> dict[str, list[Property]]:
    """Return title -> property of each key, for the titles in which at least two of them differ."""
    every = [key.properties() for key in keys]
    found = {}
    for title in dict.fromkeys(title for properties in every for title in properties):
        values = [each.get(title) or key.lacking(title) for key, each in zip(keys, every, strict=True)]
        if len({value.value for value in values}) > 1:
            found[title] = values
    return found


def short_text(value: Any) -> str:
    """Return at most 24 characters of a value of a setting; items of a list without brackets."""
    text = ",".join(map(_plain, value if isinstance(value, list) else [value]))
    return text if len(text) <= 24 else text[:23] + "…"


def _plain(value: Any) -> str:
    """Return a value of a setting as text: JSON, but text as it is."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def column_keys(results: Sequence[Result], metric: str | None) -> list[ColumnKey]:
    """Return the key of each result; those of one key may be compared, all others may not."""
    # A result without the name of a benchmark joins the benchmark that measures the same, if there is one only; two
    # benchmarks, or two versions of one, are never in one group, whatever they have in common.
    named: dict[Comparability, set[str]] = defaultdict(set)
    keys = [comparability_key(result, metric) for result in results]
    for key, result in zip(keys, results, strict=True):
        if result.benchmark is not None:
            named[key].add(_benchmark(result))
    joined = {key: next(iter(names)) if len(names) == 1 else "" for key, names in named.items()}
    return [
        ColumnKey(key, _benchmark(result) or joined.get(key, "")) for key, result in zip(keys, results, strict=True)
    ]


def groups_of(results: Sequence[Result], metric: str | None) -> dict[str, ColumnKey]:
    """Return the key of each result, see `column_keys`, by its id."""
    return {result.id: key for result, key in zip(results, column_keys(results, metric), strict=True)}


def newest_of_each(results: Sequence[Result], groups: Mapping[str, ColumnKey]) -> list[Result]:
    """Return the newest record of each cell and seed, in the order of the results."""
    # One measurement may have several records: with and without the name of a benchmark, or of a benchmark whose file
    # was edited. They do not count as seeds.
    newest: dict[tuple[object, ...], Result] = {}
    for result in results:
        key = (row_key(result), result.weights.sha256, groups[result.id], result.seed)
        if key not in newest or newest[key].created <= result.created:
            newest[key] = result
    ids = {result.id for result in newest.values()}
    return [result for result in results if result.id in ids]


def without_parts(results: Sequence[Result]) -> list[Result]:
    """Return the results without single trainings whose mean over several is among them."""
    parts = {training.record for result in results for training in result.trainings}
    return [result for result in results if result.id not in parts]


def seeds_of(result: Result) -> list[int]:
    """Return the seed of each training of a record."""
    return [training.seed for training in result.trainings] or [result.seed]


def _benchmark(result: Result) -> str:
    return "" if result.benchmark is None else f"{result.benchmark.name} v{result.benchmark.version}"


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
class FloorTest:
    """Paired test of a cell against a floor of the same column.

    Attributes:
        value: metric of the floor.
        above: True if the whole 95 % interval of the difference is on the better side; None where it was not tested.
    """

    value: float
    above: bool | None


@dataclasses.dataclass(frozen=True)
class Cell:
    """Results of one row in one column.

    Attributes:
        metrics: all metrics, not only the one shown.
        records: one per seed; empty for a floor.
        best: True if no row has a better value in this column, and another one has a value.
        tied: True if the paired 95 % interval of the difference to the best row covers 0; None when not tested.
        published: source of a published number, which has no records.
        floors: 'untrained' (the same architecture, layer and preprocessing), 'pixels' -> the test against it.
    """

    metrics: Mapping[str, MetricValue]
    records: tuple[Result, ...] = ()
    best: bool = False
    tied: bool | None = None
    published: Published | None = None
    floors: Mapping[str, FloorTest] = dataclasses.field(default_factory=dict)


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
    """Column on request: its heading, and a number, text or None per row of the board."""

    name: str
    values: tuple[float | str | None, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Board:
    """Table of results: rows best first by one column, then by name; floors at the bottom.

    Attributes:
        verdicts: a sentence per column: the best row, ties with it, floors; and differences in preprocessing.
        notes: remarks on the table as a whole, one sentence each.
        disagreements: columns whose other metrics have another best row, one sentence each.
        sorted_by: position of the column that orders the rows: the first with a result.
        averaged: number of columns in the rows' average; 0 without one.
        extras: columns on request.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    verdicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    sorted_by: int = 0
    averaged: int = 0
    extras: tuple[Extra, ...] = ()

    def __repr__(self) -> str:
        """Return the verdicts, a line per row with a column per benchmark, and the notes."""
        return (
            "\n".join([*self.verdicts, tables.as_text(self._rows(shown)), *self.notes]) if self.rows else "no results"
        )

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


def measured(board: Board) -> Iterator[tuple[Row, Column, Cell, MetricValue]]:
    """Yield every cell of the measured rows whose metric has a value: no floors, no published numbers."""
    for row in board.rows:
        for i, (column, cell) in enumerate(zip(board.columns, row.cells, strict=True)):
            metric = shown(row, i, board.columns)
            if row.kind == "result" and cell is not None and metric is not None:
                yield row, column, cell, metric


def value(row: Row, position: int, columns: tuple[Column, ...]) -> float | None:
    """Return the value shown in a row's cell; None for a hole and where it is not computable."""
    metric = shown(row, position, columns)
    return None if metric is None else metric.value
