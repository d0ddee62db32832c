"""Table of result records: a row per weights and layer, a column per group of comparable results."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sslbench.errors import ResultError, UsageError
from sslbench.identity import row_key
from sslbench.leaderboard.columns import column_names, natural, precision_text, preprocessing_text, row_names
from sslbench.leaderboard.marks import mark_best, row_flags, with_floor_tests
from sslbench.leaderboard.model import (
    Board,
    Cell,
    Column,
    ColumnKey,
    Row,
    groups_of,
    newest_of_each,
    value,
    without_parts,
)
from sslbench.leaderboard.verdict import names_of, verdicts
from sslbench.metrics.catalog import find
from sslbench.names import did_you_mean
from sslbench.results import MetricValue, Result, holes, mean_metric
from sslbench.results.records import left_out, read_readable

_ORDER = ("chance", "majority", "", "pixels", "untrained")


def table(
    results: Iterable[Result], *, metric: str | None = None, average: bool = False, paired_seed: int = 0
) -> Board:
    """Return the table of results: a row per weights and layer, a column per group of comparable results.

    Results of one row and one column that differ in their seed only are averaged; the interval is then
    that of `results.mean_metric`. Missing measurements are holes.
    """
    notes: list[str] = []
    results = list(results)
    records = _newest(results, notes)
    shown = [r for r in records if metric is None or metric in r.metrics]
    if metric is not None and records and not shown:
        raise UsageError(
            f"no result has the metric '{metric}'", did_you_mean(metric, {name for r in records for name in r.metrics})
        )
    if len(shown) < len(records):
        notes.append(f"{len(records) - len(shown)} results have no metric '{metric}' and are not shown.")
    groups = groups_of(shown, metric)
    once = newest_of_each(shown, groups)
    if len(once) < len(shown):
        notes.append(f"{len(shown) - len(once)} older records of repeated measurements are not shown.")
    shown = once
    members: dict[ColumnKey, list[Result]] = defaultdict(list)
    rows: dict[str, list[Result]] = defaultdict(list)
    for record in shown:
        members[groups[record.id]].append(record)
        rows[row_key(record)].append(record)
    names = column_names(members)
    unsorted = (Column(name=names[group], metric=group.key.metric, group=group) for group in members)
    columns = tuple(sorted(unsorted, key=lambda column: natural(column.name)))
    called: dict[str, set[str]] = defaultdict(set)  # weights that were evaluated under several names show all of them
    for record in results:
        called[row_key(record)].add(record.weights.name)
    used = {
        key: (records[0], dataclasses.replace(records[0].weights, name=" = ".join(sorted(called[key]))))
        for key, records in rows.items()
    }
    labels = row_names({key: dataclasses.replace(record, weights=weights) for key, (record, weights) in used.items()})
    measured = [_row(labels[key], records, columns, groups) for key, records in rows.items()]
    body, without_ties = mark_best([row for row in measured if not row.floor], columns, paired_seed)
    body = with_floor_tests(body, [row for row in measured if row.floor], columns, paired_seed)
    notes += without_ties
    filled = (i for i in range(len(columns)) if any(value(row, i, columns) is not None for row in body))
    sorted_by = next(filled, 0)
    body.sort(key=lambda row: _sort_key(row, sorted_by, columns))
    notes += _known_by_rows(shown)
    bottom = floor_rows([row for row in measured if row.floor], shown, columns, groups)
    board = Board(
        columns=columns,
        rows=(*body, *bottom),
        verdicts=verdicts(body, columns),
        notes=tuple(notes),
        disagreements=tuple(_disagreements(body, columns)),
        sorted_by=sorted_by,
    )
    return _with_average(board) if average else board


def read_folders(roots: Sequence[Path]) -> tuple[list[Result], list[ResultError]]:
    """Return all records below the folders, one that lies in several of them once, and the errors of broken ones.

    Raises:
        ResultError: there are none, or none that can be read.
    """
    for root in roots:
        if root.is_file():
            raise UsageError(f"{root} is a file, not a folder of results", f"Give its folder: {root.parent}.")
        if not root.is_dir():
            near = [f.name for f in root.parent.iterdir() if f.is_dir()] if root.parent.is_dir() else []
            raise UsageError(f"there is no folder {root}", did_you_mean(root.name, near))
    read = [read_readable(root) for root in roots]
    # The same measurement under two names of weights is two rows, under one name one.
    found = {(result.id, result.weights.name): result for results, _ in read for result in results}
    broken = [error for _, errors in read for error in errors]
    if not found and broken:
        raise broken[0]
    if not found:
        raise ResultError(
            f"there are no result records below {' '.join(map(str, roots))}", "`sslbench eval` writes them."
        )
    return list(found.values()), broken


def notes_of_folders(roots: Sequence[Path], broken: Sequence[ResultError]) -> list[str]:
    """Return a note for each hole in the folders, and for each record and list of holes that could not be read."""
    notes, unread = list[str](), list(broken)
    for root in roots:
        try:
            found = holes.texts(holes.read(root))
            notes += [f"Hole: {text}. {remedy}".rstrip() for text, remedy in found.items()]
        except ResultError as error:
            unread.append(error)
    return [*notes, *left_out(unread)]


def _known_by_rows(records: Sequence[Result]) -> list[str]:
    """Return a note on samples that are taken for the same by their labels alone, where two networks share some."""
    weights: dict[str, set[str]] = {}
    for record in records:
        if record.data.known_by == "rows":
            weights.setdefault(record.data.test.fingerprint, set()).add(record.weights.sha256)
    if all(len(found) == 1 for found in weights.values()):
        return []
    return [
        "Features without ids: rows with the same labels in the same order are taken for the same samples. A column "
        "'id' beside the labels makes sure of it."
    ]


def _newest(results: Iterable[Result], notes: list[str]) -> list[Result]:
    """Return the newest record of each measurement, without parts of means, in an order independent of paths."""
    newest: dict[str, Result] = {}
    for record in sorted(results, key=lambda r: (r.id, r.created, str(r.file))):
        if record.id in newest and record.weights.name == newest[record.id].weights.name:
            notes.append(f"The measurement {record.id} has two records; the newer one ({record.created}) is shown.")
        newest[record.id] = record
    return sorted(without_parts(list(newest.values())), key=lambda r: (r.weights.name, r.layer, r.seed, r.id))


def _row(label: str, members: Sequence[Result], columns: Sequence[Column], groups: Mapping[str, ColumnKey]) -> Row:
    first = members[0]
    by_group: dict[ColumnKey, list[Result]] = defaultdict(list)
    for record in members:
        by_group[groups[record.id]].append(record)
    cells: list[Cell | None] = []
    for column in columns:
        records = by_group[column.group]  # one per seed, of which the common metrics are shown
        metrics = [name for name in (records[0].metrics if records else ()) if all(name in r.metrics for r in records)]
        merged = {name: mean_metric(name, [record.metrics[name] for record in records]) for name in metrics}
        cells.append(Cell(metrics=merged, records=tuple(records)) if records else None)
    return Row(
        label=label,
        weights=first.weights.name,
        sha256=first.weights.sha256,
        backbone=first.weights.backbone,
        layer=first.feature,
        preprocessing=preprocessing_text(first.preprocessing),
        precision=precision_text(first),
        flags=row_flags(members, columns, cells),
        floor=first.is_floor,
        cells=tuple(cells),
    )


def _sort_key(row: Row, position: int, columns: tuple[Column, ...]) -> tuple[float, str, str]:
    first = value(row, position, columns)
    direction = find(columns[position].metric).direction if columns else 0
    return (float("inf") if first is None or direction == 0 else -direction * first, row.label, row.layer)


def _disagreements(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Return one short note per column by whose other metrics a row is best that is not tied with the best."""
    notes = []
    names = names_of(rows)
    for position, column in enumerate(columns):
        cells = {names[id(row)]: cell for row in rows if (cell := row.cells[position]) is not None}
        winners = {}
        for name in [column.metric, *sorted({name for cell in cells.values() for name in cell.metrics})]:
            values = {row: cell.metrics[name].value for row, cell in cells.items() if name in cell.metrics}
            numbers = {row: v for row, v in values.items() if v is not None}
            direction = find(name).direction
            if len(numbers) == len(cells) > 1 and direction:
                best = max(direction * v for v in numbers.values())
                winners[name] = frozenset(row for row, v in numbers.items() if direction * v == best)
        leading = {
            names[id(row)] for row in rows if (cell := row.cells[position]) is not None and (cell.best or cell.tied)
        }
        if any(not best & leading for best in winners.values()):
            groups = {winner: [m for m, w in winners.items() if w == winner] for winner in winners.values()}
            found = ", ".join(
                f"{' and '.join(sorted(best))} by {metrics[0]}"
                + (f" and {len(metrics) - 1} more" if len(metrics) > 1 else "")
                for best, metrics in groups.items()
            )
            notes.append(f"{column.name}: the metrics disagree on the best row: {found}.")
    return notes


