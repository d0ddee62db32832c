"""`sslbench sweep`."""

import dataclasses
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from sslbench import protocols
from sslbench.cli import remote_folder, slurm, terminal
from sslbench.cli.commands.eval import KEPT, EvalCommand
from sslbench.cli.commands.eval import command as eval_command
from sslbench.cli.commands.eval.check import CheckedCommand, check, protocol_runs
from sslbench.cli.commands.eval.flags import EvalOptions
from sslbench.cli.commands.leaderboard import write_board
from sslbench.cli.echo import echo
from sslbench.cli.words import combinations, split_sweep
from sslbench.distributed import this_process
from sslbench.errors import UsageError, told_on_interrupt
from sslbench.evaluation.request import written
from sslbench.evaluation.settings import RunSettings
from sslbench.library.benchmarks import load_benchmark, load_suite
from sslbench.names import did_you_mean, list_names
from sslbench.results import holes

if TYPE_CHECKING:
    from sslbench.evaluation.suite import SuiteCell

SweepRun: TypeAlias = "tuple[SuiteCell, RunSettings]"
"""One evaluation of a sweep: weights, and the protocol with swept settings; and the run, with its seed."""
CheckedEval: TypeAlias = "tuple[EvalOptions, list[str], dict[str, Any], CheckedCommand]"
"""Words of one evaluation of a sweep, checked: arguments of `make_plan`."""
_NOT_HERE = (
    *("features", "labels", "test_features", "test_labels", "limit_iters", "baselines", "program"),
    "skip_existing",  # as a sweep does always
)
"""Options of `eval` for embeddings and detection, and those without a choice here."""


@click.command("sweep", cls=EvalCommand, params=[p for p in eval_command.params if p.name not in _NOT_HERE])
def command(**_: Any) -> int | None:
    """Score weights by several protocols, settings and seeds, and print one leaderboard.

    A comma separates values to try: k=10,20 seed=0,1,2 are six runs of a protocol that has k, and three of one that
    has none; k=[10,20] is one value, a list. What has a record in --out is not computed again, so the same command
    continues.

    \b
    sslbench sweep knn linear --weights a.torch b.torch --data photos/ k=10,20 seed=0,1,2 -o sweep/
    sslbench sweep --suite small --weights a.torch seed=0,1,2 --launcher slurm launcher.partition=gpu
    """  # noqa: D301
    terminal.show_messages()
    ctx = click.get_current_context()
    every, chosen, launcher = checked_commands(ctx)

    # What follows needs torch: see `eval`.
    from sslbench.cli.commands.eval import work

    runs = work.sweep_runs(every)
    if launcher is not None and not chosen.dry_run:
        return _submit(runs, launcher, chosen)
    if chosen.dry_run:
        for cell in (run[0] for run in runs):
            echo(f"{cell.weights}\t{cell.benchmark}")
        echo(f"{len(runs)} runs", err=True)
        if launcher is not None:
            slurm.show([_written(each) for each in runs])
        return None
    with told_on_interrupt(KEPT), remote_folder.synchronised(chosen.out) as out:
        results, lost = work.run_sweep(runs, chosen.run.store_folder(), out, str(ctx.find_root().obj))
        if this_process().rank != 0:
            return None
        if results:
            write_board([out], {"csv": out / "leaderboard.csv"})
        shown = () if results else None  # the table has the reasons below it
        work.print_holes(lost, len(runs), f"are holes ({out / holes.HOLES})", reasons=shown)
        return 1 if lost else None


def _written(run: SweepRun) -> list[dict[str, Any]]:
    cell, settings = run
    return [written(request, settings, cell.benchmark) for request in cell.requests]


