"""Published numbers: rows beside measured ones, never compared, and runs that `reproduce` can measure again."""

import csv
import dataclasses
import math
import re
from collections.abc import Iterable
from pathlib import Path

from sslbench import names, paths
from sslbench.config import build, read_yaml
from sslbench.errors import UsageError
from sslbench.leaderboard.model import Board, Cell, Published, Row, value
from sslbench.library.benchmarks import load_benchmark
from sslbench.library.presets import family_of
from sslbench.metrics.catalog import find
from sslbench.results import MetricValue, Result

_PROTOCOLS = "published/_protocols.yaml"


def read_published() -> list[Published]:
    """Return all published rows: those below the folders of $SSLBENCH_PATH, then the shipped ones."""
    files = [f for root in paths.search_path("benchmarks") for f in sorted((root / "published").glob("*.csv"))]
    return [row for file in files for row in read_file(file)]


def read_file(file: Path) -> list[Published]:
    """Return the rows of one file."""
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
    """Return the board with the published rows of its benchmarks and metrics, best first by their first column."""
    # They have no interval and no per-sample scores, and their protocols are the sources' own: they are never marked as
    # best or tied, count in no average, and stand in a block of their own.
    # Of several columns of one benchmark (other data, other settings) the published numbers stand in an unmodified one.
    modified: dict[tuple[str, str], int] = {}
    unmodified: dict[tuple[str, str], int] = {}
    for i, column in enumerate(board.columns):
        used = [r.benchmark for row in board.rows if (cell := row.cells[i]) is not None for r in cell.records]
        kind = modified if all(benchmark is None or benchmark.modified for benchmark in used) else unmodified
        kind[column.group.benchmark.rpartition(" v")[0], column.metric] = i
    positions = modified | unmodified
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


@dataclasses.dataclass(frozen=True)
class PublishedValue:
    """Value of one metric in a publication, and the largest difference of a correct run, both in records' units."""

    metric: str
    value: float
    tolerance: float


@dataclasses.dataclass(frozen=True)
class PublishedRun:
    """Published numbers of one network on one benchmark.

    Attributes:
        name: BENCHMARK/PRESET/WEIGHTS, as `--published` takes it.
        preset: that runs the source's protocol; '': the benchmark itself does.
        backbone: name of the network in the source; '' where the benchmark fixes it.
        best_of_layers: True if the source reports the best of several layers.
    """

    name: str
    benchmark: str
    preset: str
    weights: str
    backbone: str
    values: tuple[PublishedValue, ...]
    source: str
    best_of_layers: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Measured value beside the published one; `measured` is None where nothing was measured."""

    published: PublishedValue
    measured: float | None

    @property
    def agrees(self) -> bool:
        """True if the difference is within the tolerance."""
        return self.measured is not None and abs(self.measured - self.published.value) <= self.published.tolerance


@dataclasses.dataclass(frozen=True)
class _Protocol:
    protocol: str
    preset: str
    tolerance: float
    best_of_layers: bool = False


def published_runs() -> dict[str, PublishedRun]:
    """Return name -> published run, of all rows whose protocol has a preset, and of all references of benchmarks."""
    found: dict[str, PublishedRun] = {}
    protocols = {(one.protocol, family_of(one.preset)): one for one in _protocols()}
    for row in read_published():
        protocol = protocols.get((row.protocol, family_of(row.benchmark)))
        if protocol is not None:
            value = PublishedValue(row.metric, row.value, protocol.tolerance)
            name = f"{row.benchmark}/{Path(protocol.preset).name}/{_slug(f'{row.weights} {row.backbone}')}"
            texts = (name, row.benchmark, protocol.preset, row.weights, row.backbone)
            _add(found, PublishedRun(*texts, (value,), row.source, best_of_layers=protocol.best_of_layers))
    for benchmark in names.list_names("benchmark"):
        for reference in load_benchmark(benchmark).reference:
            value = PublishedValue(reference.metric, reference.value, reference.tolerance)
            name = f"{benchmark}/{_slug(reference.weights)}"
            _add(found, PublishedRun(name, benchmark, "", reference.weights, "", (value,), reference.source))
    return found


def find_published(name: str) -> PublishedRun:
    """Return the published run of a name."""
    runs = published_runs()
    if name not in runs:
        near = names.did_you_mean(name, runs)
        raise UsageError(f"there is no published number called '{name}'", f"{near} All: sslbench list published")
    return runs[name]


def closest_layer(run: PublishedRun, results: Iterable[Result]) -> Result:
    """Return the result to compare: of several layers, the best by the first metric."""
    found = list(results)
    if len(found) > 1 and not run.best_of_layers:
        raise UsageError(f"{run.name}: several layers were measured ({', '.join(r.layer for r in found)})")
    metric = run.values[0].metric
    sign = find(metric).sign
    return max(
        found, key=lambda result: sign * ((result.metrics[metric].value or 0.0) if metric in result.metrics else 0)
    )


def verdicts(run: PublishedRun, result: Result) -> list[Verdict]:
    """Return the published values beside those of a result."""
    return [
        Verdict(each, result.metrics[each.metric].value if each.metric in result.metrics else None)
        for each in run.values
    ]


def _protocols() -> list[_Protocol]:
    files = [root / _PROTOCOLS for root in reversed(paths.search_path("benchmarks"))]
    return [
        build(_Protocol, {**row, "preset": preset}, f"{file}: {preset}")
        for file in files
        if file.is_file()
        for preset, row in read_yaml(file).items()
    ]


def _add(found: dict[str, PublishedRun], run: PublishedRun) -> None:
    """Add a run, or its value to the run of the same name."""
    if run.name not in found:
        found[run.name] = run
        return
    before = found[run.name]
    if any(value.metric == run.values[0].metric for value in before.values):
        raise UsageError(f"benchmarks/published: {run.weights}, {run.backbone}: {run.benchmark} has two values")
    found[run.name] = dataclasses.replace(before, values=(*before.values, *run.values))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_+.]+", "-", text.lower()).strip("-")
