"""`sslbench leaderboard`."""

from pathlib import Path

import click


@click.command("leaderboard")
@click.argument("folder", default="results")
@click.option("--csv", "csv_path", help="Write the table as CSV: numbers only.")
@click.option("--form", type=click.Choice(["wide", "long"]), default="wide", show_default=True, help="Of the CSV.")
@click.option("--html", "html_path", help="Write it as one HTML page with sortable columns.")
@click.option("--markdown", "markdown_path", help="Write it as Markdown.")
@click.option("--curves", help="Draw accuracy against images per class of few-shot results as a PNG.")
@click.option("--metric", help="Show this metric in place of each benchmark's leading one.")
def command(
    folder: str,
    csv_path: str | None,
    form: str,
    html_path: str | None,
    markdown_path: str | None,
    curves: str | None,
    metric: str | None,
) -> None:
    """One table of all result records below FOLDER: a row per weights and layer, a column per benchmark.

    Results that cannot be compared (other data, settings or protocol version) never share a column.
    """
    from sslbench.cli import terminal

    terminal.show_messages()
    write_board(
        Path(folder), csv_path=csv_path, form=form, html_path=html_path, markdown_path=markdown_path, metric=metric
    )
    if curves is not None:
        from sslbench.leaderboard.curves import data_efficiency
        from sslbench.records import read_tree

        data_efficiency(read_tree(Path(folder)), Path(curves))
        click.echo(f"curves: {Path(curves).resolve()}")


def write_board(
    root: Path,
    *,
    csv_path: str | None = None,
    form: str = "wide",
    html_path: str | None = None,
    markdown_path: str | None = None,
    metric: str | None = None,
) -> None:
    """Prints the table of all records below `root` and writes it to the files that are asked for."""
    from rich.console import Console

    from sslbench.errors import ResultError, UsageError
    from sslbench.leaderboard import table, to_csv, to_html, to_markdown, to_rich
    from sslbench.names import did_you_mean
    from sslbench.records import read_tree

    if not root.is_dir():
        near = [f.name for f in root.parent.iterdir() if f.is_dir()] if root.parent.is_dir() else []
        raise UsageError(f"there is no folder {root}", did_you_mean(root.name, near))
    results = read_tree(root)
    if not results:
        raise ResultError(f"there are no result records below {root}", "`sslbench eval` writes them.")
    board = table(results, metric=metric)
    Console(width=None if Console().is_terminal else 120).print(to_rich(board))
    for path, write in ((csv_path, "csv"), (html_path, "html"), (markdown_path, "markdown")):
        if path is None:
            continue
        if write == "csv":
            to_csv(board, Path(path), form="long" if form == "long" else "wide")
        elif write == "html":
            to_html(board, Path(path))
        else:
            to_markdown(board, Path(path))
        click.echo(f"{write}: {Path(path).resolve()}")
