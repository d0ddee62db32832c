"""Requests of a checked command, and their evaluation: here, as jobs, or as a printed plan."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from sslbench import evaluation
from sslbench.backbones.backbone import Backbone
from sslbench.cli import options, slurm, terminal
from sslbench.cli.commands.eval import show_plan, table
from sslbench.cli.commands.eval.check import CheckedCommand, expand, layers_and_preprocessing
from sslbench.cli.commands.eval.flags import EvalOptions
from sslbench.cli.echo import echo, echo_text
from sslbench.cli.remote_folder import local_folder
from sslbench.cli.slurm import End, Slurm
from sslbench.cli.words import typed
from sslbench.distributed import this_process
from sslbench.errors import SslbenchError, UsageError
from sslbench.evaluation.opening import kinds_of_places
from sslbench.evaluation.request import (
    FeaturesRequest,
    Request,
    Task,
    changed_fields,
    make_task,
    mark_changes,
    written,
)
from sslbench.evaluation.settings import RunSettings
from sslbench.evaluation.suite import SuiteCell, run_cells
from sslbench.features.external import FeaturePair, read_train_test, read_unlabelled
from sslbench.features.presence import announced
from sslbench.library.benchmarks import Benchmark, data_of
from sslbench.protocols import find as find_protocol
from sslbench.results import Result
from sslbench.results import holes as holes_file
from sslbench.results.holes import Hole
from sslbench.steps import Advance, counted
from sslbench.text import visible
from sslbench.weights.reading.folders import checkpoint_files, is_distributed, is_sharded, is_unfinished, weights_file


@dataclasses.dataclass(frozen=True)
class Plan:
    """Evaluations of a command.

    Attributes:
        requests: of one weights file, or of embeddings; () where `cells` are evaluated.
        cells: weights x benchmarks; one that fails leaves a hole, one that has a record is not computed again.
        folders: folders of checkpoints among the weights -> their files.
        run: settings of the run.
        origins: setting of the run -> its origin, for the user.
        store: folder of the feature store.
        out: folder of the records.
    """

    requests: tuple[Request | FeaturesRequest, ...]
    cells: tuple[SuiteCell, ...]
    folders: dict[str, tuple[str, ...]]
    run: RunSettings
    origins: dict[str, str]
    store: Path
    out: Path


def make_plan(chosen: EvalOptions, names: Sequence[str], values: Mapping[str, Any], checked: CheckedCommand) -> Plan:
    """Return what a checked command evaluates; nothing is opened."""
    store, out = chosen.run.store_folder(), Path(chosen.out)
    if chosen.features is not None:
        return Plan((_features_request(chosen, checked),), (), {}, checked.run, checked.origins, store, out)
    weights, folders = with_checkpoints(expand(chosen.weights))
    if chosen.name and len(weights) > 1:
        raise UsageError(f"--name {chosen.name} names one network, and there are {len(weights)}", "Leave it out.")
    requests: tuple[Request, ...] = ()
    cells: tuple[SuiteCell, ...] = ()
    if len(weights) > 1 or folders or chosen.suite or chosen.skip_existing:
        for word in weights:
            # 'pixels' are a backbone themselves.
            backbone = None if word.partition(":")[0] == "pixels" else chosen.network.backbone
            for benchmark in checked.benchmarks or (None,):
                problem = None if benchmark is None else _problem(benchmark, chosen)
                asked = _requests(checked, benchmark, chosen, word, backbone) if problem is None else ()
                title = [benchmark.name] if benchmark is not None else [*names, *chosen.presets]
                # Cells of a folder differ by the settings, too; those of other protocols have no effect here.
                runs = {run.protocol for run in checked.runs if benchmark is None or run.named == benchmark.protocol}
                own = {key: value for key, value in values.items() if key.rpartition(".")[0] in {"", *runs}}
                title += [f"{key}={typed(value)}" for key, value in own.items()]
                cells += (SuiteCell(word, " ".join(title), asked, problem),)
    else:
        every = checked.benchmarks or (None,)
        requests = tuple(
            r for one in every for r in _requests(checked, one, chosen, weights[0], chosen.network.backbone)
        )
    return Plan(requests, cells, folders, checked.run, checked.origins, store, out)


def with_checkpoints(weights: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Return the weights with folders of checkpoints replaced by their files in the order of training."""
    found: list[str] = []
    runs: dict[str, tuple[str, ...]] = {}
    for word in weights:
        path = Path(word)
        one = not path.is_dir() or is_sharded(path) or is_distributed(path)
        one = one or weights_file(path) is not None or is_unfinished(path)  # which loading refuses with the reason
        if word.partition(":")[0] in ("random", "pixels") or one:
            found.append(word)
            continue
        files = tuple(map(str, checkpoint_files(path)))
        if not files:
            inside = sorted(entry.name for entry in path.iterdir() if entry.is_file())[:5]
            remedy = "Give a weights file, or RUN/checkpoints." + (f" It holds: {', '.join(inside)}." if inside else "")
            raise UsageError(
                f"--weights {word}: this folder has no checkpoints of a pretraining run (step_000000100.ckpt)",
                f"Did you mean {path / 'checkpoints'}?" if checkpoint_files(path / "checkpoints") else remedy,
            )
        runs[word] = files
        found += files
    return list(dict.fromkeys(found)), runs


