"""Self-contained HTML file of a board, with the provenance of every number."""

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from sslbench.leaderboard import charts, tables
from sslbench.leaderboard.columns import (
    cell_records,
    code_text,
    data_name,
    extra_text,
    mean_train,
    precision_text,
    preprocessing_text,
)
from sslbench.leaderboard.model import Board, Cell, Row, seeds_of, value
from sslbench.leaderboard.pairs import differences
from sslbench.leaderboard.tables import number
from sslbench.metrics.catalog import find
from sslbench.results import Costs, DataPart, MetricValue, Overlaps, Result
from sslbench.results.records import CONFUSION_PNG, neighbours_path, picture_path
from sslbench.text import csv_text, html_page

Lines = list[tuple[str, str]]
_MOST_BYTES = 4_000_000  # of a picture
_MOST_CLASSES = 50  # at each end of a table of classes
_BLOCKS = {"result": "results", "published": "published", "floor": "floors"}
_KINDS = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG"}


def to_html(board: Board, path: Path, title: str = "Leaderboard") -> None:
    """Write a board as one HTML file that needs nothing else: no network, no fonts."""
    # The verdicts, a chart of intervals and floors per column, the table; the rest is folded. Rows and columns are
    # filtered and sorted, which the address of the page holds; numbers may be shown as differences to a chosen row. On
    # a phone one column is shown at a time; without JavaScript all of the table.
    compared = differences(board)
    numbered = list(enumerate(board.rows))
    blocks = [(kind, [_row(board, i, row) for i, row in numbered if row.kind == kind]) for kind in _BLOCKS]
    columns = [_column(board, position) for position in range(len(board.columns))]
    paired = {i for each in compared for pair in each.found for i in pair}
    rounded = [{f"{a} {b}": [round(v, 4) for v in ends] for (a, b), ends in each.found.items()} for each in compared]
    layer = tables.several_layers(board)
    page = html_page(
        Path(__file__).with_name("board.html.jinja"),
        # a name may be broken after _ . / and -, rather than inside its words
        breakable=lambda label: Markup(re.sub(r"([_./-])(?=.)", r"\1<wbr>", str(escape(label)))),
        board=board,
        verdicts=[(_position(board, text), text) for text in board.verdicts],
        columns=columns,
        facets=_facets(board, columns),
        kinds=_BLOCKS,
        blocks=[(kind, rows) for kind, rows in blocks if rows or kind == "result"],
        layer=layer,
        charts=charts.intervals(board),
        ranks=charts.ranks(board, compared),
        references=[(i, f"{row.label} {row.layer if layer else ''}") for i, row in numbered if i in paired],
        offered=[(i, f"{board.columns[i].title}: {each.of}.") for i, each in enumerate(compared)],
        pairs=Markup(json.dumps(rounded, separators=(",", ":"))),  # numbers alone: nothing has to be escaped
        folds=[("The metrics disagree", board.disagreements), ("Notes", board.notes)],
        csv=base64.b64encode(csv_text(tables.wide(board)).encode()).decode(),
        title=title,
        legend=tables.legend(board),
    )
    tables.write_text(path, page)


def _position(board: Board, verdict: str) -> int | str:
    """Return the position of the column of a verdict; empty where it is on several."""
    return next((i for i, column in enumerate(board.columns) if verdict.startswith(f"{column.title}: ")), "")


def _column(board: Board, position: int) -> dict[str, str]:
    column = board.columns[position]
    metric = find(column.metric)
    records = (record for row in board.rows for record in cell_records(row.cells[position]))
    return {
        "name": column.name,
        "metric": column.metric,
        "about": f"{metric.title}: {metric.text}",
        "best": "descending" if metric.sign > 0 else "ascending",
        "protocol": column.group.key.protocol,
        "data": next((data_name(record.data.test.name) for record in records), ""),
    }


