"""`sslbench sweep`."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli import launch, remote_folder
from sslbench.cli.commands.eval import KEPT, EvalCommand
from sslbench.cli.commands.eval import command as eval_command
from sslbench.cli.echo import echo
from sslbench.distributed import this_process
from sslbench.errors import UsageError, told_on_interrupt
from sslbench.names import did_you_mean, list_names

if TYPE_CHECKING:
    from sslbench.cli.commands.eval.flags import EvalOptions
    from sslbench.cli.slurm import Slurm
    from sslbench.evaluation.sweep import SweepRun

_NOT_HERE = (
    *("features", "labels", "test_features", "test_labels", "limit_iters", "baselines", "program"),
    "skip_existing",  # as a sweep does always
)
"""Options of `eval` for embeddings and detection, and those without a choice here."""


def _options() -> list[click.Parameter]:
    """Return the parameters of `eval` that a sweep has too."""
    return [parameter for parameter in eval_command.params if parameter.name not in _NOT_HERE]


@click.command("sweep", cls=EvalCommand, params=_options())
def command(**_: Any) -> int | None:
    """Score weights by several protocols, settings and seeds, and print one leaderboard.

    A comma separates values to try: k=10,20 seed=0,1,2 are six runs of a protocol that has k, and three of one that
    has none; k=[10,20] is one value, a list. What has a record in --out is not computed again, so the same command
    continues.

    \b
    sslbench sweep knn linear --weights a.torch b.torch --data photos/ k=10,20 seed=0,1,2 -o sweep/
    sslbench sweep --suite small --weights a.torch seed=0,1,2 --launcher slurm launcher.partition=gpu
    """  # noqa: D301
    from sslbench.cli import terminal
    from sslbench.cli.commands.eval.flags import EvalOptions, refuse_mistyped

    terminal.show_messages()
    ctx = click.get_current_context()
    ctx.params |= {name: () if name == "baselines" else None for name in _NOT_HERE}
    chosen = EvalOptions.of(ctx)
    refuse_mistyped(chosen)
    slurm = launch.chosen(ctx)
    runs = plan(ctx, chosen)
    if chosen.dry_run:
        for each in runs:
            echo(f"{each.cell.weights}\t{each.cell.benchmark}")
        echo(f"{len(runs)} runs", err=True)
        if slurm is not None:
            launch.show([each.words for each in runs])
        return None
    if slurm is not None:
        return _submit(runs, slurm, chosen.out)
    with told_on_interrupt(KEPT), remote_folder.synchronised(chosen.out) as out:
        return _run(runs, chosen.run.store_folder(), out, str(ctx.find_root().obj))


def _submit(runs: Sequence["SweepRun"], slurm: "Slurm", place: str) -> int | None:
    """Submit each run as a job; print the leaderboard and what is missing in it if they are waited for."""
    from sslbench.cli.commands.leaderboard import write_board
    from sslbench.results import holes
    from sslbench.results.holes import Hole

    ends = launch.submit([each.words for each in runs], slurm, remote_folder.local_folder(place))
    if ends is None:
        echo(f"when they are done: sslbench leaderboard {shlex.quote(place)}", err=True)
        return None
    with remote_folder.synchronised(place) as out:
        told = {(hole.weights, hole.benchmark) for hole in holes.read(out)}
        lost = [
            Hole(each.cell.weights, each.cell.benchmark, end.reason or f"its job ended with exit code {end.code}")
            for each, end in zip(runs, ends, strict=True)
            if end.code and (each.cell.weights, each.cell.benchmark) not in told  # the job was killed
        ]
        holes.write(out, [(hole.weights, hole.benchmark) for hole in lost], lost)
        write_board([out], {"csv": out / "leaderboard.csv"})
    return launch.exit_code(ends)


def _run(runs: Sequence["SweepRun"], store: Path, out: Path, typed: str) -> int | None:
    """Run everything here, print the leaderboard and the holes; return the exit code, None where all went well."""
    from sslbench import evaluation
    from sslbench.cli import terminal
    from sslbench.cli.commands.eval import suite
    from sslbench.cli.commands.leaderboard import write_board
    from sslbench.evaluation.sweep import run_sweep
    from sslbench.features.presence import announced

    evaluation.check_writable(out)
    with announced(store), terminal.progress() as progress:
        results, holes = run_sweep(runs, store=store, out=out, command=typed, progress=progress)
    if this_process().rank != 0:
        return None
    if results:
        write_board([out], {"csv": out / "leaderboard.csv"})
    suite.print_holes(holes, len(runs), out)
    return 1 if holes else None


def plan(ctx: click.Context, chosen: "EvalOptions") -> list["SweepRun"]:
    """Return the runs that a parsed command asks for, each once; nothing is opened.

    Raises:
        UsageError: a name or setting that does not exist, or detection.
    """
    from sslbench.cli.commands.eval import samples
    from sslbench.cli.commands.eval.flags import protocol_names
    from sslbench.cli.words import combinations, split_sweep
    from sslbench.library.benchmarks import load_suite

    names, values = split_sweep(chosen.words)
    names = protocol_names(chosen, names)
    if chosen.run.seed is not None and "seed" in values:
        raise UsageError("--seed and seed= are the same setting", "Leave one out.")
    benchmarks = (*chosen.benchmarks, *(load_suite(chosen.suite) if chosen.suite else ()))
    groups: list[tuple[EvalOptions, list[str]]] = []
    for benchmark in benchmarks or (None,):
        one = dataclasses.replace(chosen, suite=None, benchmarks=(benchmark,) if benchmark else ())
        groups += _groups(one, names)
    swept = [_swept(group, values) for group in groups]
    if unused := set(values).difference(*swept):
        known = {key for group in groups for key in _keys(*group)[1]}
        raise UsageError(f"there is no setting '{min(unused)}'", did_you_mean(min(unused), known))
    for (one, own_names), settings in zip(groups, swept, strict=True):  # all, before anything heavy is imported
        for each in combinations(settings):
            samples.check(ctx, one, own_names, each)
    runs: dict[object, SweepRun] = {}
    for group, settings in zip(groups, swept, strict=True):
        for run in _runs(ctx, *group, settings):
            runs.setdefault((run.cell.weights, repr(run.cell.requests), run.run, str(run.cell.problem)), run)
    return list(runs.values())


def _groups(one: "EvalOptions", names: Sequence[str]) -> list[tuple["EvalOptions", list[str]]]:
    """Return options and names of protocols of which each is one protocol."""
    from sslbench.library.benchmarks import load_benchmark

    if one.benchmarks:
        protocol = load_benchmark(one.benchmarks[0]).protocol
        return [] if names and protocol not in names else [(one, [])]
    found = [(dataclasses.replace(one, presets=()), [name]) for name in names]
    return [*found, *((dataclasses.replace(one, presets=(preset,)), []) for preset in one.presets)] or [(one, [])]


def _swept(group: tuple["EvalOptions", list[str]], values: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Return the values to try that have an effect on one protocol or benchmark."""
    protocol, keys = _keys(*group)
    return {key: tried for key, tried in values.items() if key in keys or key.removeprefix(f"{protocol}.") in keys}


