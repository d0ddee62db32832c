"""`sslbench eval --suite` and `--weights a b c`: many cells, with their holes."""

import glob
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sslbench.cli.echo import echo
from sslbench.distributed import this_process
from sslbench.errors import SslbenchError, UsageError
from sslbench.names import list_names
from sslbench.text import visible

if TYPE_CHECKING:
    from sslbench.cli.commands.eval.flags import EvalOptions
    from sslbench.evaluation import Request, RunSettings
    from sslbench.evaluation.suite import SuiteCell
    from sslbench.library.benchmarks import Benchmark
    from sslbench.results.holes import Hole


def take_weights(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words after --weights, and the other arguments with the first of them: click's options take one value.

    The weights end at the next flag, at the name of a protocol and at KEY=VALUE.
    """
    weights: list[str] = []
    rest: list[str] = []
    words = iter([*args, None])
    word = next(words)
    while word is not None:
        if word in ("--weights", "-w"):
            word = next(words)
            first = True
            while word is not None and (first or not _ends_weights(word)):
                weights.append(word)
                word, first = next(words), False
        elif word.startswith("--weights="):
            weights.append(word.removeprefix("--weights="))
            word = next(words)
        else:
            rest.append(word)
            word = next(words)
    return weights, [*rest, *(["--weights", weights[0]] if weights else [])]


def _ends_weights(word: str) -> bool:
    return (
        word.startswith("-")
        or word in list_names("protocol")
        or ("=" in word and not _URL.match(word) and not Path(word).exists())
    )


_URL = re.compile(r"[A-Za-z][\w+.-]*://")
"""Beginning of an address, in which '?' and '=' belong to a query."""


def expand(weights: Sequence[str]) -> list[str]:
    """Return the weights with patterns such as 'runs/*/weights.torch' expanded, each once.

    Raises:
        UsageError: nothing fits a pattern.
    """
    found: list[str] = []
    for word in weights:
        if not any(character in word for character in "*?[") or _URL.match(word) or Path(word).exists():
            found.append(word)
            continue
        matches = sorted(glob.glob(word, recursive=True))  # noqa: PTH207 - the pattern may be absolute
        if not matches:
            raise UsageError(f"--weights {word}: no file matches this pattern")
        found += matches
    return list(dict.fromkeys(found))


def with_checkpoints(weights: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Return the weights with folders of checkpoints replaced by their files in the order of training.

    Args:
        weights: from `expand`.

    Returns:
        The weights files, and those of each folder.

    Raises:
        UsageError: a folder has no checkpoints.
    """
    from sslbench.train import checkpoints
    from sslbench.weights.reading.folders import is_distributed, is_sharded, is_unfinished, weights_file

    found: list[str] = []
    runs: dict[str, tuple[str, ...]] = {}
    for word in weights:
        path = Path(word)
        one = not path.is_dir() or is_sharded(path) or is_distributed(path)
        one = one or weights_file(path) is not None or is_unfinished(path)  # which loading refuses with the reason
        if word.partition(":")[0] in ("random", "pixels") or one:
            found.append(word)
            continue
        files = tuple(str(path) for path in checkpoints.files(Path(word)))
        if not files:
            raise UsageError(
                f"--weights {word}: this folder has no checkpoints of a pretraining run (step_000000100.ckpt)",
                _instead(Path(word)),
            )
        runs[word] = files
        found += files
    return list(dict.fromkeys(found)), runs


def _instead(folder: Path) -> str:
    """Return a remedy for a folder without checkpoints: those of the run that it is, or the files in it."""
    from sslbench.train import checkpoints

    if checkpoints.files(folder / "checkpoints"):
        return f"Did you mean {folder / 'checkpoints'}?"
    inside = sorted(path.name for path in folder.iterdir() if path.is_file())[:5]
    return "Give a weights file, or RUN/checkpoints." + (f" It holds: {', '.join(inside)}." if inside else "")


def make_cells(
    weights: Sequence[str],
    benchmarks: Sequence["Benchmark"],
    chosen: "EvalOptions",
    requests: Callable[[str, str | None, list["Benchmark"]], tuple["Request", ...]],
) -> tuple["SuiteCell", ...]:
    """Return a cell for each of the weights on each benchmark, or on the protocols where no benchmark was named.

    Args:
        weights: the files.
        benchmarks: may be none.
        chosen: the options.
        requests: from one of the weights, its --backbone and benchmarks to what to evaluate.
    """
    from sslbench.evaluation.suite import SuiteCell

    problems = {benchmark.name: _problem(benchmark, chosen) for benchmark in benchmarks}
    cells = [
        SuiteCell(
            word,
            benchmark.name,
            requests(word, _backbone(word, chosen), [benchmark]) if problem is None else (),
            problem,
        )
        for word in weights
        for benchmark in benchmarks
        for problem in [problems[benchmark.name]]
    ]
    for word in weights if not benchmarks else ():
        asked = requests(word, _backbone(word, chosen), [])
        cells.append(SuiteCell(word, " ".join(task.protocol for request in asked for task in request.tasks), asked))
    return tuple(cells)


def _backbone(weights: str, chosen: "EvalOptions") -> str | None:
    """Return the --backbone of one of several weights; 'pixels' are a backbone themselves and have none."""
    return None if weights.partition(":")[0] == "pixels" else chosen.network.backbone


def _problem(benchmark: "Benchmark", chosen: "EvalOptions") -> SslbenchError | None:
    """Return the reason why a benchmark cannot be run here, known before anything is opened."""
    from sslbench.library.benchmarks import data_of

    try:
        data_of(benchmark, chosen.data.data, chosen.data.test_data)
    except UsageError as error:
        return error
    return None


def run(
    cells: Sequence["SuiteCell"],
    settings: "RunSettings",
    *,
    runs: Mapping[str, tuple[str, ...]],
    store: Path,
    out: Path,
    command: str,
) -> int:
    """Evaluate the cells, print the table of their results and the holes.

    Args:
        cells: weights x benchmarks.
        settings: settings of the runs.
        runs: folders of checkpoints -> their files, whose scores are shown over training.
        store: folder of the feature store.
        out: folder for the records.
        command: as the user typed it.

    Returns:
        The exit code: 1 if there is a hole. The first process alone tells: torchrun kills all when one ends with it.

    Raises:
        SslbenchError: the folder for the results cannot be written.
    """
    from sslbench import evaluation
    from sslbench.cli import terminal
    from sslbench.cli.commands.eval import over_training, table
    from sslbench.evaluation.suite import run_cells

    evaluation.check_writable(out)
    with terminal.progress() as progress:
        found, holes = run_cells(cells, settings, store=store, out=out, command=command, progress=progress)
    if this_process().rank != 0:
        return 0
    of_runs = {file for files in runs.values() for file in files}
    results = [result for weights, own in found.items() if weights not in of_runs for result in own]
    if results:
        table.print_results(results, out)
    for folder, files in runs.items():
        over_training.show(Path(folder), {file: found[file] for file in files}, out)
    print_holes(holes, len(cells), out)
    return 1 if holes else 0


def print_holes(holes: Sequence["Hole"], n_cells: int, out: Path) -> None:
    """Print the missing cells with reasons and remedies."""
    if not holes:
        return
    head = click.style(f"{len(holes)} of {n_cells} cells are holes", bold=True)
    echo(f" ({out}/holes.csv):", err=True, before=head)
    for hole in holes:
        echo(f"  {hole.weights} on {hole.benchmark}: {hole.reason}", err=True)
        if hole.remedy:
            echo(f"    {hole.remedy}", err=True)


def dry_run(
    cells: Sequence["SuiteCell"], settings: "RunSettings", origins: dict[str, str], store: Path, out: Path
) -> None:
    """Print the plan of every cell, or the reason why it would be a hole."""
    from sslbench.cli.commands.eval.plan import print_plan
    from sslbench.evaluation import prepare

    for cell in cells:
        echo(before=click.style(visible(f"{cell.weights} on {cell.benchmark}"), bold=True))
        try:
            if cell.problem is not None:
                raise cell.problem
            for request in cell.requests:
                print_plan(prepare(request, settings), origins, store, out)
        except SslbenchError as error:
            echo(f"  hole: {error.message}")
