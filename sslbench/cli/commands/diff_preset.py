"""`sslbench diff-preset`."""

import json
from typing import Any

import click

from sslbench.cli.echo import echo
from sslbench.cli.flags import argument_options, flag
from sslbench.cli.tables import print_rows, show_value
from sslbench.protocols._parts.presets import differences
from sslbench.results import plain


@click.command("diff-preset")
@click.argument("a")
@click.argument("b")
@argument_options
def command(
    a: str,
    b: str,
    as_json: bool = flag("Print everything as JSON.", "--json", default=False),
) -> int:
    """List the settings in which two presets differ, or a result record and a preset.

    A and B are presets (sslbench list presets) or records (.json). PROTOCOL or PROTOCOL/default means the protocol's
    defaults. Exit code 0: equal; 1: different.

    \b
    sslbench diff-preset knn/dino knn/vissl
    sslbench diff-preset knn knn/dinov2
    sslbench diff-preset results/knn/w.torch-1f0c.json knn/dino
    """  # noqa: D301
    found = differences(a, b)
    if not found and not as_json:
        echo(f"{a} and {b} do not differ")
    elif as_json:
        rows = {each.key: {"a": plain(each.a), "b": plain(each.b)} for each in found}
        echo(json.dumps({"a": a, "b": b, "differences": rows}, indent=1, allow_nan=False))
    else:
        print_rows([("", a, b), *((each.key, _show(each.a), _show(each.b)) for each in found)], left=3)
    return 1 if found else 0


def _show(value: Any) -> str:
    if value is None:
        return "-"
    return show_value(tuple(value) if isinstance(value, list) else value)
