"""`sslbench leaderboard`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import click

from sslbench.cli import options, remote_folder, tables, terminal
from sslbench.cli.echo import echo, echo_text, is_verbose
from sslbench.cli.flags import argument_options, flag
from sslbench.cli.help import GroupedCommand
from sslbench.errors import UsageError


@click.command("leaderboard", cls=GroupedCommand)
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@argument_options
@options.message_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    folders: tuple[Path, ...],
    csv_path: Path | None = flag("CSV file to write; numbers only.", "--csv"),
    form: Literal["wide", "long"] = flag(
        "Layout of the CSV: a column per benchmark, or a row per number.", default="wide", show_default=True
    ),
    html_path: Path | None = flag("HTML page to write: sortable, with plots and records.", "--html"),
    markdown_path: Path | None = flag("Markdown file to write.", "--markdown"),
    latex_path: Path | None = flag("LaTeX file (booktabs) to write.", "--latex"),
    model_card: Path | None = flag("Hugging Face model card whose model-index is written; its text stays."),
    timm_csv: Path | None = flag("CSV file with the columns of timm's results."),
    mteb: Path | None = flag("Folder for result files in MTEB's form."),
    published: bool = flag("Add rows of published numbers on the same benchmarks.", default=False),
    average: bool = flag("Add the mean over the columns in which every row has a value.", default=False),
    curves: Path | None = flag("PNG file with accuracy against images per class (low-shot, lsr)."),
    layers_path: Path | None = flag("PNG file with the score against the layer.", "--layers"),
    columns: str | None = flag(
        "Extra columns, comma-separated: train (score on train), costs (parameters, GFLOPs, images/s, s, memory), "
        "run (date, by, device)."
    ),
    metric: str | None = flag("Metric to show. Default: the leading metric of each benchmark."),
) -> None:
    """Show all result records below FOLDERS (default: results) as one table: a row per weights, a column per benchmark.

    Results that cannot be compared (other data, settings or protocol version) never share a column. Benchmarks of a
    suite that could not run are listed below the table.
    """
    terminal.show_messages()
    # The value tells nothing, as the flag has a default.
    if options.is_typed(ctx, "form") and csv_path is None:
        raise UsageError("--form needs --csv")
    files = {"csv": csv_path, "html": html_path, "markdown": markdown_path, "latex": latex_path}
    files |= {"model card": model_card, "timm's csv": timm_csv, "mteb": mteb, "curves": curves, "layers": layers_path}
    extras = [name.strip() for name in (columns or "").split(",") if name.strip()]
    roots = tuple(remote_folder.pull(folder) for folder in folders) or (Path("results"),)
    write_board(roots, files, form=form, metric=metric, published=published, average=average, columns=extras)


def write_board(
    roots: Sequence[Path],
    files: Mapping[str, Path | None] | None = None,
    *,
    form: Literal["wide", "long"] = "wide",
    metric: str | None = None,
    published: bool = False,
    average: bool = False,
    columns: Sequence[str] = (),
) -> None:
    """Print the table of all records below `roots` and write it to files."""
    from sslbench import leaderboard

    results, broken = leaderboard.read_folders(roots)
    board = leaderboard.table(results, metric=metric, average=average)
    if published:
        board = leaderboard.with_published(board, leaderboard.read_published())
    board = leaderboard.with_extras(board, columns)
    more = (*(board.disagreements if is_verbose() else ()), *leaderboard.notes_of_folders(roots, broken))
    board = dataclasses.replace(board, notes=(*board.notes, *more))
    for verdict in board.verdicts:
        echo_text(verdict)
    console = tables.console(120)
    console.print(leaderboard.to_rich(board, console.width))
    if board.extras:
        console.print(leaderboard.extras_to_rich(board))
    write: dict[str, Callable[[leaderboard.Board, Path], None]] = {
        "csv": functools.partial(leaderboard.to_csv, form=form),
        "html": leaderboard.to_html,
        "markdown": leaderboard.to_markdown,
        "latex": leaderboard.to_latex,
        "model card": leaderboard.to_model_card,
        "timm's csv": leaderboard.to_timm_csv,
        "mteb": leaderboard.to_mteb,
        "curves": lambda _, path: leaderboard.data_efficiency(results, path, metric=metric),
        "layers": lambda _, path: leaderboard.draw_layers(results, path, metric=metric),
    }
    for kind, path in (files or {}).items():
        if path is None:
            continue
        write[kind](board, path)
        echo(f"{kind}: {path.resolve()}")