def _runs(
    ctx: click.Context, chosen: "EvalOptions", names: Sequence[str], swept: Mapping[str, Sequence[Any]]
) -> list["SweepRun"]:
    """Return the runs of one protocol or benchmark."""
    from sslbench.cli.commands.eval import samples
    from sslbench.cli.words import combinations
    from sslbench.evaluation.sweep import SweepRun

    runs: list[SweepRun] = []
    for settings in combinations(swept):
        plan = samples.make_plan(ctx, dataclasses.replace(chosen, skip_existing=True), names, settings)
        for cell in plan.cells:
            words = _words(ctx, chosen, names, settings, cell.weights)
            own = dataclasses.replace(cell, command=shlex.join(["sslbench", *words]))  # `reproduce` runs it
            runs.append(SweepRun(own, plan.run, tuple(words)))
    return runs


def _keys(chosen: "EvalOptions", names: Sequence[str]) -> tuple[str, set[str]]:
    """Return the protocol, and the settings of it and of the run."""
    from sslbench import protocols
    from sslbench.cli.commands.eval import presets
    from sslbench.evaluation.request import RunSettings
    from sslbench.library.benchmarks import load_benchmark

    benchmarks = [load_benchmark(name) for name in chosen.benchmarks]
    if not names and not chosen.presets and not benchmarks:
        known = list_names("protocol")
        raise UsageError("no protocol is named: give a protocol, a --preset or a --benchmark", did_you_mean("", known))
    for name in names:
        protocols.find(name)
    (run,) = presets.runs(names, chosen.presets, benchmarks)
    fields = (*dataclasses.fields(protocols.find(run.protocol).settings), *dataclasses.fields(RunSettings))
    return run.protocol, {field.name for field in fields} | {"machine"}


def _words(
    ctx: click.Context, chosen: "EvalOptions", names: Sequence[str], settings: Mapping[str, Any], weights: str
) -> list[str]:
    """Return the arguments of `sslbench eval` for one run."""
    from sslbench.cli.words import typed

    flags = launch.only_options(ctx.command, ctx.meta["rest"])
    flags = launch.without_option(flags, "--suite", "--benchmark", "--preset")
    flags = launch.without_backbone(flags, weights)
    named = [word for name in chosen.benchmarks for word in ("--benchmark", name)]
    named += [word for name in chosen.presets for word in ("--preset", name)]
    values = [f"{key}={typed(value)}" for key, value in settings.items()]
    return ["eval", *names, *values, *flags, "--skip-existing", *named, "--weights", weights]
