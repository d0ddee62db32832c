"""Printing of settings: values as they are typed, and sections of names, values and origins."""

from typing import Any

import click

from sslbench.cli.echo import echo
from sslbench.text import visible


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
        echo(f"  {name:<{width}}  {value}", after=behind)
