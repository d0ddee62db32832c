"""`sslbench eval detection`."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench import protocols
from sslbench.cli import options
from sslbench.cli.commands.eval.flags import ON_OBJECTS, EvalOptions, refuse_unused_of_weights
from sslbench.cli.echo import echo, note
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.names import list_names

if TYPE_CHECKING:
    from sslbench.evaluation.detection import PreparedDetection
    from sslbench.evaluation.request import Request, RunSettings, Task
    from sslbench.library.benchmarks import Benchmark
    from sslbench.results import Result

TOY = "detection/toy"
_D2 = "d2."
"""Prefix of key=value for Detectron2's own configuration."""
_RUN = (
    "machine",
    "device",
    "workers",
    "seed",
    "seeds",
    "only_seed",
    "decoder",
    "max_pixels",
    "start_method",
    "test_fraction",
)
_REASONS = {
    **dict.fromkeys(("features", "labels", "test_features", "test_labels", "layers"), "Detection trains on images."),
    **dict.fromkeys(
        ("resize", "crop", "interpolation"), "Set the sizes with min_size_test=800, min_sizes_train=640,800."
    ),
    **dict.fromkeys(
        ("image_column", "label_column", "value_columns"), "Boxes are read from manifests and VOC trees only."
    ),
    **dict.fromkeys(
        ("precision", "feature_dtype", "store", "max_memory"), "Detection stores no features and computes in fp32."
    ),
    **dict.fromkeys(("mean", "std"), "Mean and std belong to the weights' format."),
    "batch_size": "Set the images per update with batch_size=16.",
    "groups": "Objects are not scored by groups of images.",
    "limit": "--limit-iters shortens the training.",
    "no_overlaps": "Detection does not search for overlaps.",
    "no_estimate": "Detection is not estimated.",
    "on_error": "Detection reads all images first and stops if one is unreadable.",
    "presets": "Published recipes are benchmarks: --benchmark detection/NAME.",
    "test_classes": "The classes of train and test are the categories of the manifests.",
}


def named_benchmarks(protocols: Sequence[str], benchmarks: Sequence[str], suite: str | None) -> tuple[str, ...] | None:
    """Return the benchmarks of detection that the words, --benchmark and --suite ask for.

    Returns:
        Names of benchmarks, () for detection without one; None when something else is asked for.

    Raises:
        UsageError: for that and for protocols on features at once, or no such benchmark.
    """
    from sslbench.library.benchmarks import load_benchmark, load_suite

    of_suite = load_suite(suite) if suite else ()
    named = {name: load_benchmark(name).protocol for name in (*benchmarks, *of_suite)}
    if protocols:  # they select benchmarks of a suite
        named = {name: protocol for name, protocol in named.items() if name in benchmarks or protocol in protocols}
    others = [name for name in protocols if name != "detection"]
    others += [name for name, protocol in named.items() if protocol != "detection"]
    if "detection" not in (*protocols, *named.values()):
        return None
    if others:
        first = " ".join(dict.fromkeys(named.get(name, name) for name in others))
        remedy = f"Run sslbench eval {first} --suite {suite}, and sslbench eval detection --suite {suite}."
        raise UsageError(
            f"detection trains a network and cannot go together with {', '.join(others)}, on frozen features",
            remedy if suite else "Run sslbench eval twice.",
        )
    return tuple(named)


@dataclasses.dataclass(frozen=True)
class DetectionPlan:
    """Training and scoring of a detector; `origins` are those of the run's settings, for the user."""

    request: "Request"
    run: "RunSettings"
    origins: dict[str, str]
    out: Path
    dry_run: bool


