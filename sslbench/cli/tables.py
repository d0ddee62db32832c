"""Tables on the terminal: beside each other where the columns fit, else a line per number."""

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli.echo import echo, echo_text
from sslbench.text import table_cell, visible

if TYPE_CHECKING:
    from rich.console import Console


INTERVAL = "95 % interval"
"""Heading of the interval of the column before it."""
_UNLIMITED = 160  # characters of a line in a file or pipe
_WRAPPED = 24  # least characters of the column that may be wrapped


def console(unlimited: int = _UNLIMITED) -> "Console":
    """Return a console for stdout, as wide as the terminal or $COLUMNS; `unlimited` characters in a file or pipe."""
    from rich.console import Console

    # rich takes 80 columns where stdout is no terminal, and would break names and numbers.
    found = Console()
    return found if found.is_terminal or os.environ.get("COLUMNS") else Console(width=unlimited)


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    names: Collection[str],
    left: Collection[str] = (),
    shared: Collection[str] = (),
    wrapped: str | None = None,
) -> None:
    """Print a table on stdout. No name and no number is broken."""
    # What all rows share is said once, so that the columns that differ fit beside each other.
    above = [i for i, h in enumerate(headings) if h in shared and len({row[i] for row in rows}) == 1 and rows[0][i]]
    shown = [i for i in range(len(headings)) if i not in above and any(row[i] for row in rows)]
    if above:
        echo(", ".join(f"{headings[i]} {rows[0][i]}" for i in above))
    headings, rows = [headings[i] for i in shown], [[row[i] for i in shown] for row in rows]
    text = {*names, *left, INTERVAL} | ({wrapped} if wrapped else set())
    from rich.cells import cell_len
    from rich.table import Table

    # Columns of the terminal, of which a Chinese character takes two.
    widths = [max(cell_len(visible(cell)) for cell in (h, *(r[i] for r in rows))) for i, h in enumerate(headings)]
    widths = [min(n, _WRAPPED) if h == wrapped else n for n, h in zip(widths, headings, strict=True)]
    terminal = console()
    if sum(widths) + 2 * (len(widths) - 1) > terminal.width:
        _below(headings, rows, names, text)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in text else "right", no_wrap=heading != wrapped)
    for row in rows:
        table.add_row(*map(table_cell, row))
    terminal.print(table)


def print_rows(rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print short rows in columns of equal width, the first `left` ones aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:<{w}}" if i < left else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        echo("  ".join(cells).rstrip())


def _below(
    headings: Sequence[str], rows: Sequence[Sequence[str]], names: Collection[str], text: Collection[str]
) -> None:
    """Print a block per row: its names, and below them a line per number, the interval beside its number."""
    widest = max((len(heading) for heading in headings if heading not in (*names, INTERVAL)), default=0)
    numbers = [cell.split(" ")[0] for row in rows for h, cell in zip(headings, row, strict=True) if h not in text]
    digits = max(map(len, numbers), default=0)
    for row in rows:
        cells = dict(zip(headings, row, strict=True))
        echo("  ".join(cell for heading, cell in cells.items() if heading in names and cell))
        lines: list[str] = []
        for heading, cell in cells.items():
            if heading in names or not cell:
                continue
            if heading == INTERVAL and lines:
                lines[-1] += f"  ({cell})"
                continue
            number, space, rest = ("", "", cell) if heading in text else cell.partition(" ")
            lines.append(f"  {heading:<{widest}}  {number.rjust(digits) if number else ''}{space}{rest}")
        for line in lines:
            echo(line)


def show_value(value: Any) -> str:
    """Return a setting's value as it is typed after KEY=.

    Example:
        >>> show_value((1, 2)), show_value(None), show_value(0.5)
        ('[1,2]', 'null', '0.5')
    """
    if isinstance(value, tuple):
        return "[" + ",".join(show_value(v) for v in value) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return f"{value:g}" if isinstance(value, float) else str(value)


def section(title: str, rows: list[tuple[str, str, str]]) -> None:
    """Print a heading with rows of (name, value, origin) below it."""
    echo(before=click.style(title, bold=True))
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, value, origin in rows:
        behind = click.style(f"  [{visible(origin)}]", dim=True) if origin else ""
        echo_text(f"  {name:<{width}}  {value}", after=behind, indent=width + 4)


def together(rows: list[tuple[str, str, str]], origins: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return rows for `section` in which all rows of such an origin are one, behind the rest.

    Example:
        >>> together([("k", "[7]", "command line"), ("vote", "softmax", "default")], ("default",))
        [('k', '[7]', 'command line'), ('others', 'vote=softmax', 'default')]
    """
    found = [row for row in rows if row[2] not in origins]
    for origin in origins:
        if same := [f"{name}={value}" for name, value, of in rows if of == origin]:
            found.append(("others", " ".join(same), origin))
    return found
