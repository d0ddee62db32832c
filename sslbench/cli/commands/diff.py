"""`sslbench diff`."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sslbench.cli import early, options, terminal
from sslbench.cli.echo import echo
from sslbench.cli.flags import LocalPath, argument_options, flag, same
from sslbench.errors import UsageError
from sslbench.results import plain

if TYPE_CHECKING:
    from sslbench.weights.diff import Diff

_SHOWN = 10


@click.command("diff")
@click.argument("a", type=LocalPath())
@click.argument("b", type=LocalPath())
@argument_options
def command(
    a: Path,
    b: Path,
    format_a: str | None = flag("Format of A (sslbench list formats). Default: recognised."),
    format_b: str | None = flag("Format of B. Default: recognised."),
    raw: bool = flag("Compare the key names in the files, without recognising formats.", default=False),
    as_json: bool = flag("Print everything as JSON.", "--json", default=False),
    trust_pickle: bool = same(options.NetworkFlags, "trust_pickle"),
) -> int:
    """Compare the tensors of two weights files, which may have different formats.

    Exit code 0: equal; 1: different. BatchNorm counters (num_batches_tracked) are not compared.
    """
    terminal.show_messages()
    if raw and (format_a or format_b):
        raise UsageError(
            "--raw does not go with --format-a or --format-b", "--raw compares the key names in the files."
        )
    early.refuse_mistyped((str(a), str(b)))
    for name in (format_a, format_b):
        early.refuse_wrong_network(name, None)
    early.refuse_other_files((str(a), str(b)))

    from sslbench.weights.diff import compare, read_side

    read = functools.partial(read_side, raw=raw, trust_pickle=trust_pickle)
    found = compare(read(a, format=format_a), read(b, format=format_b))
    if as_json:
        content = {**dataclasses.asdict(found), "same": found.same}
        echo(json.dumps(plain(content), indent=1, allow_nan=False))
    else:
        echo("\n".join(_lines(found, a, b)))
    return 0 if found.same else 1


def _lines(found: "Diff", a: Path, b: Path) -> list[str]:
    lines = [f"A: {a} ({found.formats[0]})", f"B: {b} ({found.formats[1]})", f"equal: {len(found.equal)} tensors"]
    if found.changed:
        lines.append(f"different: {len(found.changed)} tensors (largest |a - b|, and relative to the largest |a|)")
        for change in found.changed[:_SHOWN]:
            kinds = f"  {change.dtypes[0]} / {change.dtypes[1]}" if change.dtypes[0] != change.dtypes[1] else ""
            lines.append(f"  {change.name}  {change.largest:.3g}  {change.relative:.2g}{kinds}")
        lines += _more(len(found.changed))
    if found.reshaped:
        lines.append(f"of another shape: {len(found.reshaped)} tensors")
        shown = list(found.reshaped.items())[:_SHOWN]
        lines += [f"  {name}  {_size(one)} / {_size(other)}" for name, (one, other) in shown]
        lines += _more(len(found.reshaped))
    for letter, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            lines.append(f"only in {letter}: {len(names)} tensors")
            lines += [f"  {name}" for name in names[:_SHOWN]] + _more(len(names))
    if found.counters:
        lines.append(f"not counted: {found.counters} num_batches_tracked counters differ or are in one file only")
    if found.heads_only:
        lines.append(f"not compared: heads, which only {found.heads_only} has")
    lines.append("the backbones are equal" if found.same else "the backbones differ")
    return lines


def _more(count: int) -> list[str]:
    return [f"  ... and {count - _SHOWN} more (--json lists all)"] if count > _SHOWN else []


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "one number"