def make_plan(
    ctx: click.Context, chosen: EvalOptions, benchmarks: Sequence[str], values: Mapping[str, Any]
) -> DetectionPlan:
    """Return what will be trained and scored; nothing is opened.

    Args:
        ctx: the context of the command.
        chosen: its options.
        benchmarks: names of benchmarks of detection.
        values: key=value, for the recipe and the run.

    Raises:
        UsageError: a name, option or setting that does not exist or has no effect.
    """
    from sslbench.cli import early
    from sslbench.cli.words import nearest_setting, resolve_run
    from sslbench.evaluation import make_task

    if len(chosen.weights) > 1:
        raise UsageError("detection takes one file of weights at a time")
    options.refuse(ctx, used=ON_OBJECTS, what="detection", reasons=_REASONS)
    refuse_unused_of_weights(ctx, chosen)
    d2 = {key.removeprefix(_D2): value for key, value in values.items() if key.startswith(_D2)}
    plain = {key.removeprefix("detection."): value for key, value in values.items() if not key.startswith(_D2)}
    if d2:
        plain["d2"] = d2
    known = [f.name for f in dataclasses.fields(protocols.find("detection").settings)]
    for key in plain:
        if key not in (*known, *_RUN):
            raise UsageError(f"detection has no setting '{key}'", nearest_setting(key, (*known, *_RUN)))
    typed = {"limit_iters": chosen.limit_iters, "backend": chosen.backend}
    recipe = {key: value for key, value in plain.items() if key not in _RUN}
    recipe |= {key: value for key, value in typed.items() if value is not None}
    task = make_task("detection", recipe, _benchmark(chosen, benchmarks))
    protocols.find("detection").check_settings(task.settings)
    settings, origins = resolve_run({key: value for key, value in plain.items() if key in _RUN}, chosen.run.settings())
    early.refuse_wrong_network(chosen.network.format, chosen.network.stem)
    return DetectionPlan(_request(task, chosen, benchmarks), settings, origins, Path(chosen.out), chosen.dry_run)


def run(plan: DetectionPlan, command: str) -> None:
    """Train and score a detector, or print the plan.

    Args:
        plan: from `make_plan`.
        command: as the user typed it.

    Raises:
        SslbenchError: see `evaluation.detection`.
    """
    from sslbench.evaluation import detection

    if plan.dry_run:
        _print_plan(detection.prepare_detection(plan.request, plan.run), plan.origins)
        return
    results = results_of(plan, command)
    if this_process().rank == 0:
        print_detection(results, plan.out)


def results_of(plan: DetectionPlan, command: str) -> list["Result"]:
    """Train and score the detectors of a plan and return the results; arguments and errors as for `run`."""
    from sslbench import evaluation
    from sslbench.cli.commands.eval.progress import detection_progress
    from sslbench.evaluation import detection

    evaluation.check_writable(plan.out)
    prepared = detection.prepare_detection(plan.request, plan.run)
    with detection_progress() as progress:
        watch = progress.line if progress is not None else None
        return detection.evaluate_detection(prepared, out=plan.out, command=command, progress=progress, watch=watch)


def _request(task: "Task", chosen: EvalOptions, benchmarks: Sequence[str]) -> "Request":
    from sslbench.data.open import DEFAULT_OBJECTS
    from sslbench.evaluation import Request
    from sslbench.library.benchmarks import data_of

    if not chosen.weights:
        raise UsageError(
            "--weights is missing",
            "Give a weights file, or 'random' with --backbone for an untrained network.",
        )
    benchmark = _benchmark(chosen, benchmarks)
    data, test_data = chosen.data.data, chosen.data.test_data
    if not data:
        data, test_data = data_of(benchmark, None, test_data)
    baselines = chosen.baselines
    if not chosen.data.data and data == DEFAULT_OBJECTS and this_process().rank == 0:
        note(f"no --data: using kwcoco's toy shapes ({DEFAULT_OBJECTS})")
    if not (baselines or chosen.data.data or benchmarks or chosen.no_floors):
        baselines = ("random",)  # toy shapes show only that the weights beat an untrained backbone
        if this_process().rank == 0 and chosen.weights != ("random",):
            echo(
                "the same detector is also trained from the untrained backbone, for comparison (--no-floors skips it)",
                err=True,
            )
    return Request(
        **chosen.network.loading(),
        data=data,
        tasks=(task,),
        test_data=test_data,
        baselines=baselines,
        name=chosen.name,
    )


