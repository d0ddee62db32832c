"""`sslbench pretrain`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import click

from sslbench.cli import options, slurm, terminal
from sslbench.cli.commands.pretrain.flags import PretrainFlags, write_method
from sslbench.cli.help import SettingsCommand
from sslbench.cli.words import split_words
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, list_names


class PretrainCommand(SettingsCommand):
    """Command whose help also shows the named recipe and the settings of its method."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the named recipes, or the names of all."""
        methods = list_names("method")
        named = [word for word in ctx.meta.get("words", []) if word in methods]
        for name in named:
            write_method(name, formatter)
        if not named:
            with formatter.section("Methods"):
                formatter.write_text(", ".join(methods))
            formatter.write_paragraph()
            formatter.write_text("Settings of a method and its recipe: sslbench pretrain simclr --help")


@click.command("pretrain", cls=PretrainCommand)
@click.argument("words", nargs=-1, metavar="METHOD [KEY=VALUE]...")
@click.option("--data", "-d", help="Images: folder, table, manifest, torchvision:NAME, ... Labels are ignored.")
@click.option(
    "--backbone",
    "-b",
    help="Architecture: resnet50, a timm name, my_module:callable; resnet50,in_chans=13 for 13 channels. Default: the "
    "recipe's.",
)
@click.option("--out", "-o", help="Folder of the run. Default: runs/METHOD-BACKBONE.")
@click.option("--init", help="Weights file to start from, in any format. Default: random initialisation.")
@click.option("--format", "init_format", help="Format of --init (sslbench list formats). Default: recognised.")
@click.option(
    "--stem", help="Rule that adapts the first convolution of --init to the number of channels: average, repeat, ..."
)
@click.option(
    "--eval-data",
    help="Labelled data for kNN and feature spectra every eval_every epochs (eval_linear=true: a linear head, too).",
)
@click.option("--eval-test-data", help="Test split of --eval-data. Default: found there, or split off.")
@options.image_column
@options.label_column
@click.option("--limit", type=click.IntRange(1), help="Largest number of images, for a quick look.")
@click.option(
    "--resume/--no-resume", default=True, help="Continue the run in --out (default), or refuse a folder in use."
)
@click.option("--resume-from", help="Checkpoint to continue from. Default: the newest in --out.")
@click.option("--epochs", type=float, help="Passes over the data. Default: the recipe's.")
@click.option("--batch-size", type=int, help="Images per update over all processes. Default: the recipe's.")
@click.option("--device", help="Device: auto, cpu, cuda, cuda:1, mps. Default: auto.")
@click.option("--precision", help="Precision of the forward pass: auto, fp32, bf16, fp16. Default: the recipe's.")
@click.option(
    "--workers", type=int, help="Processes that decode and augment; 0: the main process does. Default: by the cores."
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    help="Seed of the initialisation, the order of the images and the views.",
)
@click.option("--tensorboard", is_flag=True, help="Write scalars for TensorBoard below --out.")
@click.option(
    "--histograms", is_flag=True, help="Write histograms of parameters and gradients each epoch (--tensorboard)."
)
@click.option("--wandb", metavar="PROJECT", help="Weights & Biases project to log to (WANDB_MODE=offline works).")
@click.option(
    "--observer",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Observer of your own, built without arguments; repeatable.",
)
@click.option("--profile", type=click.IntRange(1), metavar="N", help="Updates to profile; writes a table and a trace.")
@click.option(
    "--launcher", help="Launcher: local, or slurm (launcher.partition=..., launcher.nodes=...). Default: local."
)
@options.message_options
@click.option("--dry-run", is_flag=True, help="Print the settings with their origins and stop.")
def command(words: tuple[str, ...], **flags: Any) -> int | None:
    """Train a backbone without labels, by a published recipe, and write weights.torch.

    The same command continues an interrupted run. Without --data the digits bundled with scikit-learn are used.

    \b
    sslbench pretrain simclr --data photos/ --backbone resnet50 batch_size=256
    sslbench pretrain moco_v2 --data photos/ --eval-data labelled/ epochs=200 method.temperature=0.1
    sslbench pretrain simclr --data small.csv augment=small optimizer.lr=0.1 schedule.warmup_epochs=5
    torchrun --nproc-per-node 8 -m sslbench pretrain dino -d photos/ -b timm:vit_small_patch16_224
    """  # noqa: D301
    from sslbench.cli.commands.pretrain.work import pretrain

    terminal.show_messages()
    names, values = split_words(words)
    flags |= options.as_flags(click.get_current_context(), values)
    given = PretrainFlags(**flags)
    launcher, values = slurm.take_launcher(values, given.launcher, training=True)
    return pretrain(_method(names), values, dataclasses.replace(given, launcher=None), launcher)


def _method(names: Sequence[str]) -> str:
    methods = list_names("method")
    if not names:
        raise UsageError("METHOD is missing", did_you_mean("", methods))
    if len(names) > 1:
        raise UsageError(
            f"give one method, not {' and '.join(names)}", "Settings are written as key=value, flags with --."
        )
    return names[0]
