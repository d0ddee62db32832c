"""`sslbench list`."""

import click

from sslbench.cli.echo import echo
from sslbench.errors import UsageError
from sslbench.names import KINDS, did_you_mean, list_names


@click.command("list")
@click.argument("kind", required=False)
def command(kind: str | None) -> None:
    """List the names of one KIND (methods, protocols, presets, benchmarks, formats, ...), or of all kinds.

    `sslbench list published` lists the published numbers that `sslbench reproduce` measures.
    """
    if kind == "published":
        from sslbench.leaderboard.published import published_runs

        for name in sorted(published_runs()):
            echo(name)
        return
    kinds = KINDS
    if kind is not None:
        singular = kind if kind in KINDS else kind.removesuffix("s")
        if singular not in KINDS:
            raise UsageError(f"there is no list of '{kind}'", did_you_mean(singular, KINDS))
        kinds = (singular,)
    for each in kinds:
        if kind is None:
            echo(f"{each.removesuffix('s')}s:")
        for name in list_names(each):
            echo(name if kind is not None else f"  {name}")
