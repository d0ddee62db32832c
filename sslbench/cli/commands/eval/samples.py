"""Protocols on labelled images and on embeddings: from the options to what is evaluated."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.backbones.named import is_pixels, pixels_backbone, random_backbone
from sslbench.cli import options
from sslbench.cli.commands.eval.flags import EvalOptions, refuse_mistyped, refuse_unused
from sslbench.cli.echo import echo
from sslbench.data.noise import check_values
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, list_names, plugin_remedy
from sslbench.protocols import find as find_protocol
from sslbench.runtime.resources import float_precision

if TYPE_CHECKING:
    from sslbench.cli.commands.eval.presets import ProtocolRun
    from sslbench.cli.words import Routed
    from sslbench.evaluation import Request, RunSettings, Task
    from sslbench.evaluation.suite import SuiteCell
    from sslbench.features.external import FeaturePair
    from sslbench.library.benchmarks import Benchmark
    from sslbench.protocols import NeededBenchmark
    from sslbench.results import Result


@dataclasses.dataclass(frozen=True)
class SamplesPlan:
    """Evaluation of weights on data.

    Attributes:
        requests: of one weights file; () where `cells` are evaluated.
        cells: weights x benchmarks; one that fails leaves a hole, one that has a record is not computed again.
        runs: folders of checkpoints among the weights -> their files.
        origins: setting of the run -> its origin, for the user.
    """

    requests: tuple["Request", ...]
    cells: tuple["SuiteCell", ...]
    runs: dict[str, tuple[str, ...]]
    run: "RunSettings"
    origins: dict[str, str]
    store: Path
    out: Path
    dry_run: bool


@dataclasses.dataclass(frozen=True)
class EmbeddingsPlan:
    """Evaluation of embeddings made elsewhere; the fields are those of `EvalOptions`."""

    tasks: tuple["Task", ...]
    run: "RunSettings"
    origins: dict[str, str]
    features: Path
    labels: Path | None
    test_features: Path | None
    test_labels: Path | None
    label_column: str | None
    value_columns: tuple[str, ...]
    groups: tuple[str, ...]
    out: Path
    name: str | None
    dry_run: bool


def make_plan(
    ctx: click.Context,
    chosen: EvalOptions,
    names: Sequence[str],
    values: Mapping[str, Any],
    *,
    check_paths: bool = False,
) -> SamplesPlan:
    """Return what will be evaluated; nothing is opened.

    Args:
        ctx: the context of the command.
        chosen: its options.
        names: protocols.
        values: key=value.
        check_paths: refuse paths that do not exist.

    Raises:
        UsageError: a name, option or setting that does not exist or has no effect.
    """
    from sslbench.cli.commands.eval import suite
    from sslbench.cli.words import typed

    checked = check(ctx, chosen, names, values, check_paths=check_paths)
    benchmarks, runs, routed = checked.benchmarks, checked.runs, checked.routed
    weights, of_runs = suite.with_checkpoints(suite.expand(chosen.weights))
    if chosen.name and len(weights) > 1:
        raise UsageError(f"--name {chosen.name} names one network, and there are {len(weights)}", "Leave it out.")
    requests: tuple[Request, ...] = ()
    cells: tuple[SuiteCell, ...] = ()
    if len(weights) > 1 or of_runs or chosen.suite or chosen.skip_existing:
        cells = suite.make_cells(
            weights, benchmarks, chosen, lambda one, own, on: _requests(runs, on, routed, chosen, one, own)
        )
        settings = [f"{key}={typed(value)}" for key, value in values.items()]  # cells of a folder differ by them, too
        own_name = [] if benchmarks else [*names, *chosen.presets]
        cells = tuple(
            dataclasses.replace(cell, benchmark=" ".join([*(own_name or [cell.benchmark]), *settings]))
            for cell in cells
        )
    else:
        requests = _requests(runs, benchmarks, routed, chosen, weights[0], chosen.network.backbone)
    store, out = chosen.run.store_folder(), Path(chosen.out)
    return SamplesPlan(requests, cells, of_runs, checked.run, checked.origins, store, out, chosen.dry_run)


def run(plan: SamplesPlan, command: str) -> int | None:
    """Evaluate a plan, or print it; return the exit code, None where all went well.

    Args:
        plan: from `make_plan`.
        command: as the user typed it.
    """
    from sslbench.cli.commands.eval import suite

    if plan.cells and plan.dry_run:
        suite.dry_run(plan.cells, plan.run, plan.origins, plan.store, plan.out)
    elif plan.cells:
        return suite.run(plan.cells, plan.run, runs=plan.runs, store=plan.store, out=plan.out, command=command)
    elif plan.dry_run:
        _print(plan)
    else:
        _show(results_of(plan, command), plan.out)
    return None


def plan_embeddings(
    ctx: click.Context,
    chosen: EvalOptions,
    names: Sequence[str],
    values: Mapping[str, Any],
    *,
    check_paths: bool = False,
) -> EmbeddingsPlan:
    """Return the evaluation of --features; arguments and errors as for `make_plan`."""
    checked = _check_embeddings(ctx, chosen, names, values, check_paths=check_paths)

    from sslbench.cli.commands.eval.presets import mark_changes
    from sslbench.evaluation import make_task

    tasks = tuple(
        mark_changes(make_task(one.protocol, checked.routed.protocols[one.protocol], preset=one.preset), (), {})
        for one in checked.runs
    )
    if chosen.test_features:
        _refuse_unscored_test("--test-features", tasks)
    return EmbeddingsPlan(
        tasks,
        checked.run,
        checked.origins,
        Path(str(chosen.features)),
        Path(chosen.labels) if chosen.labels else None,
        Path(chosen.test_features) if chosen.test_features else None,
        Path(chosen.test_labels) if chosen.test_labels else None,
        chosen.data.label_column,
        chosen.numbers(),
        chosen.groups,
        Path(chosen.out),
        chosen.name,
        chosen.dry_run,
    )


def run_embeddings(plan: EmbeddingsPlan, command: str) -> None:
    """Evaluate embeddings and print the results, or print the plan."""
    from sslbench.cli.commands.eval import table

    if plan.dry_run:
        from sslbench.cli.commands.eval.plan import print_plan_of_features

        print_plan_of_features(_read_embeddings(plan), plan.tasks, plan.run, plan.origins, plan.out)
        return
    table.print_results(results_of_embeddings(plan, command), plan.out)


def results_of_embeddings(plan: EmbeddingsPlan, command: str) -> list["Result"]:
    """Evaluate embeddings and return the results."""
    from sslbench import evaluation
    from sslbench.cli import terminal

    evaluation.check_writable(plan.out)
    pair = _read_embeddings(plan)
    with terminal.progress():  # of the solvers
        return evaluation.evaluate_features(pair, plan.tasks, plan.run, out=plan.out, command=command, name=plan.name)


def _read_embeddings(plan: EmbeddingsPlan) -> "FeaturePair":
    from sslbench import evaluation
    from sslbench.features.external import read_train_test, read_unlabelled

    if plan.labels is None:
        return read_unlabelled(plan.features)
    return read_train_test(
        plan.features,
        plan.labels,
        plan.test_features,
        plan.test_labels,
        label_column=plan.label_column,
        value_columns=plan.value_columns,
        attribute_columns=plan.groups,
        own_classes=evaluation.has_own_classes(plan.tasks),
        test_fraction=plan.run.test_fraction,
        seed=plan.run.seed,
    )


@dataclasses.dataclass(frozen=True)
class CheckedCommand:
    """Names and settings of a command, all of which exist and are possible.

    Attributes:
        benchmarks: those named, and of a suite.
        runs: protocols to run.
        routed: settings that were typed.
        run: settings of the run.
        origins: setting of the run -> its origin, for the user.
    """

    benchmarks: "Sequence[Benchmark]"
    runs: "Sequence[ProtocolRun]"
    routed: "Routed"
    run: "RunSettings"
    origins: dict[str, str]


def check(
    ctx: click.Context,
    chosen: EvalOptions,
    names: Sequence[str],
    values: Mapping[str, Any],
    *,
    check_paths: bool = False,
) -> CheckedCommand:
    """Refuse what can be known to be wrong before anything heavy is imported; arguments as for `make_plan`.

    Raises:
        SslbenchError: a name, path, option or setting that does not exist, is not possible or has no effect.
    """
    from sslbench.cli import early
    from sslbench.cli.commands.eval import presets, suite

    benchmarks = _benchmarks(chosen, names)
    runs = presets.runs(names, chosen.presets, benchmarks)
    refuse_unused(ctx, chosen, [run.protocol for run in runs])
    checked = _settings(chosen, values, benchmarks, runs)
    _refuse_wrong_settings(checked)
    if check_paths:
        refuse_mistyped(chosen)
    if not benchmarks and not all(find_protocol(run.protocol).kind.int8 for run in runs):
        float_precision(checked.run.precision)
    early.refuse_wrong_network(chosen.network.format, chosen.network.stem)
    chosen.network.layer_names()
    chosen.preprocessing.check()
    check_values(chosen.noise_shares())
    if not chosen.weights:
        raise UsageError(
            "--weights is missing",
            "Give a weights file; 'random' with --backbone for an untrained network; 'pixels' for raw pixels.",
        )
    if check_paths and chosen.weights == ("random",) and not chosen.suite:
        random_backbone(chosen.network.backbone)
    if check_paths and len(chosen.weights) == 1 and is_pixels(chosen.weights[0]):
        pixels_backbone(chosen.weights[0], chosen.network.backbone)
    weights, of_runs = suite.with_checkpoints(suite.expand(chosen.weights))
    if check_paths and len(weights) == 1 and not of_runs and not chosen.suite:
        early.refuse_other_files(weights)
    return checked


def _check_embeddings(
    ctx: click.Context, chosen: EvalOptions, names: Sequence[str], values: Mapping[str, Any], *, check_paths: bool
) -> CheckedCommand:
    """Do the same for embeddings, whose labels may be missing."""
    from sslbench.cli import early
    from sslbench.cli.commands.eval import presets

    benchmarks = _benchmarks(chosen, names)
    runs = presets.runs(names, chosen.presets, benchmarks)
    refuse_unused(ctx, chosen, [run.protocol for run in runs])
    checked = _settings(chosen, values, benchmarks, runs)
    if not chosen.labels and any(find_protocol(run.protocol).kind.needs_labels for run in runs):
        text = "--features needs --labels: an array, or a table with a column 'label', one line per row of the features"
        own = f" A file that sslbench extract wrote has both: --labels {chosen.features}."
        written = str(chosen.features).endswith((".npz", ".parquet", ".h5"))
        raise UsageError(text, f"Protocols that need none: geometry.{own if written else ''}")
    if check_paths:
        early.refuse_missing_files(chosen.features, chosen.labels, chosen.test_features, chosen.test_labels)
    _refuse_wrong_settings(checked)
    return checked


def _settings(
    chosen: EvalOptions,
    values: Mapping[str, Any],
    benchmarks: Sequence["Benchmark"],
    runs: "Sequence[ProtocolRun]",
) -> CheckedCommand:
    """Return the settings that were typed, and those of the run."""
    from sslbench.cli import words
    from sslbench.evaluation import RunSettings

    used = list(dict.fromkeys(each.protocol for each in runs))
    run_keys = [f.name for f in dataclasses.fields(RunSettings)] + ["machine"]
    routed = words.route({**values, **chosen.protocol_settings()}, run_keys, used)
    run, origins = words.resolve_run(routed.run, chosen.run_settings())
    return CheckedCommand(benchmarks, runs, routed, run, origins)


def _refuse_wrong_settings(checked: CheckedCommand) -> None:
    """Refuse impossible settings, protocols without common data, several trainings of protocols that train nothing."""
    from sslbench.evaluation import make_task
    from sslbench.evaluation.request import refuse_different_labels
    from sslbench.evaluation.trainings import check_seeds

    tasks = []
    for run in checked.runs:
        protocol = find_protocol(run.protocol)
        own: Sequence[Benchmark | None] = [each for each in checked.benchmarks if each.protocol == run.named] or [None]
        for benchmark in own:
            tasks.append(make_task(run.protocol, checked.routed.protocols[run.protocol], benchmark, run.preset))
            protocol.check_settings(tasks[-1].settings)
    if not checked.benchmarks:
        refuse_different_labels(task.protocol for task in tasks)
    if not any(task.kind.trains for task in tasks):  # with others, those that train may be several requests
        check_seeds(checked.run, tasks)


def _benchmarks(chosen: EvalOptions, names: Sequence[str]) -> list["Benchmark"]:
    """Return the benchmarks of --benchmark and --suite; without any, protocols or presets are run on --data."""
    from sslbench.library.benchmarks import load_benchmark, load_suite

    known = list_names("protocol")
    for name in names:
        if name not in known and "." not in name:
            remedy = plugin_remedy(name) or did_you_mean(name, known)
            raise UsageError(f"there is no protocol called '{name}'", remedy)
    suite = load_suite(chosen.suite) if chosen.suite else ()
    benchmarks = [load_benchmark(name) for name in [*chosen.benchmarks, *suite]]
    named = [each.protocol for each in benchmarks if each.protocol in known]  # others are code, which a user types
    alone = [protocol for protocol in named if find_protocol(protocol).kind.on_objects]
    if alone and not chosen.suite and (others := [name for name in names if name not in alone]):
        raise UsageError(
            f"{alone[0]} trains a network and cannot go together with {', '.join(others)}", "Run sslbench eval twice."
        )
    for name in names if not benchmarks else ():
        if (needed := find_protocol(name).benchmark) is not None:
            return [_needed_benchmark(name, needed, chosen, names)]
    if not benchmarks and not names and not chosen.presets:
        raise UsageError("no protocol is named: give a protocol, a --preset or a --benchmark", did_you_mean("", known))
    if benchmarks and names:
        benchmarks = [b for b in benchmarks if b.protocol in names]
        if not benchmarks:
            raise UsageError(f"none of the requested benchmarks uses the protocol {' or '.join(names)}")
    return benchmarks


def _needed_benchmark(name: str, needed: "NeededBenchmark", chosen: EvalOptions, names: Sequence[str]) -> "Benchmark":
    """Return the benchmark of a protocol that is not run without one, where no data are given."""
    from sslbench.library.benchmarks import load_benchmark

    if others := [other for other in names if other != name]:
        raise UsageError(
            f"{name} trains a network and cannot go together with {', '.join(others)}", "Run sslbench eval twice."
        )
    if chosen.data.data:
        there = ", ".join(each for each in list_names("benchmark") if each.startswith(f"{name}/"))
        raise UsageError(f"--benchmark, {needed.content}, is missing", f"{needed.advice} Benchmarks: {there}.")
    return load_benchmark(needed.default)


def _requests(
    runs: Sequence["ProtocolRun"],
    benchmarks: Sequence["Benchmark"],
    routed: "Routed",
    chosen: EvalOptions,
    weights: str,
    backbone: str | None,
) -> tuple["Request", ...]:
    """Return the requests for one weights file; protocols that want the same images share one."""
    from sslbench.cli.commands.eval.presets import grouped, layers_and_preprocessing, mark_changes
    from sslbench.evaluation import make_task
    from sslbench.evaluation.opening import kinds_of_places
    from sslbench.library.benchmarks import data_of

    common = {
        **chosen.network.loading(),
        "weights": weights,
        "backbone": backbone,
        "image_column": chosen.data.image_column,
        "label_column": chosen.data.label_column,
        "limit": chosen.data.limit,
        "groups": chosen.groups,
        "noise": chosen.noise_shares(),
        "name": chosen.name,
        "value_columns": chosen.numbers(),
    }
    layers = chosen.network.layer_names()
    preprocessing = chosen.preprocessing.values()
    requests: list[Request] = []
    every: Sequence[Benchmark | None] = benchmarks or [None]
    for benchmark in every:
        data, common["test_data"] = chosen.data.data, chosen.data.test_data
        if benchmark is not None:
            data, common["test_data"] = data_of(benchmark, data, chosen.data.test_data)
        common["baselines"] = chosen.baselines
        unnamed = benchmark is not None and not (chosen.data.data or chosen.benchmarks or chosen.suite)
        if unnamed and (needed := find_protocol(runs[0].protocol).benchmark) is not None:
            data = options.default_data(str(data), needed.data)
            common["baselines"] = chosen.baselines or _shown_beside(chosen)
        common["test_classes"] = chosen.test_classes or (benchmark.test_classes if benchmark else "same")
        tasks = []
        for run in runs:
            if benchmark is not None and run.named != benchmark.protocol:
                continue
            of_images = layers_and_preprocessing(run, layers, preprocessing, benchmark)
            task = make_task(run.protocol, routed.protocols[run.protocol], benchmark, run.preset)
            tasks.append((mark_changes(task, *of_images), of_images))
        kinds = kinds_of_places([task for task, _ in tasks])
        if data is None:
            data = options.default_data(*kinds[0].default) if kinds else options.default_data()
        if chosen.data.test_data:
            _refuse_unscored_test("--test-data", [task for task, _ in tasks])
        requests += grouped(common, data, tasks)
    return tuple(requests)


def _shown_beside(chosen: EvalOptions) -> tuple[str, ...]:
    """Return the baselines on bundled data, which show only that the weights beat an untrained backbone."""
    if chosen.no_floors:
        return ()
    if this_process().rank == 0 and chosen.weights != ("random",):
        echo(
            "the same detector is also trained from the untrained backbone, for comparison (--no-floors skips it)",
            err=True,
        )
    return ("random",)


def _refuse_unscored_test(option: str, tasks: Sequence["Task"]) -> None:
    """Refuse a test part where every protocol, with these settings, scores train alone."""
    if tasks and all(task.part == "train" for task in tasks):
        named = " and ".join(dict.fromkeys(task.protocol for task in tasks))
        raise UsageError(
            f"{option} has no effect: {named}, with these settings, scores the training samples only",
            f"Leave {option} out, or change the settings (leave_one_out=false, part=test).",
        )


def _print(plan: SamplesPlan) -> None:
    from sslbench.cli.commands.eval.plan import print_plan
    from sslbench.evaluation import prepare

    for request in plan.requests:
        print_plan(prepare(request, plan.run), plan.origins, plan.store, plan.out)


def results_of(plan: SamplesPlan, command: str) -> list["Result"]:
    """Evaluate the requests of a plan and return the results; [] on processes other than the first."""
    from sslbench import evaluation
    from sslbench.backbones.backbone import Backbone
    from sslbench.cli import terminal
    from sslbench.features.presence import announced

    loaded: dict[bool, Backbone] = {}
    with announced(plan.store), terminal.progress() as progress:
        written = []
        for request in plan.requests:
            prepared = evaluation.prepare(request, plan.run, backbone=loaded.get(request.as_stored))
            loaded[request.as_stored] = prepared.loaded
            evaluation.check_writable(plan.out)
            written += evaluation.evaluate(prepared, store=plan.store, out=plan.out, command=command, progress=progress)
    return written


def _show(results: list["Result"], out: Path) -> None:
    from sslbench.cli.commands.eval import table
    from sslbench.distributed import this_process

    if this_process().rank == 0:
        table.print_results(results, out)