def plan_of(
    entries: Sequence[tuple[Request | FeaturesRequest, str]],
    run: RunSettings,
    store: Path,
    out: Path,
    *,
    skip_existing: bool,
) -> Plan:
    """Return what requests with their titles evaluate; folders of checkpoints are replaced by their files."""
    origins = {name: "the request" if name in changed_fields(run) else "default" for name in dataclasses.asdict(run)}
    images: dict[tuple[str, str], list[Request]] = {}
    features, folders = [], dict[str, tuple[str, ...]]()
    for request, title in entries:
        if isinstance(request, FeaturesRequest):
            features.append(request)
            continue
        weights, of_folder = with_checkpoints([request.weights])
        folders |= of_folder
        for word in weights:
            title = title or " ".join(task.protocol for task in request.tasks)
            images.setdefault((word, title), []).append(dataclasses.replace(request, weights=word))
    if features and skip_existing:
        raise UsageError("--skip-existing has no effect on embeddings", "Leave it out.")
    # Of several, one that fails leaves a hole; the error of a single one is the error of the command.
    several = len({word for word, _ in images}) > 1
    if not (several or folders or skip_existing):
        return Plan((*features, *itertools.chain(*images.values())), (), {}, run, origins, store, out)
    if features:
        raise UsageError(
            "embeddings and several weights are run one after the other", "Give them in files of their own."
        )
    order = list(dict.fromkeys(word for word, _ in images))  # each of the weights is loaded once
    cells = [SuiteCell(word, title, tuple(requests)) for (word, title), requests in images.items()]
    cells.sort(key=lambda cell: order.index(cell.weights))
    return Plan((), tuple(cells), folders, run, origins, store, out)


def _problem(benchmark: Benchmark, chosen: EvalOptions) -> SslbenchError | None:
    """Return the reason why a benchmark cannot be run here, known before anything is opened."""
    try:
        data_of(benchmark, chosen.data.data, chosen.data.test_data)
    except UsageError as error:
        return error
    return None


def _features_request(chosen: EvalOptions, checked: CheckedCommand) -> FeaturesRequest:
    tasks = tuple(
        mark_changes(make_task(one.protocol, checked.routed.protocols[one.protocol], preset=one.preset), (), {})
        for one in checked.runs
    )
    if chosen.test_features:
        _refuse_unscored_test("--test-features", tasks)
    return FeaturesRequest(
        str(chosen.features),
        tasks,
        chosen.labels,
        chosen.test_features,
        chosen.test_labels,
        chosen.data.label_column,
        chosen.numbers(),
        chosen.groups,
        chosen.name,
    )