def _benchmark(chosen: EvalOptions, names: Sequence[str]) -> "Benchmark":
    """Return the benchmark of that name; the toy one without a name and without --data."""
    from sslbench.library.benchmarks import load_benchmark

    if len(names) > 1:
        raise UsageError(f"detection takes one --benchmark at a time, not {', '.join(names)}")
    if not names and chosen.data.data:
        there = ", ".join(name for name in list_names("benchmark") if name.startswith("detection/"))
        raise UsageError(
            "--benchmark, the training recipe, is missing",
            f"detection/small suits a few hundred images on a CPU, {TOY} the toy shapes. Benchmarks: {there}.",
        )
    return load_benchmark(names[0] if names else TOY)


def _print_plan(prepared: "PreparedDetection", run_origins: dict[str, str]) -> None:
    from sslbench.cli.settings_page import section, show_value

    request, backbone, data = prepared.request, prepared.backbone, prepared.data
    loaded = backbone.report.line() if backbone.report else "nothing loaded"
    others = [(name, f"{other.name}, for comparison", "baseline") for name, other in prepared.baselines]
    section("weights", [(request.weights, f"{backbone.name}: {loaded}", ""), *others])
    parts = [
        (part.name, f"{len(part)} images, {int(part.counts().sum())} objects, {len(part.classes)} classes", "")
        for part in (data.train, data.test)
    ]
    section("data", [*parts, ("split", data.how, "")])
    task, recipe = prepared.task, dataclasses.asdict(prepared.recipe)
    title = f"detection ({task.benchmark.name} v{task.benchmark.version})" if task.benchmark else "detection"
    section(title, [(key, show_value(value), task.origins[key]) for key, value in recipe.items()])
    rows = [(key, show_value(value), "command line") for key, value in (task.settings.d2 or {}).items()]
    backend = task.settings.backend
    section("backend", [(backend, "", "flag" if backend != "torchvision" else "default"), *rows])
    seeds, detectors = len(prepared.run.each_seed()), 1 + len(prepared.baselines)
    told = f"{seeds * detectors}: {detectors} detector{'s' if detectors > 1 else ''} x {seeds} seed{'s' * (seeds > 1)}"
    section("trainings", [("detection", told, "")])
    rows = [(key, show_value(getattr(prepared.run, key)), run_origins[key]) for key in _RUN if key != "machine"]
    section("run", rows)


def print_detection(results: list["Result"], out: Path) -> None:
    """Print the table of results, and the metrics, classes, files and notes of each."""
    from sslbench.cli.commands.eval import table
    from sslbench.evaluation.trainings import ONE_TRAINING
    from sslbench.results.records import PREDICTIONS, predictions_paths

    table.print_results(results, out)
    for result in results:
        first = [name for name in ("AP", "AP50", "AP75") if name in result.metrics]
        values = {name: result.metrics[name].value for name in dict.fromkeys([*first, *result.metrics])}
        echo(f"{result.weights.name}: " + ", ".join(f"{k} {_number(v)}" for k, v in values.items()))
        echo("per class: " + ", ".join(f"{k} {_number(v)}" for k, v in result.per_class.items()))
        for name in ("keypoint_AP", "uniform_keypoint_AP"):
            if name in result.floors.get("mean pose", {}):
                echo(f"mean pose in the detected boxes: {name} {_number(result.floors['mean pose'][name])}")
        if of_keypoints := result.variants.get("per keypoint, AP"):
            echo("per keypoint: " + ", ".join(f"{k} {_number(v)}" for k, v in of_keypoints.items()))
        for path in predictions_paths(result).values():
            stem = str(path).removesuffix(PREDICTIONS)
            echo(f"predictions: {path}")
            if Path(f"{stem}.png").is_file():
                echo(f"pictures: {stem}.png")
            if Path(f"{stem}.detector.torch").is_file():  # a network of Detectron2 alone has no detector file
                echo(f"detector: {stem}.detector.torch")
        for line in result.notes:
            if line != ONE_TRAINING:  # the table has it
                echo(line, err=not re.match(rf"{re.escape(result.weights.name)}: \w*AP ", line))


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}"