def _facets(board: Board, columns: Sequence[dict[str, str]]) -> dict[str, dict[str, int]]:
    """Return the groups of boxes with two or more values: value -> number of rows or columns."""
    values = {
        "architecture": [row.backbone for row in board.rows if not row.floor and row.backbone],
        "data": [column["data"] for column in columns],
        "protocol": [column["protocol"] for column in columns],
        "rows": [_BLOCKS[row.kind] for row in board.rows],
    }
    counts = {name: dict(sorted(Counter(each).items())) for name, each in values.items()}
    return {name: count for name, count in counts.items() if len(count) > 1}


def _row(board: Board, number: int, row: Row) -> dict[str, Any]:
    extras = [{"number": tables.number(e.values[number]), "text": extra_text(e.values[number])} for e in board.extras]
    cells = [_cell(board, row, number, i) for i in range(len(board.columns))]
    return {"row": row, "number": number, "cells": cells, "extras": extras, "flags": tables.unmarked(row)}


def _cell(board: Board, row: Row, number: int, position: int) -> dict[str, Any]:
    cell = row.cells[position]
    provenance: Sequence[Any] = () if cell is None else how_made(row, cell)
    return {
        "id": f"made-{number}-{position}",
        "column": board.columns[position].name,
        "text": tables.marked_text(board, row, position),
        "number": tables.number(value(row, position, board.columns)),
        "leads": tables.leads(cell),
        "train": extra_text(mean_train(cell_records(cell))),
        "made": provenance,
        "hole": "no result" if cell is None else "not computable",
        "per_class": [table for record in cell_records(cell) if (table := _per_class(record)) is not None],
        "pictures": [] if cell is None else _pictures(cell),
    }


def _per_class(record: Result) -> dict[str, Any] | None:
    """Return the table of a record's classes, the worst first; of many classes those at both ends."""
    values = {record.headline: record.per_class, **record.per_class_metrics}
    values = {name: found for name, found in values.items() if found}
    if not values:
        return None
    leading = next(iter(values.values()))
    names = sorted(leading, key=lambda name: math.inf if (score := leading[name]) is None else score)
    title = f"{len(names):,} classes, the lowest {next(iter(values))} first"
    if len(names) > 2 * _MOST_CLASSES:
        names = [*names[:_MOST_CLASSES], *names[-_MOST_CLASSES:]]
        title += f" (the first and the last {_MOST_CLASSES})"
    rows = [(name, [_class_text(metric, found.get(name)) for metric, found in values.items()]) for name in names]
    return {"title": title, "names": list(values), "rows": rows}


def _class_text(metric: str, number: float | None) -> str:
    return f"{number:,.0f}" if metric == "n" and number is not None else extra_text(number)


def _pictures(cell: Cell) -> list[dict[str, str]]:
    """Return the pictures beside the records of a cell, in base64."""
    found = []
    for record in cell_records(cell):
        confusion = None if record.file is None else record.file.with_suffix(CONFUSION_PNG)
        for title, path in (
            ("Confusion matrix", confusion),
            ("Picture: the best, median and worst images, or the scores drawn", picture_path(record)),
            ("Queries and their first neighbours, the worst first; green: right, red: wrong", neighbours_path(record)),
        ):
            if path is None or not path.is_file() or path.stat().st_size > _MOST_BYTES:
                continue
            content = path.read_bytes()
            kind = next((kind for kind, start in _KINDS.items() if content.startswith(start)), None)
            if kind is not None:
                found.append({"title": title, "kind": kind, "data": base64.b64encode(content).decode()})
    return found


def how_made(row: Row, cell: Cell) -> list[Lines]:
    """Return (key, text) lines for each measurement behind a cell, one per seed, or the source of its number."""
    if cell.published is not None:
        found = cell.published
        return [[("published in", found.source), ("where", found.where), ("protocol", found.protocol)]]
    if not cell.records:
        return [[("floor", f"{row.label}: the records' own name")]]
    return [_record(record) for record in cell.records]


