"""`sslbench reproduce`."""

import contextlib
import dataclasses
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from sslbench import paths
from sslbench.cli import early, options, tables, terminal
from sslbench.cli.commands.eval.check import ProtocolRun, layers_and_preprocessing
from sslbench.cli.commands.run import code_of, read_trusted, request_of
from sslbench.cli.echo import echo
from sslbench.cli.flags import LocalPath, argument_options, flag
from sslbench.data.location import absolute
from sslbench.distributed import this_process
from sslbench.errors import DataError, ResultError, UsageError
from sslbench.evaluation.request import FeaturesRequest, Request, make_task, mark_changes
from sslbench.evaluation.settings import RunSettings
from sslbench.leaderboard.published import PublishedRun, Verdict, closest_layer, find_published
from sslbench.leaderboard.published import verdicts as verdicts_of
from sslbench.library.benchmarks import data_of, load_benchmark
from sslbench.library.presets import load_preset
from sslbench.paths import not_written
from sslbench.results import Result, plain
from sslbench.results.records import is_edited, read
from sslbench.results.reruns import TOLERANCE, Rerun, compare_rerun

log = logging.getLogger("sslbench")

_LOGGING = {"tensorboard": False, "histograms": False, "wandb": ""}
"""Settings of protocols that write elsewhere, switched off in a second run."""


@click.command("reproduce")
@click.argument("record", required=False, type=LocalPath())
@argument_options
def command(
    record: Path | None,
    published: str | None = flag("Published number to measure (sslbench list published).", metavar="NAME"),
    weights: str | None = flag("Weights file. Default: that of the record."),
    backbone: str | None = flag("Architecture of --weights, with --published. Default: read from the weights."),
    data: str | None = flag("Data, where they lie elsewhere than in the record or the benchmark's folder."),
    test_data: str | None = flag("Test split, where it lies elsewhere."),
    device: str | None = flag("Device: auto, cpu, cuda, cuda:1, mps. Default: that of the record."),
    tolerance: float | None = flag(
        "Largest difference: percentage points of rates, percent of other metrics. Default: 0.1.", within="[0, inf)"
    ),
    trust_code: bool = flag("Run Python code that the record names: modules, pickles.", default=False),
    out: Path | None = flag("Folder to keep the new record in. Default: not kept."),
    as_json: bool = flag("Print everything as JSON.", "--json", default=False),
) -> int:
    """Run the request of a result RECORD again, or the protocol of a published number, and compare.

    Everything is computed anew: stored features, records, checkpoints and detectors are not read. Floors and the search
    for overlaps are left out. A record is reproduced if the same was measured (weights, data, settings, seed) and every
    metric agrees. Exit code 0: it agrees; 1: it does not.

    \b
    sslbench reproduce results/knn/w.torch-1f0c.json
    sslbench reproduce results/knn/w.torch-1f0c.json --weights moved/w.torch --data moved/photos
    sslbench reproduce --published knn/imagenet1k/dinov2/dinov2-vit_giant_patch14 --weights w.pth
    """  # noqa: D301
    terminal.show_messages()
    ctx = click.get_current_context()
    if (record is None) == (published is None):
        raise UsageError("name either a RECORD or --published NAME", "sslbench list published")
    early.refuse_mistyped([weights], (data, test_data), backbone=backbone, device=device)
    used = {str(parameter.name) for parameter in ctx.command.params}
    places = {"weights": weights, "data": data, "test_data": test_data}
    if record is not None:
        reasons = {"backbone": "The record's request names it."}
        options.refuse(ctx, used=used - {"backbone"}, what="a record", reasons=reasons)
        return _reproduce_record(record, places, device, tolerance, trust_code, out, as_json)
    reasons = {"tolerance": "A published number has its own."}
    options.refuse(ctx, used=used - {"trust_code", "tolerance"}, what="--published", reasons=reasons)
    return _measure_published(find_published(str(published)), places, backbone, device, out, as_json)


