"""Self-contained HTML file of a board."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from sslbench.leaderboard.columns import cell_records, extra_text, mean_train
from sslbench.leaderboard.model import Board, Cell, Row, value
from sslbench.leaderboard.writers import plots, tables
from sslbench.leaderboard.writers.provenance import how_made
from sslbench.metrics.catalog import find
from sslbench.results.records import neighbours_path

_MOST_BYTES = 4_000_000  # of a sheet of neighbours


def to_html(board: Board, path: Path, title: str = "Leaderboard") -> None:
    """Write a board as one HTML file that needs nothing else: no network, no fonts.

    Rows can be sorted by every column and filtered by words, columns by their name; a click on a number shows its
    provenance, and for retrieval the first neighbours of some queries; below the table each column is drawn with its
    intervals and floors.

    Raises:
        ResultError: the file cannot be written.
    """
    source = Path(__file__).with_name("board.html.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    page = environment.from_string(source).render(
        board=board,
        find=find,
        blocks=_blocks(board),
        layer=tables.several_layers(board),
        plots=plots.plots(board),
        title=title,
        legend=tables.LEGEND,
        width=plots.WIDTH,
    )
    tables.write_text(path, page)


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
        "pictures": [] if cell is None else _pictures(cell),
    }


def _pictures(cell: Cell) -> list[str]:
    """Return the sheets of neighbours beside the records of a cell, as base64 of JPEG files."""
    found = []
    for record in cell_records(cell):
        path = neighbours_path(record)
        if path is not None and path.is_file() and path.stat().st_size <= _MOST_BYTES:
            content = path.read_bytes()
            found += [base64.b64encode(content).decode()] if content.startswith(b"\xff\xd8\xff") else []
    return found
