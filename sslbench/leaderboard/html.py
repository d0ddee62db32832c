"""A board as one self-contained HTML file."""

from pathlib import Path

import jinja2

from sslbench.leaderboard import tables
from sslbench.leaderboard.model import Board, value


def to_html(board: Board, path: Path, title: str = "Leaderboard") -> None:
    """Write a board as one HTML file that needs nothing else: no network, no fonts; click on a heading to sort.

    Raises:
        ResultError: the file cannot be written.
    """
    source = Path(__file__).with_name("board.html.jinja").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(
        source
    )
    layer = tables.several_layers(board)
    rows = [
        {
            "row": row,
            "cells": [
                {
                    "text": tables.cell_text(board, row, i),
                    "number": tables.number(value(row, i, board.columns)),
                    "leads": tables.leads(cell),
                }
                for i, cell in enumerate(row.cells)
            ],
        }
        for row in board.rows
    ]
    tables.write_text(path, template.render(board=board, rows=rows, layer=layer, title=title, legend=tables.LEGEND))
