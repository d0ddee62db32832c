"""`sslbench eval`."""

import dataclasses
import shlex
from typing import Any

import click

from sslbench import protocols
from sslbench.cli import options, remote_folder, slurm, terminal
from sslbench.cli.commands.eval.flags import EvalOptions
from sslbench.cli.echo import echo
from sslbench.cli.flags import add_options
from sslbench.cli.help import SettingsCommand
from sslbench.cli.tables import show_value
from sslbench.config import describe
from sslbench.errors import told_on_interrupt
from sslbench.names import list_names

KEPT = "records, features and checkpoints that were written are kept; the same command continues"
"""Words for an interrupted evaluation."""


class EvalCommand(SettingsCommand):
    """Command whose help also lists the settings of the protocols named on the command line."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the settings of the protocols named."""
        known = list_names("protocol")
        named = [word for word in ctx.meta.get("words", []) if word in known]
        for name in named:
            with formatter.section(f"Settings of {name} (KEY=VALUE)"):
                rows = describe(protocols.find(name).settings)
                formatter.write_dl([(f"{r.name}={show_value(r.default)}", f"{r.meaning} [{r.type}]") for r in rows])
        if not named:
            formatter.write_paragraph()
            formatter.write_text("Settings of a protocol: sslbench eval knn --help")


@click.command("eval", cls=EvalCommand)
@click.argument("words", nargs=-1, metavar="[PROTOCOL]... [KEY=VALUE]...")
@add_options(EvalOptions)
@options.message_options
def command(**_: Any) -> int | None:
    """Score a backbone's frozen features with one or several protocols, or a detector trained around it.

    The images are encoded once for all protocols; features are stored and found again. Without --data the digits
    bundled with scikit-learn are used, and for detection drawn shapes.

    \b
    sslbench eval knn --weights w.torch --data photos/
    sslbench eval knn svm linear --weights w.torch --data train.csv --test-data test.csv k=20,200
    sslbench eval --preset knn/dino --preset svm/voc07 --weights w.torch --data photos/
    sslbench eval --benchmark knn/cifar10 --weights timm.pth --backbone timm:vit_small_patch16_224
    sslbench eval --suite small --weights a.torch b.torch
    sslbench eval knn --weights runs/a/checkpoints --data photos/
    sslbench eval detection --benchmark detection/voc07 --weights w.torch --data VOC2007

    Several weights and --suite: each record is written when it is done, and what is there is not computed again. A
    folder of checkpoints also gives table, CSV and plot of the score over training.
    """  # noqa: D301
    from sslbench.cli.commands.eval.check import check

    terminal.show_messages()
    ctx = click.get_current_context()
    chosen, names, values = EvalOptions.of(ctx)
    launcher, values = slurm.take_launcher(values, chosen.launcher)
    checked = check(ctx, chosen, names, values)

    # What follows needs torch, whose import takes seconds: mistakes in the command are told before.
    from sslbench.cli.commands.eval import work

    plan = work.make_plan(chosen, names, values, checked)
    if launcher is not None:
        jobs = work.jobs_of(plan)
        if chosen.dry_run:
            slurm.show(jobs)
            return None
        code, ends = work.submit(plan, jobs, launcher, chosen.out)
        # Jobs of single seeds write no mean: the same command here reads their records and puts them together.
        seeds = any(request.get("run", {}).get("only_seed") is not None for job in jobs for request in job)
        if ends is None or code is not None or not seeds:
            after = "the same command without --launcher slurm puts the seeds together"
            if seeds or len(jobs) > 1:
                when = "when they are done: " if ends is None else ""
                echo(f"{when}{after if seeds else f'sslbench leaderboard {shlex.quote(chosen.out)}'}", err=True)
            return code
    if chosen.dry_run:
        work.dry_run(plan)
        return None
    with told_on_interrupt(KEPT), remote_folder.synchronised(chosen.out) as folder:
        return work.run(dataclasses.replace(plan, out=folder), str(ctx.find_root().obj))