def _refuse_mixture(columns: Sequence[Column]) -> None:
    """Refuse to average metrics of different units or directions."""
    for column in columns[1:]:
        first = columns[0]
        one, other = find(first.metric), find(column.metric)
        other_labels = one.label_units and column.group.key.test != first.group.key.test
        if not one.averages_with(other) or other_labels:
            described = [f"{c.metric} of {c.name} ({m.text})" for c, m in ((first, one), (column, other))]
            raise UsageError(
                f"{' and '.join(described)} cannot be averaged",
                "Name a metric that all columns have (--metric top1), or leave out the other records.",
            )


def _with_average(board: Board) -> Board:
    """Return the board with the mean of each row over the complete columns; without any, with a note."""
    positions = range(len(board.columns))
    body = [row for row in board.rows if not row.floor]
    complete = [i for i in positions if all(value(row, i, board.columns) is not None for row in body)]
    _refuse_mixture([board.columns[i] for i in complete])
    if not complete or not body:
        reason = "no column has a value in every row" if body else "there are floors only"
        return dataclasses.replace(board, notes=(*board.notes, f"No average: {reason}."))
    rows = []
    for row in board.rows:
        numbers = [v for i in complete if (v := value(row, i, board.columns)) is not None]
        mean = sum(numbers) / len(numbers) if len(numbers) == len(complete) else None
        rows.append(dataclasses.replace(row, average=mean))
    names = ", ".join(board.columns[i].name for i in complete)
    note = f"The average is over {len(complete)} of {len(board.columns)} columns: {names}."
    return dataclasses.replace(board, rows=tuple(rows), notes=(*board.notes, note), averaged=len(complete))


