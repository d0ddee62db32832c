"""Tables of result records, in which only comparable results share a column."""

from sslbench.leaderboard.board import notes_of_folders, read_folders, table
from sslbench.leaderboard.columns import extras_to_rich, with_extras
from sslbench.leaderboard.exchange import to_model_card, to_mteb, to_timm_csv
from sslbench.leaderboard.html import to_html
from sslbench.leaderboard.model import Board, Cell, Column, Published, Row
from sslbench.leaderboard.plots import data_efficiency, draw_layers
from sslbench.leaderboard.published import read_published, with_published
from sslbench.leaderboard.tables import markdown, to_csv, to_latex, to_markdown, to_rich

__all__ = [
    "Board",
    "Cell",
    "Column",
    "Published",
    "Row",
    "data_efficiency",
    "draw_layers",
    "extras_to_rich",
    "markdown",
    "notes_of_folders",
    "read_folders",
    "read_published",
    "table",
    "to_csv",
    "to_html",
    "to_latex",
    "to_markdown",
    "to_model_card",
    "to_mteb",
    "to_rich",
    "to_timm_csv",
    "with_extras",
    "with_published",
]
