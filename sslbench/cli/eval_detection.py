"""`sslbench eval detection`."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli import flags
from sslbench.cli.protocol_names import DETECTION
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, list_names

if TYPE_CHECKING:
    from sslbench.benchmarks import Benchmark
    from sslbench.evaluation.detection import DetectionRequest, PreparedDetection
    from sslbench.evaluation.request import RunSettings
    from sslbench.results import Result

TOY = "detection/toy"
_RUN = ("device", "workers", "seed", "test_fraction", "machine")
_NOT_HERE = {
    **dict.fromkeys(("features", "labels", "test_features", "test_labels", "layers"), "detection trains on images"),
    **dict.fromkeys(("resize", "crop", "interpolation"), "sizes are min_size_test=800, min_sizes_train=[640,800]"),
    **dict.fromkeys(("image_column", "label_column"), "boxes come from manifests and VOC trees"),
    **dict.fromkeys(("precision", "feature_dtype", "store"), "detection stores no features and computes in fp32"),
    "batch_size": "the images per update are batch_size=16, a setting of the recipe",
    "limit": "--limit-iters shortens the training",
    "on_error": "an image that cannot be read stops it",
    "no_floors": "the untrained backbone is trained only with --baseline",
    "suite": "give --benchmark detection/NAME",
}


def wanted(protocols: Sequence[str], benchmarks: Sequence[str]) -> bool:
    """Whether the words and --benchmark ask for detection.

    Raises:
        UsageError: for that and for protocols on features at once, or no such benchmark.
    """
    from sslbench.benchmarks import load_benchmark

    named = {name: load_benchmark(name).protocol for name in benchmarks}
    others = [name for name in protocols if name != DETECTION]
    others += [name for name, protocol in named.items() if protocol != DETECTION]
    if DETECTION not in (*protocols, *named.values()):
        return False
    if others:
        raise UsageError(
            f"detection trains a network and cannot go together with {', '.join(others)}, on frozen features",
            "Run sslbench eval twice.",
        )
    return True


def run(values: Mapping[str, Any], given: Mapping[str, Any], command: str) -> None:
    """Everything after the words are read.

    Args:
        values: key=value, for the recipe and the run.
        given: the flags.
        command: as the user typed it.

    Raises:
        SslbenchError: see `evaluation.detection`.
    """
    from sslbench import evaluation
    from sslbench.cli import terminal
    from sslbench.evaluation import detection

    settings, origins, recipe_values = _settings(values, given)
    request = _request(recipe_values, given)
    out = Path(given["out"])
    if not given["dry_run"]:
        evaluation.check_writable(out)
    prepared = detection.prepare_detection(request, settings)
    if given["dry_run"]:
        _print_plan(prepared, origins)
        return
    with terminal.progress() as progress:
        results = detection.evaluate_detection(prepared, out=out, command=command, progress=progress)
    if this_process().rank == 0:
        _print(results, out)


def _settings(
    values: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple["RunSettings", dict[str, str], dict[str, Any]]:
    """Settings of the run with their origins, and what is for the recipe."""
    from sslbench.cli.words import compose_run
    from sslbench.config import resolve
    from sslbench.detection.recipe import DetectionRecipe
    from sslbench.evaluation.request import RunSettings

    for flag, reason in _NOT_HERE.items():
        if given[flag] not in (None, False):
            name = {"image_column": "image-col", "label_column": "label-col"}.get(flag, flag.replace("_", "-"))
            raise UsageError(f"--{name} does not go with detection", f"{reason[0].upper()}{reason[1:]}.")
    plain = {key.removeprefix(f"{DETECTION}."): value for key, value in values.items()}
    known = [f.name for f in dataclasses.fields(DetectionRecipe)]
    for key in plain:
        if key not in (*known, *_RUN):
            raise UsageError(f"detection has no setting '{key}'", did_you_mean(key, (*known, *_RUN)))
    of_run = {key: value for key, value in plain.items() if key in _RUN}
    settings, origins = resolve(
        RunSettings, compose_run(of_run, flags.given(dict(given), ("device", "workers", "seed")))
    )
    return settings, origins, {key: value for key, value in plain.items() if key not in _RUN}


def _request(values: dict[str, Any], given: Mapping[str, Any]) -> "DetectionRequest":
    from sslbench.data.objects import DEFAULT
    from sslbench.evaluation.detection import DetectionRequest, make_recipe

    if not given["weights"]:
        raise UsageError(
            "which weights? --weights is missing",
            "Give a checkpoint; 'random' with --backbone is an untrained network.",
        )
    benchmark = _benchmark(given)
    data = given["data"] or benchmark.data
    if not data:
        raise UsageError(
            f"{benchmark.name} needs --data: {benchmark.title}",
            "Give a COCO or kwcoco manifest, or a Pascal VOC tree (two as VOC2007+VOC2012).",
        )
    if not given["data"] and data == DEFAULT and this_process().rank == 0:
        click.echo(f"no --data: using drawn toy shapes ({DEFAULT})", err=True)
    recipe, origins, used = make_recipe(values, benchmark, limit_iterations=given["limit_iters"])
    common = {key: given[key] for key in (*flags.WEIGHTS_KEYS, "test_data", "baseline")}
    return DetectionRequest(**common, data=data, recipe=recipe, origins=origins, benchmark=used)


def _benchmark(given: Mapping[str, Any]) -> "Benchmark":
    """The one that was asked for; the toy one when nothing was said."""
    from sslbench.benchmarks import load_benchmark

    names = given["benchmarks"]
    if len(names) > 1:
        raise UsageError(f"detection takes one --benchmark at a time, not {', '.join(names)}")
    if not names and given["data"]:
        there = ", ".join(name for name in list_names("benchmark") if name.startswith(f"{DETECTION}/"))
        raise UsageError(
            "which recipe? --benchmark is missing",
            f"detection/small is for a few hundred images on a processor, {TOY} for drawn shapes. There are: {there}.",
        )
    return load_benchmark(names[0] if names else TOY)


def _print_plan(prepared: "PreparedDetection", run_origins: dict[str, str]) -> None:
    from sslbench.cli.dry_run import section
    from sslbench.cli.eval_command import show_value

    request, backbone, data = prepared.request, prepared.backbone, prepared.data
    loaded = backbone.report.line() if backbone.report else "nothing loaded"
    section("weights", [(request.weights, f"{backbone.name}: {loaded}", "")])
    parts = [
        (part.name, f"{len(part)} images, {int(part.counts().sum())} objects, {len(part.classes)} classes", "")
        for part in (data.train, data.test)
    ]
    section("data", [*parts, ("split", data.how, "")])
    title = f"{DETECTION} ({request.benchmark.name} v{request.benchmark.version})" if request.benchmark else DETECTION
    recipe = {f.name: getattr(request.recipe, f.name) for f in dataclasses.fields(request.recipe)}
    section(title, [(key, show_value(value), request.origins[key]) for key, value in recipe.items()])
    rows = [(key, show_value(getattr(prepared.run, key)), run_origins[key]) for key in _RUN if key != "machine"]
    section("run", rows)


def _print(results: list["Result"], out: Path) -> None:
    from sslbench.cli import result_table
    from sslbench.records import PREDICTIONS

    result_table.print_results(results, out)
    for result in results:
        first = [name for name in ("AP", "AP50", "AP75") if name in result.metrics]
        values = {name: result.metrics[name].value for name in dict.fromkeys([*first, *result.metrics])}
        click.echo(f"{result.weights.name}: " + ", ".join(f"{k} {_number(v)}" for k, v in values.items()))
        click.echo("per class: " + ", ".join(f"{k} {_number(v)}" for k, v in result.per_class.items()))
        if result.file is not None:
            stem = result.file.with_suffix("")
            click.echo(f"predictions: {stem}{PREDICTIONS}\npictures: {stem}.png")
        for note in result.notes:
            click.echo(note, err=True)


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}"
