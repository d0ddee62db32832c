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
