"""Printed definitions: recipes, benchmarks, suites, presets, weight formats, building blocks, protocols."""

from pathlib import Path
from typing import get_args

import click

from sslbench import protocols
from sslbench.cli.echo import echo
from sslbench.cli.settings_page import show_value
from sslbench.config import describe
from sslbench.errors import UsageError
from sslbench.library.benchmarks import load_benchmark, source_text
from sslbench.names import FileKind, did_you_mean, find_file, list_names
from sslbench.results import plain


def print_definition(name: str) -> None:
    """Print the definition of a name, or of KIND/NAME.

    Raises:
        UsageError: nothing is called so.
    """
    if name in list_names("protocol"):
        _show_protocol(name)
        return
    kinds: tuple[FileKind, ...] = get_args(FileKind)
    for kind in kinds:
        if name.removeprefix(f"{kind}/") in list_names(kind):
            path, text = _source_text(kind, name.removeprefix(f"{kind}/"))
            echo(f"# {path}")
            echo(text.rstrip())
            if kind == "benchmark" and "\nextends:" in f"\n{text}":
                _show_resolved(name.removeprefix("benchmark/"))
            return
    valid = {*list_names("protocol"), *(n for kind in kinds for n in list_names(kind))}
    raise UsageError(f"there is nothing called '{name}'", did_you_mean(name, valid))


def _source_text(kind: FileKind, name: str) -> tuple[Path, str]:
    if kind == "benchmark":
        return source_text(name)
    path = find_file(kind, name)
    return path, path.read_bytes().decode("utf-8", "backslashreplace")


def _show_resolved(name: str) -> None:
    """Print a benchmark merged with the files that it extends."""
    import yaml

    content = {
        key: value for key, value in plain(load_benchmark(name)).items() if value not in (None, "", 0, [], {}, False)
    }
    echo("\n# merged with the file that it extends:")
    echo(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110).rstrip())


def _show_protocol(name: str) -> None:
    protocol = protocols.find(name)
    echo(f"{name}, version {protocol.version}: {protocol.summary}\n")
    formatter = click.HelpFormatter(width=110)
    rows = describe(protocol.settings)
    formatter.write_dl(
        [
            (f"{r.name}={show_value(r.default)}", f"{r.meaning}{f', in {r.unit}' if r.unit else ''} [{r.type}]")
            for r in rows
        ]
    )
    echo(formatter.getvalue().rstrip())