def _requests(
    checked: CheckedCommand, benchmark: Benchmark | None, chosen: EvalOptions, weights: str, backbone: str | None
) -> tuple[Request, ...]:
    """Return the requests for one weights file on one benchmark; protocols that want the same images share one."""
    data, test_data, baselines = chosen.data.data, chosen.data.test_data, chosen.baselines
    runs = [run for run in checked.runs if benchmark is None or run.named == benchmark.protocol]
    if benchmark is not None:
        needed = find_protocol(runs[0].protocol).benchmark
        data, test_data = data_of(benchmark, data, test_data)
        if needed is not None and chosen.data.data is None and benchmark.name == needed.default:
            options.default_data(data, needed.data)
            baselines = baselines or (() if chosen.benchmarks or chosen.suite else _shown_beside(chosen))
    together: list[tuple[Any, list[Task]]] = []
    for run in runs:
        of_images = layers_and_preprocessing(
            run, chosen.network.layer_names(), chosen.preprocessing.values(), benchmark
        )
        task = make_task(run.protocol, checked.routed.protocols[run.protocol], benchmark, run.preset)
        task = mark_changes(task, *of_images)
        if (tasks := next((tasks for other, tasks in together if other == of_images), None)) is not None:
            tasks.append(task)
        else:
            together.append((of_images, [task]))
    every = [task for _, tasks in together for task in tasks]
    if data is None:
        kinds = kinds_of_places(every)
        own = next((task.kind.default for task in every if task.kind.default[0]), ())
        data = options.default_data(*kinds[0].default if kinds else own)
    if chosen.data.test_data:
        _refuse_unscored_test("--test-data", every)
    # Everything but the images' treatment, which tasks may want differently, is the same for all.
    common = Request(
        **{**chosen.network.loading(), "weights": weights, "backbone": backbone},
        data=data,
        tasks=(),
        test_data=test_data,
        image_column=chosen.data.image_column,
        label_column=chosen.data.label_column,
        limit=chosen.data.limit,
        test_classes=chosen.test_classes or (benchmark.test_classes if benchmark else "same"),
        groups=chosen.groups,
        value_columns=chosen.numbers(),
        noise=chosen.noise_shares(),
        baselines=baselines,
        name=chosen.name,
    )
    return tuple(
        dataclasses.replace(common, tasks=tuple(tasks), layers=layers, preprocessing=preprocessing)
        for (layers, preprocessing), tasks in together
    )


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


def _refuse_unscored_test(option: str, tasks: Sequence[Task]) -> None:
    """Refuse a test part where every protocol, with these settings, scores train alone."""
    if tasks and all(task.part == "train" for task in tasks):
        named = " and ".join(dict.fromkeys(task.protocol for task in tasks))
        raise UsageError(
            f"{option} has no effect: {named}, with these settings, scores the training samples only",
            f"Leave {option} out, or change the settings (leave_one_out=false, part=test).",
        )


def run(plan: Plan, command: str) -> int | None:
    """Evaluate a plan and print the results; return 1 where there is a hole, else None.

    Of several processes only the first tells of a hole: torchrun kills all when one ends with an error.
    """
    if not plan.cells:
        results = results_of(plan, command)
        if this_process().rank == 0:
            table.print_results(results)
            table.print_verdict(results, plan.out)
        return None
    evaluation.check_writable(plan.out)
    lost = [cell.hole(cell.problem) for cell in plan.cells if cell.problem is not None]
    if lost and this_process().rank == 0:
        print_holes(lost, len(plan.cells), "have no data here; the others run")
    with announced(plan.store), terminal.progress() as progress, _counted(plan.cells) as done:
        found, holes = run_cells(
            plan.cells, plan.run, store=plan.store, out=plan.out, command=command, progress=progress, done=done
        )
    if this_process().rank != 0:
        return None
    of_folders = {file for files in plan.folders.values() for file in files}
    results = [result for weights, own in found.items() if weights not in of_folders for result in own]
    if results:
        table.print_results(results)
        table.print_verdict(results, plan.out)
    for folder, files in plan.folders.items():
        table.print_over_training(Path(folder), {file: found[file] for file in files}, plan.out)
    told = [hole for hole in holes if hole not in lost]
    print_holes(holes, len(plan.cells), f"are holes ({plan.out / holes_file.HOLES})", reasons=told)
    return 1 if holes else None


