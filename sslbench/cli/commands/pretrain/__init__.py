"""`sslbench pretrain`."""

import dataclasses
from typing import Any

import click

from sslbench.cli import options, slurm, terminal
from sslbench.cli.commands.pretrain.flags import PretrainFlags, write_method
from sslbench.cli.flags import add_options, take
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
@add_options(PretrainFlags)
@options.message_options
def command(words: tuple[str, ...], **values: Any) -> int | None:
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
    names, settings = split_words(words)
    given = take(PretrainFlags, values | options.as_flags(click.get_current_context(), settings))
    launcher, settings = slurm.take_launcher(settings, given.launcher, training=True)
    if not names:
        raise UsageError("METHOD is missing", did_you_mean("", list_names("method")))
    if len(names) > 1:
        raise UsageError(
            f"give one method, not {' and '.join(names)}", "Settings are written as key=value, flags with --."
        )
    return pretrain(names[0], settings, dataclasses.replace(given, launcher=None), launcher)