def floor_rows(
    measured: Sequence[Row], results: Sequence[Result], columns: Sequence[Column], groups: Mapping[str, ColumnKey]
) -> list[Row]:
    """Return the floor rows: floors with a record of their own, and floors that other records state."""
    # Of different values that the results of one column state for a floor, the best counts: rows should be above it.
    measured_cells = {
        (*_kind(row.weights, row.backbone), i) for row in measured for i, cell in enumerate(row.cells) if cell
    }
    # (floor, backbone) -> position of the column -> metric -> value
    named: dict[tuple[str, str], dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    positions = {column.group: i for i, column in enumerate(columns)}
    for result in results:
        position = positions[groups[result.id]]
        for floor, values in result.floors.items():
            kind = _kind(floor, result.weights.backbone)
            if (*kind, position) in measured_cells:
                continue
            cell = named[kind][position]
            for name, number in values.items():
                if number is not None:
                    better = min if find(name).sign < 0 else max
                    cell[name] = better(number, cell.get(name, number))
    rows = list(measured)
    for (floor, backbone), stated in named.items():
        metrics = [{name: MetricValue(value=number) for name, number in stated[i].items()} for i in range(len(columns))]
        if any(metrics):
            label = f"{backbone} untrained" if backbone else floor
            cells = tuple(Cell(own) if own else None for own in metrics)
            rows.append(Row(label=label, weights=floor, backbone=backbone, flags=("floor",), floor=True, cells=cells))
    return sorted(rows, key=_place)


def _kind(name: str, backbone: str) -> tuple[str, str]:
    """Return the floor and, for an untrained one, the backbone."""
    if name.partition(":")[0] == "pixels":
        return "pixels", ""
    return ("untrained", backbone) if name.endswith("untrained") else (name, "")


def _place(row: Row) -> tuple[int, str, str]:
    """Return the place of a floor among the others: those that only some protocols state stand in the middle."""
    floor = _kind(row.weights, "")[0]
    return _ORDER.index(floor if floor in _ORDER else ""), row.label, row.layer