def _record(record: Result) -> Lines:
    weights, protocol, data = record.weights, record.protocol, record.data
    lines: Lines = [
        ("weights", f"{weights.name}, {weights.backbone}, format {weights.format}"),
        ("loaded", f"{weights.loaded} of {weights.total} tensors, sha256 {weights.sha256[:16]}"),
        ("layer", record.layer),
        ("code", code_text(weights.code) if weights.code else ""),
        ("preprocessing", f"{preprocessing_text(record.preprocessing)} ({precision_text(record)})"),
        ("protocol", f"{protocol.name} version {protocol.version}"),
        ("settings", _pairs(protocol.settings)),
    ]
    if record.benchmark is not None:
        changed = ", modified by the user" if record.benchmark.modified else ""
        lines.append(("benchmark", f"{record.benchmark.name} version {record.benchmark.version}{changed}"))
    lines += [
        ("train", _part(data.train)),
        ("test", _part(data.test)),
        ("split", data.how),
        *[(name, _metric(metric)) for name, metric in record.metrics.items()],
    ]
    if record.train is not None:
        lines.append((f"{record.headline} on train", f"{record.train:.2f}"))
    lines += [
        (f"by {column}", ", ".join(f"{group.name} {_metric(group.metric)}, n {group.metric.n}" for group in groups))
        for column, groups in record.groups.items()
    ]
    if record.overlaps is not None:
        lines.append(("overlaps of train and test", _overlaps(record.overlaps, record.headline)))
    if record.selected:
        lines.append(("selected", _pairs(record.selected)))
    lines.append(("floors", ", ".join(filter(None, map(record.floor_text, record.floors)))))
    lines += [(f"no floor: {name}", reason) for name, reason in record.missing_floors.items()]
    lines += [("note", note) for note in record.notes]
    hardware = ""
    if (machine := record.hardware) is not None:
        rounding = f", float32 by {machine.float32}" if machine.float32 else ""
        hardware = f"{machine.device}, {machine.threads} threads{rounding}"
    lines += [
        ("seed", ", ".join(map(str, seeds_of(record)))),
        ("command", record.command),
        ("created", record.created),
        ("by", record.by or ""),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
        ("hardware", hardware),
        ("costs", "" if record.costs is None else _costs(record.costs)),
        ("timings", ", ".join(f"{name} {value:g}" for name, value in record.timings.items())),
        ("record", f"{record.file.name if record.file else ''} (id {record.id})"),
    ]
    return [(name, text) for name, text in lines if text]


def _part(part: DataPart) -> str:
    used = f"{part.n_used:,}" if part.n_used == part.n else f"{part.n_used:,} of {part.n:,}"
    return f"{part.name}: {used} samples, {len(part.classes):,} classes, fingerprint {part.fingerprint[:16]}"


def _metric(metric: MetricValue) -> str:
    if metric.value is None:
        return "n/a"
    if metric.low is None or metric.high is None:
        return f"{metric.value:.2f}"
    return f"{metric.value:.2f} ({metric.low:.2f} .. {metric.high:.2f})"


def _overlaps(found: Overlaps, headline: str) -> str:
    text = f"{found.n:,} suspected by {found.by}"
    if found.n:
        text += f" ({found.exact:,} with the same content), listed in {found.pairs_file}"
    if found.without is not None:
        text += f"; {headline} without them {_metric(found.without)}, n {found.without.n}"
    return f"{text}; near duplicates were not searched: {found.problem}" if found.problem else text


def _costs(costs: Costs) -> str:
    parts = [] if costs.parameters is None else [f"{costs.parameters / 1e6:.1f} million parameters"]
    parts += [] if costs.gflops is None else [f"{costs.gflops:.2f} GFLOPs per image"]
    parts += [] if costs.images_per_second is None else [f"{costs.images_per_second:.0f} images/s"]
    for name, stage in costs.stages.items():
        memory = "" if stage.ram_mib is None else f", at most {stage.ram_mib:.0f} MiB"
        gpu = "" if stage.gpu_mib is None else f", {stage.gpu_mib:.0f} MiB of the GPU"
        parts.append(f"{name} {stage.seconds:.1f} s{memory}{gpu}")
    return "; ".join(parts)


def _pairs(values: dict[str, Any]) -> str:
    texts = {name: number(value) if isinstance(value, float) else str(value) for name, value in values.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())
