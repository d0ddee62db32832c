"""`--launcher slurm` of commands that evaluate: the same command, or its parts, as jobs."""

import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli.echo import echo
from sslbench.errors import UsageError

if TYPE_CHECKING:
    from sslbench.cli.slurm import End, Slurm, Submitted

_META = "launcher"
_SETTING = re.compile(r"(--)?launcher(\.\w+)?=")
"""Beginning of --launcher=NAME and launcher.KEY=VALUE; launcher.pth is a file."""

launcher_option = click.option(
    "--launcher",
    expose_value=False,  # it and launcher.KEY=VALUE are taken out of the arguments before the others are read
    help="Launcher: local, or slurm: as jobs, several benchmarks or weights as an array (launcher.partition=...). "
    "Default: local.",
)


def take_launcher(ctx: click.Context, args: Sequence[str]) -> list[str]:
    """Keep --launcher and launcher.KEY=VALUE for `chosen`, and return the other arguments."""
    rest = without_launcher(args)
    kept = [word.removeprefix("--") for word in args if _SETTING.match(word)]
    kept += [f"launcher={after}" for word, after in itertools.pairwise([*args, ""]) if word == "--launcher"]
    ctx.meta[_META] = kept
    return rest


def without_launcher(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the launcher and its settings."""
    words_left: list[str] = []
    skip = False
    for word in words:
        if skip or word == "--launcher":
            skip = not skip
        elif not _SETTING.match(word):
            words_left.append(word)
    return words_left


def chosen(ctx: click.Context) -> "Slurm | None":
    """Return the settings of the SLURM jobs that were asked for; None to run here.

    Raises:
        UsageError: no such launcher or setting, or settings without the launcher.
    """
    words: list[str] = ctx.meta.get(_META, [])
    if not words:
        return None
    from sslbench.cli.slurm import settings_of
    from sslbench.cli.words import split_words
    from sslbench.names import find_file

    values: dict[str, Any] = split_words(words)[1]
    name = str(values.pop("launcher", "local"))
    find_file("launcher", name)
    if name == "slurm":
        return settings_of({key.removeprefix("launcher."): value for key, value in values.items()})
    if values:
        raise UsageError(f"{next(iter(values))} has no effect without --launcher slurm")
    return None


def submit(commands: Sequence[Sequence[str]], settings: "Slurm", out: Path) -> "list[End] | None":
    """Submit commands, tell where their logs and results will lie, and wait for them where that was asked for.

    Args:
        commands: arguments of `sslbench` of each job.
        settings: of the jobs.
        out: folder of the results.

    Returns:
        The ends of the jobs if they were waited for; else None.

    Raises:
        UsageError: the jobs cannot be submitted.
    """
    from sslbench.cli import slurm

    jobs = slurm.submit(commands, settings, out)
    for job in jobs:
        echo(f"job {job.id} will run: {shlex.join(['sslbench', *job.words])}", err=True)
        echo(f"  its log is {job.log}", err=True)
    echo(f"results: {out}", err=True)
    number = jobs[0].id.partition("_")[0]  # of the array
    if settings.cluster == "slurm":
        follow = f"tail -f {shlex.quote(str(jobs[0].log))}"
        echo(f"to see the queue: squeue -j {number}; to read along: {follow}; to stop: scancel {number}", err=True)
    for job in jobs:
        echo(job.id)
    if not settings.wait:
        return None
    try:
        return _wait(jobs)
    except KeyboardInterrupt:
        if settings.cluster == "slurm":
            echo(f"the jobs go on; to stop them: scancel {number}", err=True)
        raise


def exit_code(ends: "Sequence[End] | None") -> int | None:
    """Return the largest exit code; None where all went well or nothing was waited for."""
    return max((end.code for end in ends or ()), default=0) or None


def _wait(jobs: Sequence["Submitted"]) -> "list[End]":
    """Wait for jobs, tell which have failed and why, and return their ends."""
    echo(f"waiting for {len(jobs)} job{'s' if len(jobs) > 1 else ''}; Ctrl-C ends the waiting, not the jobs", err=True)
    ends = []
    for job in jobs:
        end = job.end()
        ends.append(end)
        if end.code:
            why = f": {end.reason}" if end.reason else ""
            echo(f"job {job.id} ended with exit code {end.code}{why}", err=True)
            echo(f"  its log is {job.log}", err=True)
    echo(f"{sum(not end.code for end in ends)} of {len(jobs)} jobs are done", err=True)
    return ends


def show(commands: Sequence[Sequence[str]]) -> None:
    """Print the commands of the jobs that would be submitted."""
    for words in commands:
        echo(f"job: {shlex.join(['sslbench', *words])}")


def without_option(words: Sequence[str], *flags: str) -> list[str]:
    """Return words without options that take a value.

    >>> without_option(["knn", "--suite", "small", "--data=x"], "--suite")
    ['knn', '--data=x']
    """
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in flags:
            next(rest, None)
        elif not word.startswith(tuple(f"{flag}=" for flag in flags)):
            found.append(word)
    return found


def without_backbone(words: Sequence[str], weights: str) -> list[str]:
    """Return words without --backbone for 'pixels', which are a backbone themselves beside other weights.

    >>> without_backbone(["knn", "--backbone", "resnet50"], "pixels:16")
    ['knn']
    """
    from sslbench.backbones.named import is_pixels

    return without_option(words, "--backbone", "-b") if is_pixels(weights) else list(words)


def only_options(command: click.Command, words: Sequence[str]) -> list[str]:
    """Return the options with their values, without the other words and --dry-run."""
    with_value = {flag for p in command.params if isinstance(p, click.Option) and not p.is_flag for flag in p.opts}
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in with_value:
            found += [word, *([after] if (after := next(rest, None)) is not None else [])]
        elif word.startswith("-") and word != "--dry-run":
            found.append(word)
    return found
