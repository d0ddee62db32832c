"""`sslbench leaderboard`."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from sslbench.cli.echo import echo


@click.command("leaderboard")
@click.argument("folder", default="results")
@click.option("--csv", "csv_path", help="Write the table as CSV: numbers only.")
@click.option("--form", type=click.Choice(["wide", "long"]), default="wide", show_default=True, help="Of the CSV.")
@click.option("--html", "html_path", help="Write one HTML page: sortable, filterable, with plots and how it was made.")
@click.option("--markdown", "markdown_path", help="Write it as Markdown.")
@click.option("--latex", "latex_path", help="Write it as a LaTeX table (booktabs).")
@click.option("--published", is_flag=True, help="Show published numbers of the same benchmarks beside ours.")
@click.option("--average", is_flag=True, help="Add the mean over the columns in which every row has a value.")
@click.option("--curves", help="Draw accuracy against images per class of few-shot results as a PNG.")
@click.option(
    "--columns", help="Also show: train (the score on train), costs (parameters, GFLOPs, images/s, seconds, memory)."
)
@click.option("--metric", help="Show this metric in place of each benchmark's leading one.")
def command(
    folder: str,
    csv_path: str | None,
    form: str,
    html_path: str | None,
    markdown_path: str | None,
    latex_path: str | None,
    published: bool,
    average: bool,
    curves: str | None,
    columns: str | None,
    metric: str | None,
) -> None:
    """One table of all result records below FOLDER: a row per weights and layer, a column per benchmark.

    Results that cannot be compared (other data, settings or protocol version) never share a column. Cells that a suite
    could not compute are told below it.
    """
    from sslbench.cli import terminal

    terminal.show_messages()
    files = {"csv": csv_path, "html": html_path, "markdown": markdown_path, "latex": latex_path}
    write_board(
        Path(folder), files, form=form, metric=metric, published=published, average=average, columns=_names(columns)
    )
    if curves is not None:
        from sslbench.leaderboard.writers.curves import data_efficiency
        from sslbench.results.records import read_tree

        data_efficiency(read_tree(Path(folder)), Path(curves))
        echo(f"curves: {Path(curves).resolve()}")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def write_board(
    root: Path,
    files: Mapping[str, str | None] | None = None,
    *,
    form: str = "wide",
    metric: str | None = None,
    published: bool = False,
    average: bool = False,
    columns: Sequence[str] = (),
) -> None:
    """Prints the table of all records below `root` and writes it to the files that are asked for.

    Args:
        root: folder of results.
        files: 'csv', 'html', 'markdown', 'latex' -> where to.
        form: of the CSV.
        metric: to show in place of each benchmark's own.
        published: show published rows too.
        average: add a column with each row's mean.
        columns: further columns, see `leaderboard.extras`.

    Raises:
        SslbenchError: there are no records, one is damaged, or a file cannot be written.
    """
    from rich.console import Console

    from sslbench import leaderboard
    from sslbench.errors import ResultError, UsageError
    from sslbench.leaderboard import columns as further_columns
    from sslbench.names import did_you_mean
    from sslbench.results import holes
    from sslbench.results.records import read_tree

    if not root.is_dir():
        near = [f.name for f in root.parent.iterdir() if f.is_dir()] if root.parent.is_dir() else []
        raise UsageError(f"there is no folder {root}", did_you_mean(root.name, near))
    results = read_tree(root)
    if not results:
        raise ResultError(f"there are no result records below {root}", "`sslbench eval` writes them.")
    board = leaderboard.table(results, metric=metric, average=average)
    if published:
        board = leaderboard.with_published(board, leaderboard.read_published())
    board = further_columns.with_extras(board, columns)
    told = tuple(f"Hole: {hole.weights} on {hole.benchmark}: {hole.reason}." for hole in holes.read(root))
    board = dataclasses.replace(board, notes=(*board.notes, *told))
    console = Console(width=None if Console().is_terminal else 120)
    console.print(leaderboard.to_rich(board))
    if board.extras:
        console.print(further_columns.to_rich(board))
    for kind, path in (files or {}).items():
        if path is None:
            continue
        if kind == "csv":
            leaderboard.to_csv(board, Path(path), form="long" if form == "long" else "wide")
        else:
            write = {"html": leaderboard.to_html, "markdown": leaderboard.to_markdown, "latex": leaderboard.to_latex}
            write[kind](board, Path(path))
        echo(f"{kind}: {Path(path).resolve()}")
