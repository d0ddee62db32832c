"""Rows of results as text, as HTML for notebooks, and as a frame of pandas."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""Column -> cell; None is an empty cell."""


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns with a cell that is not empty, in order of their first row."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if any(row.get(name) is not None for row in rows)]


def as_text(rows: Sequence[Row]) -> str:
    """Return a table with aligned columns, numbers with two digits.

    >>> print(as_text([{"protocol": "knn", "top1": 98.888}, {"protocol": "linear", "top1": 96.0}]))
    protocol  top1
    knn       98.89
    linear    96.00
    """
    names = _columns(rows)
    lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def as_html(rows: Sequence[Row]) -> str:
    """Return a table for notebooks; all text is escaped.

    >>> as_html([{"protocol": "<knn>"}])
    '<table><thead><tr><th>protocol</th></tr></thead><tbody><tr><td>&lt;knn&gt;</td></tr></tbody></table>'
    """
    names = _columns(rows)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(row.get(name)))}</td>" for name in names) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def as_frame(rows: Sequence[Row]) -> Any:
    """Return a `pandas.DataFrame` with a line per row."""
    import pandas as pd

    return pd.DataFrame(list(map(dict, rows)))
