"""`sslbench reproduce`."""

import contextlib
import dataclasses
import json
import logging
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench import paths
from sslbench.cli import options
from sslbench.cli.echo import echo
from sslbench.cli.help import usual_forms
from sslbench.cli.launch import without_option
from sslbench.cli.options import LocalPath
from sslbench.distributed import this_process
from sslbench.errors import DataError, ResultError, UsageError
from sslbench.paths import not_written
from sslbench.text import HIDDEN

if TYPE_CHECKING:
    from sslbench.cli.commands.eval.samples import SamplesPlan
    from sslbench.evaluation import Request, RunSettings
    from sslbench.leaderboard.published import PublishedRun, Verdict
    from sslbench.results import Result
    from sslbench.results.reruns import MetricAgain, Rerun

log = logging.getLogger("sslbench")

_LOGGING = {"tensorboard": False, "histograms": False, "wandb": ""}
"""Settings of protocols that write elsewhere, switched off in a second run."""


@click.command("reproduce")
@click.argument("record", required=False, type=LocalPath())
@click.option("--published", metavar="NAME", help="Published number to measure (sslbench list published).")
@click.option("--weights", help="Weights file. Default: that of the record.")
@click.option("--backbone", help="Architecture of --weights, with --published. Default: read from the weights.")
@click.option("--data", help="Data, where they lie elsewhere than in the record's command or the benchmark's folder.")
@click.option("--test-data", help="Test split, where it lies elsewhere.")
@click.option("--device", help="Device: auto, cpu, cuda, cuda:1, mps. Default: that of the record's command.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    help="Largest difference: percentage points of rates, percent of other metrics. Default: 0.1.",
)
@click.option("--trust-code", is_flag=True, help="Run Python code that the record's command names: modules, pickles.")
@click.option("--out", type=LocalPath(), help="Folder to keep the new record in. Default: not kept.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(
    record: Path | None,
    published: str | None,
    weights: str | None,
    backbone: str | None,
    data: str | None,
    test_data: str | None,
    device: str | None,
    tolerance: float | None,
    trust_code: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Run the command of a result RECORD again, or the protocol of a published number, and compare.

    Everything is computed anew: stored features, records, checkpoints and detectors are not read. Floors and the search
    for overlaps are left out. A record is reproduced if the same was measured (weights, data, settings, seed) and every
    metric agrees. Exit code 0: it agrees; 1: it does not.

    \b
    sslbench reproduce results/knn/w.torch-1f0c.json
    sslbench reproduce results/knn/w.torch-1f0c.json --weights moved/w.torch --data moved/photos
    sslbench reproduce --published knn/imagenet1k/dinov2/dinov2-vit_giant_patch14 --weights w.pth
    """  # noqa: D301
    from sslbench.cli import early, terminal
    from sslbench.results.records import is_edited, read

    terminal.show_messages()
    ctx = click.get_current_context()
    if (record is None) == (published is None):
        raise UsageError("name either a RECORD or --published NAME", "sslbench list published")
    early.refuse_mistyped([weights], (data, test_data), backbone=backbone, device=device)
    if record is not None:
        if is_edited(read(record)):
            log.warning(f"{record}: its metrics are not those that were written: the record was edited")
        _refuse_own_folder(record, out)
    given = [("--data", data), ("--test-data", test_data), ("--device", device)]
    typed = [word for flag, value in given if value is not None for word in (flag, _absolute(flag, value))]
    with _folders(out) as (store, results):
        if record is not None:
            used = {str(p.name) for p in ctx.command.params} - {"backbone"}
            options.refuse(ctx, used=used, what="a record", reasons={"backbone": "The record's command names it."})
            again = _run_again(record, weights, typed, trust_code, store, results)
            rerun = _compared(record, again, tolerance)
            return _tell_rerun(rerun, as_json)
        used = {str(p.name) for p in ctx.command.params} - {"trust_code", "tolerance"}
        options.refuse(ctx, used=used, what="--published", reasons={"tolerance": "A published number has its own."})
        return _measure_published(str(published), weights, backbone, typed, store, results, as_json)


def _absolute(flag: str, value: str) -> str:
    """Return a location that stays valid in the folder of the record."""
    if not flag.endswith("data"):
        return value
    from sslbench.data.location import absolute

    return absolute(value)


def _refuse_own_folder(record: Path, out: Path | None) -> None:
    """Refuse to write the new record into the folder of the one that is checked, which it would replace."""
    if out is not None and record.resolve().is_relative_to(out.resolve()):
        raise UsageError(
            f"--out {out} holds {record} itself, which the new record would replace",
            "Give another folder, or leave it out.",
        )


@contextlib.contextmanager
def _folders(out: Path | None) -> Iterator[tuple[Path, Path]]:
    """Return an empty feature store and an empty folder of records, removed at the end; `out` gets the records then."""
    with tempfile.TemporaryDirectory(dir=_temporary_root(), prefix="reproduce-") as folder:
        results = Path(folder) / "results"
        yield Path(folder) / "store", results
        if out is not None and results.is_dir() and this_process().rank == 0:
            try:
                shutil.copytree(results, out, dirs_exist_ok=True)
            except OSError as error:
                raise ResultError(not_written(out, error)) from error


def _temporary_root() -> Path:
    root = paths.cache_dir()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the cache folder {root} cannot be written: {error.strerror}") from error
    return root


def _run_again(
    record: Path, weights: str | None, typed: list[str], trust_code: bool, store: Path, out: Path
) -> "tuple[Result, list[Result]]":
    """Return a record, and the results of its command, run in the same folder."""
    from sslbench.cli.commands import eval as eval_command
    from sslbench.names import command_from_file
    from sslbench.results.records import read

    before = read(record)
    words = _words(before, record)
    if "--features" in words and (weights is not None or typed):
        raise UsageError(f"{record} is of embeddings (--features): --weights, --data and --device have no effect")
    if weights is not None:
        words = [*_without(words, "--weights"), "--weights", _existing(weights)]
    replaced = [flag for param in eval_command.command.params if {*param.opts} & {*typed[::2]} for flag in param.opts]
    words = [*without_option(words, *replaced), *typed]
    if lost := next((word for word in words if HIDDEN in word), None):
        raise ResultError(
            f"{record}: records do not hold the secrets of addresses: {lost}",
            "Give the address again with --weights, --data or --test-data.",
        )
    folder = before.working_folder.path if before.working_folder is not None else None
    here = contextlib.chdir(folder) if folder is not None and Path(folder).is_dir() else contextlib.nullcontext()
    with here, contextlib.nullcontext() if trust_code else command_from_file(str(record)):
        return before, _evaluate(words, before, store, out, trust_code=trust_code)


def _existing(weights: str) -> str:
    return str(Path(weights).absolute()) if Path(weights).exists() else weights


def _words(before: "Result", record: Path) -> list[str]:
    """Return the words of a record's command, without `sslbench eval`."""
    from sslbench.cli.commands import eval as eval_command

    try:
        words = shlex.split(before.command)
    except ValueError as error:
        raise ResultError(f"{record}: its command cannot be read: {error}") from error
    if words[:2] != ["sslbench", "eval"]:
        raise ResultError(
            f"{record} was not written by `sslbench eval`, but by: {before.command}",
            "Run that again, and compare the two records with: sslbench compare",
        )
    return usual_forms(eval_command.command, words[2:])


def _without(words: Sequence[str], flag: str) -> list[str]:
    """Return the words of `eval` without the values of --weights."""
    from sslbench.cli.commands.eval.suite import take_weights

    _, rest = take_weights(words)
    return rest[: rest.index(flag)] if flag in rest else rest


def _evaluate(words: list[str], before: "Result", store: Path, out: Path, *, trust_code: bool) -> "list[Result]":
    """Return the results of the words of `eval`, restricted to the protocol and weights of a record."""
    from sslbench.cli.commands.eval import samples

    typed = shlex.join(["sslbench", "eval", *words])
    echo(f"{Path.cwd()}: {typed}", err=True)
    plan = _plan(words, trust_code=trust_code)
    run = dataclasses.replace(_trainings(plan.run, before), floors=False, overlaps=False)
    if isinstance(plan, samples.EmbeddingsPlan):
        return samples.results_of_embeddings(dataclasses.replace(plan, run=run, out=out), typed)
    requests = _requests(plan, before)
    return samples.results_of(dataclasses.replace(plan, run=run, requests=requests, store=store, out=out), typed)


def _trainings(run: "RunSettings", before: "Result") -> "RunSettings":
    """Return the settings of a run with the trainings of a record: all, one of several, or none."""
    if run.seeds == 1 or (before.seeds or 1) > 1:
        return run
    if before.seeds is None:  # of a protocol that trains nothing, beside one that does
        return dataclasses.replace(run, seeds=1)
    return dataclasses.replace(run, only_seed=before.seed)


def _plan(words: list[str], *, trust_code: bool) -> Any:
    from sslbench.cli.commands import eval as eval_command

    ctx = eval_command.command.make_context("eval", list(words))
    with ctx:
        if ctx.params["trust_pickle"] and not trust_code:
            raise UsageError("the record's command has --trust-pickle", "--trust-code accepts it.")
        return eval_command.make_plan(ctx)


def _requests(plan: "SamplesPlan", before: "Result") -> "tuple[Request, ...]":
    """Return the requests of a plan for the weights, benchmark and protocol of a record."""
    from sslbench.protocols import find as find_protocol
    from sslbench.results import plain

    every = [request for cell in plan.cells for request in cell.requests] or list(plan.requests)
    weights = [one for one in every if str(Path(one.weights).resolve()) == before.weights.path] or every
    benchmark = before.benchmark.name if before.benchmark is not None else None
    found = []
    for request in weights:
        tasks = [
            task
            for task in request.tasks
            # Records of further sets have no benchmark.
            if task.protocol == before.protocol.name
            and benchmark in (None, task.benchmark.name if task.benchmark is not None else None)
        ]
        recorded = [plain(find_protocol(task.protocol).recorded(task.settings)) for task in tasks]
        same = [task for task, own in zip(tasks, recorded, strict=True) if own == before.protocol.settings]
        tasks = [dataclasses.replace(task, settings=_without_logging(task.settings)) for task in same or tasks]
        if tasks:
            found.append(dataclasses.replace(_of_floor(request, before), tasks=tuple(tasks)))
    if not found:
        raise ResultError(f"the record's command does not run {before.protocol.name}, whose result it is")
    return tuple(found)


def _of_floor(request: "Request", before: "Result") -> "Request":
    """Return the request for the floor that a record is of, with the floor's own images; else the request itself."""
    pixels = before.weights.backbone.partition(":")[0] == "pixels"
    if not (before.weights.untrained or pixels) or request.weights.partition(":")[0] in ("random", "pixels"):
        return request
    images = {key: value for key, value in before.preprocessing.items() if key != "origin"}
    weights, backbone = (before.weights.backbone, None) if pixels else ("random", before.weights.backbone)
    layers = () if pixels else request.layers
    return dataclasses.replace(
        request, weights=weights, backbone=backbone, layers=layers, format=None, stem=None, preprocessing=images
    )


def _without_logging(settings: Any) -> Any:
    fields = {field.name for field in dataclasses.fields(settings)}
    return dataclasses.replace(settings, **{key: off for key, off in _LOGGING.items() if key in fields})


def _compared(record: Path, again: "tuple[Result, list[Result]]", tolerance: float | None) -> "Rerun":
    """Return the comparison with the result that measures the most alike."""
    from sslbench.results.reruns import TOLERANCE, compare_rerun

    before, results = again
    if not results:
        raise ResultError(f"the command of {record} gave no result")
    reruns = [compare_rerun(before, one, TOLERANCE if tolerance is None else tolerance) for one in results]
    return min(reruns, key=lambda rerun: len(rerun.inputs))


def _tell_rerun(rerun: "Rerun", as_json: bool) -> int:
    if this_process().rank != 0:
        return 0
    if as_json:
        from sslbench.results import plain

        content = {"reproduced": rerun.reproduced, "metrics": rerun.metrics, "inputs": rerun.inputs}
        echo(json.dumps(plain({**content, "surroundings": rerun.surroundings}), indent=1, allow_nan=False))
        return 0 if rerun.reproduced else 1
    rows = [
        (one.name, _number(one.before), _number(one.after), _difference(one.before, one.after), _word(one))
        for one in rerun.metrics
    ]
    _print(("metric", "record", "again", "difference", ""), rows)
    for title, changes in (("not the same", rerun.inputs), ("other surroundings", rerun.surroundings)):
        for change in changes:
            echo(f"{title}: {change.key} was {_short(change.before)}, is {_short(change.after)}")
    agree = sum(one.agrees for one in rerun.metrics)
    verdict = "reproduced" if rerun.reproduced else "NOT reproduced"
    same = "" if not rerun.inputs else "; something else was measured (see above)"
    echo(f"{verdict}: {agree} of {len(rerun.metrics)} metrics agree{same}")
    return 0 if rerun.reproduced else 1


def _measure_published(
    name: str, weights: str | None, backbone: str | None, typed: list[str], store: Path, out: Path, as_json: bool
) -> int:
    """Run the protocol of a published number, print the verdict and return the exit code."""
    from sslbench.cli.commands.eval import samples
    from sslbench.leaderboard.published import closest_layer, find_published, verdicts
    from sslbench.library.benchmarks import load_benchmark

    run = find_published(name)
    if weights is None:
        raise UsageError(f"--weights is missing: the file of '{run.weights}'", f"The source: {run.source}")
    words = ["--benchmark", run.benchmark, *(["--preset", run.preset] if run.preset else []), "--weights", weights]
    words += [*(["--backbone", backbone] if backbone else []), *typed]
    command_line = shlex.join(["sslbench", "eval", *words])
    echo(command_line, err=True)
    plan = _plan(words, trust_code=True)
    settings = dataclasses.replace(plan.run, floors=False, overlaps=False)
    results = samples.results_of(dataclasses.replace(plan, run=settings, store=store, out=out), command_line)
    if this_process().rank != 0:
        return 0
    result = closest_layer(run, results)
    _refuse_other_data(run, result, load_benchmark(run.benchmark).samples)
    return _tell_verdicts(run, result, verdicts(run, result), as_json)


def _refuse_other_data(run: "PublishedRun", result: "Result", expected: dict[str, int]) -> None:
    """Refuse a verdict on other data than the published number's."""
    for part, n in (("train", result.data.train.n_used), ("test", result.data.test.n_used)):
        if expected.get(part, n) != n:
            raise DataError(
                f"no verdict on {run.name}: {part} has {n:,} samples, {run.benchmark} has {expected[part]:,}",
                "Give the whole data set with --data.",
            )


def _tell_verdicts(run: "PublishedRun", result: "Result", found: "list[Verdict]", as_json: bool) -> int:
    agrees = all(verdict.agrees for verdict in found)
    if as_json:
        from sslbench.results import plain

        rows = [{**dataclasses.asdict(v.published), "measured": v.measured, "agrees": v.agrees} for v in found]
        content = {"name": run.name, "source": run.source, "layer": result.layer, "agrees": agrees, "metrics": rows}
        echo(json.dumps(plain(content), indent=1, allow_nan=False))
        return 0 if agrees else 1
    rows_ = [
        (
            *(v.published.metric, _number(v.published.value), _number(v.measured)),
            *(
                _difference(v.published.value, v.measured),
                f"{v.published.tolerance:g}",
                "agrees" if v.agrees else "DIFFERS",
            ),
        )
        for v in found
    ]
    _print(("metric", "published", "measured", "difference", "tolerance", ""), rows_)
    best = " (the best of its layers, as in the source)" if run.best_of_layers else ""
    echo(f"{run.weights} {run.backbone}, {run.source}; measured: {result.weights.backbone}, {result.layer}{best}")
    echo("agrees with the published number" if agrees else "does NOT agree with the published number")
    return 0 if agrees else 1


def _print(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        first, *rest = row
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        echo("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"


def _difference(before: float | None, after: float | None) -> str:
    return "" if before is None or after is None else f"{after - before:+.2g}" if after != before else "0"


def _word(metric: "MetricAgain") -> str:
    return "agrees" if metric.agrees else "DIFFERS" if metric.ends_agree else "DIFFERS, its interval too"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