def sweep_runs(
    every: Sequence[tuple[EvalOptions, Sequence[str], Mapping[str, Any], CheckedCommand]],
) -> list[tuple[SuiteCell, RunSettings]]:
    """Return the runs of a sweep of checked commands, each once; nothing is opened."""
    runs: dict[object, tuple[SuiteCell, RunSettings]] = {}
    for checked in every:
        plan = make_plan(*checked)
        for cell in plan.cells:
            # Settings without effect on a protocol (k of geometry) would give the same run several times.
            runs.setdefault((cell.weights, repr(cell.requests), plan.run, str(cell.problem)), (cell, plan.run))
    return list(runs.values())


def run_sweep(
    runs: Sequence[tuple[SuiteCell, RunSettings]], store: Path, out: Path, command: str
) -> tuple[list[Result], list[Hole]]:
    """Evaluate all runs of a sweep; one that fails leaves a hole. Weights are encoded together where they can be."""
    results: list[Result] = []
    holes: list[Hole] = []
    evaluation.check_writable(out)
    with announced(store), terminal.progress() as progress, _counted(runs) as done:
        for settings in dict.fromkeys(run for _, run in runs):
            cells = [cell for cell, run in runs if run == settings]
            order = list(dict.fromkeys(cell.weights for cell in cells))
            cells.sort(key=lambda cell: order.index(cell.weights))  # each of the weights is loaded once
            found, missing = run_cells(
                cells, settings, store=store, out=out, command=command, progress=progress, done=done
            )
            results += [result for own in found.values() for result in own]
            holes += missing
    return results, holes


def _counted(cells: Sequence[object]) -> AbstractContextManager[Advance]:
    """Show the progress of several evaluations beside that of the one at work."""
    return counted("all", "evaluations", len(cells), alone=False)


def results_of(plan: Plan, command: str) -> list[Result]:
    """Evaluate the requests of a plan and return the results; [] on processes other than the first."""
    loaded: dict[bool, Backbone] = {}
    results = []
    with announced(plan.store), terminal.progress() as progress:
        for request in plan.requests:
            if isinstance(request, FeaturesRequest):
                evaluation.check_writable(plan.out)
                pair, name = _read_features(request, plan.run), request.name
                results += evaluation.evaluate_features(
                    pair, request.tasks, plan.run, out=plan.out, command=command, name=name, request=request
                )
                continue
            prepared = evaluation.prepare(request, plan.run, backbone=loaded.get(request.as_stored))
            # The next request has the same weights; colours in the file's own order are another network.
            loaded[request.as_stored] = prepared.loaded
            evaluation.check_writable(plan.out)
            results += evaluation.evaluate(prepared, store=plan.store, out=plan.out, command=command, progress=progress)
    return results


def _read_features(request: FeaturesRequest, run: RunSettings) -> FeaturePair:
    if request.labels is None:
        return read_unlabelled(Path(request.features))
    return read_train_test(
        Path(request.features),
        Path(request.labels),
        Path(request.test_features) if request.test_features else None,
        Path(request.test_labels) if request.test_labels else None,
        label_column=request.label_column,
        value_columns=request.value_columns,
        attribute_columns=request.groups,
        own_classes=evaluation.has_own_classes(request.tasks),
        test_fraction=run.test_fraction,
        seed=run.seed,
    )


def print_holes(
    holes: Sequence[Hole], n_cells: int, state: str, *, reasons: Sequence[Hole] | None = None, err: bool = True
) -> None:
    """Print the number of missing cells; of `reasons`, by default all of them, with reasons and remedies."""
    if not holes:
        return
    texts = holes_file.texts(holes if reasons is None else reasons)
    echo(f" {state}{':' if texts else ''}", err=err, before=click.style(f"{len(holes)} of {n_cells} cells", bold=True))
    for text, remedy in texts.items():
        echo_text(f"  {text}", err=err)
        if remedy:
            echo_text(f"    {remedy}", err=err)


