"""Self-contained HTML file of a board."""

import base64
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from sslbench.leaderboard.columns import cell_records, extra_text, mean_train
from sslbench.leaderboard.model import Board, Cell, Row, value
from sslbench.leaderboard.writers import plots, ranks, tables
from sslbench.leaderboard.writers.provenance import how_made
from sslbench.metrics.catalog import find
from sslbench.results import Result
from sslbench.results.records import CONFUSION_PNG, neighbours_path, picture_path
from sslbench.text import csv_text, without_secrets

_MOST_BYTES = 4_000_000  # of a picture
_MOST_CLASSES = 50  # at each end of a table of classes
_KINDS = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG"}


def to_html(board: Board, path: Path, title: str = "Leaderboard") -> None:
    """Write a board as one HTML file that needs nothing else: no network, no fonts.

    Rows can be sorted by every column and filtered by words, columns by their name; the address of the page holds
    both. A click on a number shows its provenance, its classes and the pictures beside the record; below the table the
    ranks are drawn, and each column with its intervals and floors.

    Raises:
        ResultError: the file cannot be written.
    """
    source = Path(__file__).with_name("board.html.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, finalize=without_secrets
    )
    environment.filters["breakable"] = _breakable
    page = environment.from_string(source).render(
        board=board,
        find=find,
        blocks=_blocks(board),
        layer=tables.several_layers(board),
        plots=plots.plots(board),
        ranks=ranks.ranks(board),
        csv=base64.b64encode(csv_text(tables.wide(board)).encode()).decode(),
        title=title,
        legend=tables.LEGEND,
        width=plots.WIDTH,
    )
    tables.write_text(path, page)


def _breakable(label: str) -> Markup:
    """Return a name in HTML that may be broken after _ . / and -, rather than inside its words."""
    return Markup(re.sub(r"([_./-])(?=.)", r"\1<wbr>", str(escape(label))))


def _blocks(board: Board) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return (kind, rows) of the blocks of the table that have any rows, and of the first one always."""
    kinds = ("result", "published", "floor")
    numbered = list(enumerate(board.rows))
    blocks = [(kind, [_row(board, i, row) for i, row in numbered if row.kind == kind]) for kind in kinds]
    return [(kind, rows) for kind, rows in blocks if rows or kind == "result"]


def _row(board: Board, number: int, row: Row) -> dict[str, Any]:
    extras = [{"number": tables.number(e.values[number]), "text": extra_text(e.values[number])} for e in board.extras]
    return {"row": row, "cells": [_cell(board, row, number, i) for i in range(len(board.columns))], "extras": extras}


def _cell(board: Board, row: Row, number: int, position: int) -> dict[str, Any]:
    cell = row.cells[position]
    provenance: Sequence[Any] = () if cell is None else how_made(row, cell)
    return {
        "id": f"made-{number}-{position}",
        "column": board.columns[position].name,
        "text": tables.cell_text(board, row, position),
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
