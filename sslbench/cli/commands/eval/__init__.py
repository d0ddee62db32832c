"""`sslbench eval`."""

import dataclasses
import shlex
from typing import Any

import click

from sslbench import protocols
from sslbench.cli import options, remote_folder, slurm, terminal
from sslbench.cli.commands.eval.flags import EvalOptions
from sslbench.cli.echo import echo
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
@click.option(
    "--benchmark", "benchmarks", multiple=True, help="Named benchmark (sslbench list benchmarks), or a YAML file."
)
@click.option(
    "--preset",
    "presets",
    multiple=True,
    help="Published settings of a protocol: dino, knn/dino (sslbench list presets).",
)
@click.option("--suite", help="List of benchmarks (sslbench list suites); one that cannot run is reported as a hole.")
@options.several_weights_options
@options.data_options
@click.option(
    "--test-classes",
    type=click.Choice(["same", "subset", "numbers"]),
    help="Classes of test: train's; a subset (only these are predicted); numbers of train's sorted classes.",
)
@click.option("--value-col", "value_columns", help="Columns of numbers to predict instead of classes: height, or x,y.")
@click.option(
    "--groups",
    multiple=True,
    metavar="COLUMN",
    help="Column of groups: each group is scored too, and the worst reported.",
)
@click.option("--noise", help="Shares of wrong train labels, each a further result: 0.1,0.2,0.4.")
@click.option(
    "--features", help="Embeddings made elsewhere: .npy .npz .h5 .pt .parquet .csv; replaces --weights, --data."
)
@click.option("--labels", help="Labels of --features: an array, or a table with a column 'label'; ?group=COLUMN.")
@click.option("--test-features", help="Embeddings of the test part.")
@click.option("--test-labels", help="Labels of --test-features.")
@options.preprocessing_options
@options.run_options
@click.option(
    "--max-memory", help="Memory of the search of neighbours and of svm: 8GB, 500MB; the same as max_memory=8."
)
@click.option(
    "--tensorboard",
    is_flag=True,
    help="finetune, detection: write scalars for TensorBoard below --out; the same as tensorboard=true.",
)
@click.option(
    "--histograms", is_flag=True, help="finetune: write histograms of parameters and gradients (--tensorboard)."
)
@click.option("--wandb", metavar="PROJECT", help="finetune, detection: Weights & Biases project to log to.")
@click.option("--no-floors", is_flag=True, help="Skip chance, pixels and the untrained backbone.")
@click.option(
    "--on-the-fly",
    is_flag=True,
    help="segmentation-knn: compute the features of patches when they are read, and store none.",
)
@click.option(
    "--no-estimate",
    is_flag=True,
    help="Skip the estimate of time, memory and disk, and its refusal of what does not fit. --dry-run prints it.",
)
@click.option(
    "--skip-existing",
    is_flag=True,
    help="Do not compute again what has a record in --out; always so with several weights or --suite.",
)
@click.option("--no-overlaps", is_flag=True, help="Skip the search for test images that also occur in train.")
@click.option(
    "--limit-iters",
    type=click.IntRange(1),
    help="detection: largest number of training iterations, to shorten a recipe.",
)
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    metavar="random|WEIGHTS",
    help="detection: other weights to train the same detector from, for comparison; random: untrained.",
)
@click.option(
    "--backend",
    "program",
    type=click.Choice(("torchvision", "detectron2")),
    help="detection: library that trains the detector [default: torchvision]; d2.KEY=VALUE sets Detectron2's keys.",
)
@click.option("--out", "-o", default="results", show_default=True, help="Folder for the result records.")
@click.option("--name", help="Name of the weights in records and tables. Default: that of their file.")
@slurm.launcher_option
@options.message_options
@click.option("--dry-run", is_flag=True, help="Print the plan, with the origin of every setting, and stop.")
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