def dry_run(plan: Plan) -> None:
    """Print every effective setting with its origin; of cells that would be holes the reason, once for all alike."""
    for request in plan.requests:
        _print_plan(request, plan, {})
    holes, loaded = [], dict[tuple[str, bool], Backbone]()
    for cell in plan.cells:
        try:
            if cell.problem is not None:
                raise cell.problem
            echo(before=click.style(visible(f"{cell.weights} on {cell.benchmark}"), bold=True))
            for request in cell.requests:
                _print_plan(request, plan, loaded)
        except SslbenchError as error:
            holes.append(cell.hole(error))
            if cell.problem is None:
                echo("  hole: see below")
    print_holes(holes, len(plan.cells), "would be holes", err=False)


def _print_plan(request: Request | FeaturesRequest, plan: Plan, loaded: dict[tuple[str, bool], Backbone]) -> None:
    if isinstance(request, FeaturesRequest):
        pair = _read_features(request, plan.run)
        show_plan.print_plan_of_features(pair, request.tasks, plan.run, plan.origins, plan.out)
        return
    # One backbone at a time is in memory.
    key = request.weights, request.as_stored
    prepared = evaluation.prepare(request, plan.run, backbone=loaded.get(key))
    loaded.clear()
    loaded[key] = prepared.loaded
    show_plan.print_plan(prepared, plan.origins, plan.store, plan.out)


def jobs_of(plan: Plan) -> list[list[dict[str, Any]]]:
    """Return the written requests of the jobs that do together what a plan does.

    Several benchmarks are a job each, in which all weights are encoded in one pass. Without benchmarks, several
    weights are a job each. Seeds of protocols that all train are a job each.
    """
    units = [("", request) for request in plan.requests]
    folder_of = {file: folder for folder, files in plan.folders.items() for file in files}
    for cell in plan.cells:
        folder = folder_of.get(cell.weights, cell.weights)
        if folder == cell.weights or plan.folders[folder][0] == cell.weights:  # a folder is one entry
            units += [(cell.benchmark, dataclasses.replace(request, weights=folder)) for request in cell.requests]
    names = [title or " ".join(t.benchmark.name for t in r.tasks[:1] if t.benchmark is not None) for title, r in units]
    # All weights on one benchmark share a pass over its images; alone, weights have nothing to share.
    keys = names if len(set(names)) > 1 else [getattr(request, "weights", "") for _, request in units]
    every = [task for _, request in units for task in request.tasks]
    seeds = [run.seed for run in plan.run.each_seed()]
    runs = [plan.run]
    if len(seeds) > 1 and all(task.kind.trains for task in every):
        # On the split of the first seed: the trainings differ in nothing else.
        runs = [dataclasses.replace(plan.run, only_seed=seed) for seed in seeds]
    return [
        [written(request, run, title) for (title, request), name in zip(units, keys, strict=True) if name == key]
        for key in dict.fromkeys(keys)
        for run in runs
    ]


def submit(
    plan: Plan, jobs: Sequence[Sequence[Mapping[str, Any]]], launcher: Slurm, out: str
) -> tuple[int | None, list[End] | None]:
    """Submit the jobs of a plan; tell of cells whose data are missing."""
    code, folder = None, local_folder(out)
    # Their data are not here, and a job could not get them either.
    if lost := [cell for cell in plan.cells if cell.problem is not None]:
        _, holes = run_cells(lost, plan.run, store=plan.store, out=folder, command="")
        print_holes(holes, len(plan.cells), f"are holes ({folder / holes_file.HOLES})")
        code = 1
    flags = ["--out", out, "--store", str(plan.store), *(["--skip-existing"] if plan.cells else [])]
    ends = slurm.submit(jobs, flags, launcher, folder) if jobs else None
    return slurm.exit_code(ends) or code, ends
