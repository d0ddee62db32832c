"""Help of `sslbench pretrain NAME`: the recipe and the method's settings, read without importing torch."""

from typing import Any

import click

from sslbench.cli.settings_page import show_value
from sslbench.config import describe
from sslbench.library.recipes import leaves, read_recipe
from sslbench.names import find_file, list_names
from sslbench.train.method_settings import declared_config


def write_method(name: str, formatter: click.HelpFormatter) -> None:
    """Write the sections about one recipe."""
    path = find_file("method", name)
    own = _values(name)
    module = str(own.get("method.name", ""))
    config = declared_config(module)
    if config is not None and (rows := describe(config)):
        with formatter.section(f"Settings of {module} (method.KEY=VALUE), as {name} has them"):
            formatter.write_dl(
                [
                    (f"{row.name}={_text(own.get(f'method.{row.name}', row.default))}", f"{row.meaning} [{row.type}]")
                    for row in rows
                ]
            )
    with formatter.section(f"The recipe {name} ({path})"):
        for line in path.read_text(encoding="utf-8").rstrip().splitlines():
            formatter.write(" " * formatter.current_indent + line + "\n")


def _values(name: str) -> dict[str, Any]:
    """Return dotted key -> value of a recipe and of those that it builds on."""
    content = read_recipe("method", name)
    found: dict[str, Any] = {}
    for entry in content.pop("defaults", None) or ():
        if isinstance(entry, str) and entry in list_names("method"):
            found |= _values(entry)
    return found | leaves(content)


def _text(value: Any) -> str:
    """Return a value as it is typed after KEY=."""
    return show_value(tuple(value) if isinstance(value, list) else value)