def _submit(runs: Sequence[SweepRun], launcher: slurm.Slurm, chosen: EvalOptions) -> int | None:
    """Submit each run as a job; print the leaderboard and what is missing in it if they are waited for."""
    able = [(cell, run) for cell, run in runs if cell.problem is None]
    lost = [cell.hole(cell.problem) for cell, _ in runs if cell.problem is not None]
    flags = ["--out", chosen.out, "--store", str(chosen.run.store_folder()), "--skip-existing"]
    ends = slurm.submit([_written(run) for run in able], flags, launcher, remote_folder.local_folder(chosen.out))
    if ends is None:
        echo(f"when they are done: sslbench leaderboard {shlex.quote(chosen.out)}", err=True)
    with remote_folder.synchronised(chosen.out) as out:
        # A job writes its own hole with the better reason, unless it was killed.
        told = {(hole.weights, hole.benchmark) for hole in holes.read(out)}
        lost += [
            holes.Hole(cell.weights, cell.benchmark, end.reason or f"its job ended with exit code {end.code}")
            # Jobs that are not waited for have no ends.
            for (cell, _), end in zip(able, ends or (), strict=False)
            if end.code and (cell.weights, cell.benchmark) not in told  # the job was killed
        ]
        if lost:
            holes.write(out, [(hole.weights, hole.benchmark) for hole in lost], lost)
        if ends is not None:
            write_board([out], {"csv": out / "leaderboard.csv"})
    return slurm.exit_code(ends)


def checked_commands(ctx: click.Context) -> tuple[list[CheckedEval], EvalOptions, slurm.Slurm | None]:
    """Return the evaluations that a parsed command asks for, its options and launcher; nothing is opened."""
    chosen, names, values = EvalOptions.of(ctx, split_sweep)
    single = {key: tried[0] if len(tried) == 1 else tried for key, tried in values.items()}
    launcher, rest = slurm.take_launcher(single, chosen.launcher)
    values = {key: values[key] for key in rest}
    if "seed" in chosen.run.settings and "seed" in values:
        raise UsageError("--seed and seed= are the same setting", "Leave one out.")
    groups: list[tuple[EvalOptions, list[str]]] = []
    for benchmark in (*chosen.benchmarks, *(load_suite(chosen.suite) if chosen.suite else ())) or (None,):
        # One benchmark at a time: a setting multiplies the runs of the protocols that have it only.
        one = dataclasses.replace(chosen, suite=None, benchmarks=(benchmark,) if benchmark else (), skip_existing=True)
        groups += _groups(one, names)
    swept = []
    for group in groups:
        protocol, keys = _keys(*group)
        # The values to try that have an effect on this protocol or benchmark.
        swept.append({k: v for k, v in values.items() if k in keys or k.removeprefix(f"{protocol}.") in keys})
    if unused := set(values).difference(*swept):
        known = {key for group in groups for key in _keys(*group)[1]}
        raise UsageError(f"there is no setting '{min(unused)}'", did_you_mean(min(unused), known))
    every = [
        (one, own_names, settings, check(ctx, one, own_names, settings))
        for (one, own_names), tried in zip(groups, swept, strict=True)
        for settings in combinations(tried)
    ]
    return every, chosen, launcher


def _groups(one: EvalOptions, names: Sequence[str]) -> list[tuple[EvalOptions, list[str]]]:
    """Return options and names of protocols of which each is one protocol."""
    if one.benchmarks:
        protocol = load_benchmark(one.benchmarks[0]).protocol
        return [] if names and protocol not in names else [(one, [])]
    found = [(dataclasses.replace(one, presets=()), [name]) for name in names]
    return [*found, *((dataclasses.replace(one, presets=(preset,)), []) for preset in one.presets)] or [(one, [])]


def _keys(chosen: EvalOptions, names: Sequence[str]) -> tuple[str, set[str]]:
    """Return the protocol, and the settings of it and of the run."""
    benchmarks = [load_benchmark(name) for name in chosen.benchmarks]
    if not names and not chosen.presets and not benchmarks:
        known = list_names("protocol")
        raise UsageError("no protocol is named: give a protocol, a --preset or a --benchmark", did_you_mean("", known))
    for name in names:
        protocols.find(name)
    (run,) = protocol_runs(names, chosen.presets, benchmarks)
    fields = (*dataclasses.fields(protocols.find(run.protocol).settings), *dataclasses.fields(RunSettings))
    return run.protocol, {field.name for field in fields} | {"machine"}