def _reproduce_record(
    record: Path,
    places: Mapping[str, str | None],
    device: str | None,
    tolerance: float | None,
    trust_code: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Run the request of a record again in its folder, print the comparison and return the exit code."""
    before = read(record)
    if is_edited(before):
        log.warning(f"{record}: its metrics are not those that were written: the record was edited")
    if out is not None and record.resolve().is_relative_to(out.resolve()):
        raise UsageError(
            f"--out {out} holds {record} itself, which the new record would replace",
            "Give another folder, or leave it out.",
        )
    content = request_of(before, record)
    if "features" in content and (device or any(places.values())):
        raise UsageError(f"{record} is of embeddings (--features): --weights, --data and --device have no effect")
    # Floors and overlaps stand beside the number and are not the number; they take most of the time.
    run = {**content.get("run", {}), "floors": False, "overlaps": False, **({"device": device} if device else {})}
    moved = _absolute(places)
    folder = before.working_folder.path if before.working_folder is not None else None
    # Places in the request are relative to the folder that its command ran in.
    here = contextlib.chdir(folder) if folder is not None and Path(folder).is_dir() else contextlib.nullcontext()
    with here, code_of(str(record), trust_code=trust_code):
        request, settings, _ = read_trusted({**content, **moved, "run": run}, str(record), trust_code=trust_code)
        echo(f"{Path.cwd()}: {before.title()}", err=True)
        tasks = tuple(dataclasses.replace(task, settings=_without_logging(task.settings)) for task in request.tasks)
        results = _results(dataclasses.replace(request, tasks=tasks), settings, out, before.command)
    if not results and this_process().rank == 0:
        raise ResultError(f"the request of {record} gave no result")
    reruns = [compare_rerun(before, one, TOLERANCE if tolerance is None else tolerance) for one in results]
    # A request may give several records (layers, sets): the one that measures the same is compared.
    return _tell_rerun(min(reruns, key=lambda rerun: len(rerun.inputs)), as_json) if reruns else 0


def _results(request: Request | FeaturesRequest, run: RunSettings, out: Path | None, command: str) -> list[Result]:
    """Evaluate a request with an empty feature store; `out` gets the records."""
    from sslbench.cli.commands.eval.work import Plan, results_of

    with _folders(out) as (store, folder):
        return results_of(Plan((request,), (), {}, run, {}, store, folder), command)


@contextlib.contextmanager
def _folders(out: Path | None) -> Iterator[tuple[Path, Path]]:
    """Return an empty feature store and an empty folder of records, removed at the end; `out` gets the records then."""
    root = paths.cache_dir()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the cache folder {root} cannot be written: {error.strerror}") from error
    with tempfile.TemporaryDirectory(dir=root, prefix="reproduce-") as folder:
        results = Path(folder) / "results"
        yield Path(folder) / "store", results
        if out is not None and results.is_dir() and this_process().rank == 0:
            try:
                shutil.copytree(results, out, dirs_exist_ok=True)
            except OSError as error:
                raise ResultError(not_written(out, error)) from error


def _absolute(places: Mapping[str, str | None]) -> dict[str, str]:
    """Return the places that were given, valid in the folder of the record."""
    given = {key: place for key, place in places.items() if place is not None}
    return {
        key: absolute(place) if key != "weights" else str(Path(place).absolute()) if Path(place).exists() else place
        for key, place in given.items()
    }


def _without_logging(settings: Any) -> Any:
    fields = {field.name for field in dataclasses.fields(settings)}
    return dataclasses.replace(settings, **{key: off for key, off in _LOGGING.items() if key in fields})


def _tell_rerun(rerun: Rerun, as_json: bool) -> int:
    if this_process().rank != 0:
        return 0
    if as_json:
        content = {"reproduced": rerun.reproduced, "metrics": rerun.metrics, "inputs": rerun.inputs}
        echo(json.dumps(plain({**content, "surroundings": rerun.surroundings}), indent=1, allow_nan=False))
        return 0 if rerun.reproduced else 1
    rows = [
        (one.name, _number(one.before), _number(one.after), _difference(one.before, one.after), word)
        for one in rerun.metrics
        for word in ["agrees" if one.agrees else "DIFFERS" if one.ends_agree else "DIFFERS, its interval too"]
    ]
    tables.print_rows([("metric", "record", "again", "difference", ""), *rows])
    for title, changes in (("not the same", rerun.inputs), ("other surroundings", rerun.surroundings)):
        for change in changes:
            echo(f"{title}: {change.key} was {_short(change.before)}, is {_short(change.after)}")
    agree = sum(one.agrees for one in rerun.metrics)
    verdict = "reproduced" if rerun.reproduced else "NOT reproduced"
    same = "" if not rerun.inputs else "; something else was measured (see above)"
    echo(f"{verdict}: {agree} of {len(rerun.metrics)} metrics agree{same}")
    return 0 if rerun.reproduced else 1


def _measure_published(
    run: PublishedRun,
    places: Mapping[str, str | None],
    backbone: str | None,
    device: str | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Run the protocol of a published number, print the verdict and return the exit code."""
    if (weights := places["weights"]) is None:
        raise UsageError(f"--weights is missing: the file of '{run.weights}'", f"The source: {run.source}")
    benchmark = load_benchmark(run.benchmark)
    preset = load_preset(run.preset) if run.preset else None
    protocol = benchmark.protocol if preset is None else preset.protocol
    layers, preprocessing = layers_and_preprocessing(ProtocolRun(protocol, protocol, preset), (), {}, benchmark)
    data, test_data = data_of(benchmark, places["data"], places["test_data"])
    request = Request(
        weights,
        data,
        (mark_changes(make_task(protocol, {}, benchmark, preset), layers, preprocessing),),
        test_data,
        backbone,
        layers=layers,
        preprocessing=preprocessing,
        test_classes=benchmark.test_classes,
    )
    echo(f"{run.name}: {protocol} on {weights}, {data}", err=True)
    settings, _ = early.resolve_run({}, {"device": device} if device else {})
    # The published number has none to compare with.
    settings = dataclasses.replace(settings, floors=False, overlaps=False)
    results = _results(request, settings, out, f"sslbench reproduce --published {run.name}")
    if this_process().rank != 0:
        return 0
    result = closest_layer(run, results)
    _refuse_other_data(run, result, benchmark.samples)
    return _tell_verdicts(run, result, verdicts_of(run, result), as_json)


def _refuse_other_data(run: PublishedRun, result: Result, expected: dict[str, int]) -> None:
    """Refuse a verdict on other data than the published number's."""
    for part, n in (("train", result.data.train.n_used), ("test", result.data.test.n_used)):
        if expected.get(part, n) != n:
            raise DataError(
                f"no verdict on {run.name}: {part} has {n:,} samples, {run.benchmark} has {expected[part]:,}",
                "Give the whole data set with --data.",
            )


def _tell_verdicts(run: PublishedRun, result: Result, found: list[Verdict], as_json: bool) -> int:
    agrees = all(verdict.agrees for verdict in found)
    if as_json:
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
    tables.print_rows([("metric", "published", "measured", "difference", "tolerance", ""), *rows_])
    best = " (the best of its layers, as in the source)" if run.best_of_layers else ""
    echo(f"{run.weights} {run.backbone}, {run.source}; measured: {result.weights.backbone}, {result.layer}{best}")
    echo("agrees with the published number" if agrees else "does NOT agree with the published number")
    return 0 if agrees else 1


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"


def _difference(before: float | None, after: float | None) -> str:
    return "" if before is None or after is None else f"{after - before:+.2g}" if after != before else "0"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
