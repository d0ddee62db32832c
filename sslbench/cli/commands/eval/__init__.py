"""`sslbench eval`."""

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

import click

from sslbench import protocols
from sslbench.cli import launch, options
from sslbench.cli.commands.eval.suite import take_weights
from sslbench.cli.echo import echo
from sslbench.cli.help import SettingsCommand, usual_forms
from sslbench.cli.settings_page import show_value
from sslbench.errors import told_on_interrupt
from sslbench.names import list_names

if TYPE_CHECKING:
    from sslbench.cli.commands.eval.samples import EmbeddingsPlan, SamplesPlan

KEPT = "records, features and checkpoints that were written are kept; the same command continues"
"""Words for an interrupted evaluation."""


class EvalCommand(SettingsCommand):
    """Command whose help also lists the settings of the protocols named on the command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words for the help, and all values of --weights."""
        ctx.meta["words"] = list(args)
        ctx.meta["weights"], rest = take_weights(launch.take_launcher(ctx, usual_forms(self, args)))
        ctx.meta["rest"] = launch.without_option(rest, "--weights")
        return super().parse_args(ctx, rest)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the settings of the protocols named."""
        known = list_names("protocol")
        named = [word for word in ctx.meta.get("words", []) if word in known]
        for name in named:
            from sslbench.config import describe

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
@options.weights_options
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
    help="finetune: write scalars for TensorBoard below --out; the same as tensorboard=true.",
)
@click.option(
    "--histograms", is_flag=True, help="finetune: write histograms of parameters and gradients (--tensorboard)."
)
@click.option("--wandb", metavar="PROJECT", help="finetune: Weights & Biases project to log to.")
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
@launch.launcher_option
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
    from sslbench.cli import remote_folder, terminal

    terminal.show_messages()
    ctx = click.get_current_context()
    slurm = launch.chosen(ctx)
    plan, typed = make_plan(ctx, check_paths=True), str(ctx.find_root().obj)
    if slurm is not None:
        jobs, out = commands_of(ctx), remote_folder.local_folder(ctx.params["out"])
        seeds = separate_seeds(plan)
        if seeds:
            jobs = [["eval", f"only_seed={seed}", *words[1:]] for words in jobs for seed in seeds]
        if ctx.params["dry_run"]:
            launch.show(jobs)
            return None
        ends = launch.submit(jobs, slurm, out)
        if not seeds or launch.exit_code(ends) is not None:
            if len(jobs) > 1:
                when = "when they are done: " if ends is None else ""
                echo(f"{when}sslbench leaderboard {shlex.quote(ctx.params['out'])}", err=True)
            return launch.exit_code(ends)
        if ends is None:
            echo("when they are done: the same command without --launcher slurm puts the seeds together", err=True)
            return None
    if ctx.params["dry_run"]:
        return _run(plan, typed)
    with told_on_interrupt(KEPT), remote_folder.synchronised(ctx.params["out"]) as folder:
        return _run(dataclasses.replace(plan, out=folder), typed)


def _run(plan: "EmbeddingsPlan | SamplesPlan", typed: str) -> int | None:
    """Evaluate a plan, or print it; return the exit code, None where all went well."""
    from sslbench.cli.commands.eval import samples

    if isinstance(plan, samples.EmbeddingsPlan):
        samples.run_embeddings(plan, typed)
        return None
    return samples.run(plan, typed)


def commands_of(ctx: click.Context) -> list[list[str]]:
    """Return the commands of the jobs that do together what a parsed command asks for.

    Several benchmarks are a job each, in which all weights are encoded in one pass. Without benchmarks, several
    weights are a job each. A part of a suite, or one of several weights, skips what has a record as the whole does.
    """
    from sslbench.cli.commands.eval.suite import expand
    from sslbench.library.benchmarks import load_benchmark, load_suite

    rest, weights = ctx.meta["rest"], expand(ctx.meta["weights"])
    named = [*ctx.params["benchmarks"], *(load_suite(ctx.params["suite"]) if ctx.params["suite"] else ())]
    options = launch.only_options(ctx.command, rest)
    words = list(ctx.params["words"])
    common = ["eval", *words, *options]
    own = ["--weights", *weights] if weights else []
    if len(named) > 1:
        if protocols_named := [word for word in words if "=" not in word]:  # they choose among the benchmarks
            named = [name for name in named if load_benchmark(name).protocol in protocols_named]
        settings = [word for word in words if "=" in word]
        options = launch.without_option(options, "--suite", "--benchmark")
        skips = bool(ctx.params["suite"]) and len(weights) == 1 and not ctx.params["skip_existing"]
        skipping = ["--skip-existing"] if skips else []
        return [["eval", *settings, *options, *skipping, "--benchmark", name, *own] for name in named]
    if len(weights) > 1:
        skipping = [] if ctx.params["skip_existing"] else ["--skip-existing"]
        return [[*launch.without_backbone(common, word), *skipping, "--weights", word] for word in weights]
    return [[*common, *own]]


def separate_seeds(plan: "EmbeddingsPlan | SamplesPlan") -> tuple[int, ...]:
    """Return the seeds of which each is a job of its own; () where there is one, or a protocol that trains nothing."""
    from sslbench.cli.commands.eval import samples

    if isinstance(plan, samples.EmbeddingsPlan):
        return ()
    requests = [*plan.requests, *(request for cell in plan.cells for request in cell.requests)]
    if not all(task.kind.trains for request in requests for task in request.tasks):
        return ()
    seeds = tuple(run.seed for run in plan.run.each_seed())
    return seeds if len(seeds) > 1 else ()


def make_plan(ctx: click.Context, *, check_paths: bool = False) -> "EmbeddingsPlan | SamplesPlan":
    """Return what a parsed command will evaluate; nothing is opened.

    Args:
        ctx: the context of the command.
        check_paths: refuse paths that do not exist, before anything heavy is imported.

    Raises:
        UsageError: a name, option or setting that does not exist or has no effect.
    """
    from sslbench.cli.commands.eval import samples
    from sslbench.cli.commands.eval.flags import EvalOptions, protocol_names
    from sslbench.cli.words import split_words

    chosen = EvalOptions.of(ctx)
    names, values = split_words(chosen.words)
    names = protocol_names(chosen, names)
    if chosen.features is not None:
        return samples.plan_embeddings(ctx, chosen, names, values, check_paths=check_paths)
    return samples.make_plan(ctx, chosen, names, values, check_paths=check_paths)
