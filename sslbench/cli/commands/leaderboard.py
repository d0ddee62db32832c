"""`sslbench leaderboard`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sslbench.cli import options, remote_folder, tables, terminal
from sslbench.cli.echo import echo, echo_text, is_verbose
from sslbench.cli.flags import argument_options, flag
from sslbench.cli.help import GroupedCommand
from sslbench.errors import ResultError, UsageError
from sslbench.names import did_you_mean

if TYPE_CHECKING:
    from sslbench.results import Result


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
    files |= {"model card": model_card, "timm's csv": timm_csv, "mteb": mteb}
    extras = [name.strip() for name in (columns or "").split(",") if name.strip()]
    roots = tuple(remote_folder.pull(folder) for folder in folders) or (Path("results"),)
    write_board(roots, files, form=form, metric=metric, published=published, average=average, columns=extras)
    if curves is not None:
        from sslbench.leaderboard import plots

        plots.data_efficiency(_records(roots)[0], curves, metric=metric)
        echo(f"curves: {curves.resolve()}")
    if layers_path is not None:
        from sslbench.leaderboard import plots

        plots.draw_layers(_records(roots)[0], layers_path, metric=metric)
        echo(f"layers: {layers_path.resolve()}")


def _records(roots: Sequence[Path]) -> "tuple[list[Result], list[ResultError]]":
    """Return all records below the folders, one that lies in several of them once, and the errors of broken ones."""
    from sslbench.results.records import read_readable

    for root in roots:
        if root.is_file():
            raise UsageError(f"{root} is a file, not a folder of results", f"Give its folder: {root.parent}.")
        if not root.is_dir():
            near = [f.name for f in root.parent.iterdir() if f.is_dir()] if root.parent.is_dir() else []
            raise UsageError(f"there is no folder {root}", did_you_mean(root.name, near))
    read = [read_readable(root) for root in roots]
    # The same measurement under two names of weights is two rows, under one name one.
    found = {(result.id, result.weights.name): result for results, _ in read for result in results}
    return list(found.values()), [error for _, broken in read for error in broken]


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
    from sslbench.leaderboard import columns as further_columns
    from sslbench.results import holes, records

    results, broken = _records(roots)
    if not results and broken:
        raise broken[0]
    if not results:
        raise ResultError(
            f"there are no result records below {' '.join(map(str, roots))}", "`sslbench eval` writes them."
        )
    board = leaderboard.table(results, metric=metric, average=average)
    if published:
        board = leaderboard.with_published(board, leaderboard.read_published())
    board = further_columns.with_extras(board, columns)
    unfilled = []
    for root in roots:
        try:
            found = holes.texts(holes.read(root))
            unfilled += [f"Hole: {text}. {remedy}".rstrip() for text, remedy in found.items()]
        except ResultError as error:
            broken.append(error)
    notes = (*board.notes, *(board.disagreements if is_verbose() else ()), *unfilled, *records.left_out(broken))
    board = dataclasses.replace(board, notes=notes)
    for verdict in board.verdicts:
        echo_text(verdict)
    console = tables.console(120)
    console.print(leaderboard.to_rich(board, console.width))
    if board.extras:
        console.print(further_columns.to_rich(board))
    write: dict[str, Callable[[leaderboard.Board, Path], None]] = {
        "csv": functools.partial(leaderboard.to_csv, form=form),
        "html": leaderboard.to_html,
        "markdown": leaderboard.to_markdown,
        "latex": leaderboard.to_latex,
        "model card": leaderboard.to_model_card,
        "timm's csv": leaderboard.to_timm_csv,
        "mteb": leaderboard.to_mteb,
    }
    for kind, path in (files or {}).items():
        if path is None:
            continue
        write[kind](board, path)
        echo(f"{kind}: {path.resolve()}")
