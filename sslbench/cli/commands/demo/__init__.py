"""`sslbench demo`."""

from pathlib import Path

import click

from sslbench.cli import options, terminal
from sslbench.cli.flags import argument_options, flag
from sslbench.runtime.folders import refuse_unwritable


@click.command("demo")
@argument_options
@options.message_options
def command(
    out: str = flag("Folder for all output.", "-o", "--out", default="sslbench-demo", show_default=True),
    seed: int = flag(
        "Seed of the drawing, the split, the training and the labels.",
        default=0,
        within="[0, 4294967295]",
        show_default=True,
    ),
) -> None:
    """Pretrain a small ResNet on drawn digits with SimCLR and evaluate it with few labels; offline, two minutes.

    Training uses no labels and no test images. low-shot and linear score the features; the untrained network and raw
    pixels are the floors. Table, page and pictures follow.
    """
    terminal.show_messages()
    refuse_unwritable(Path(out))

    from sslbench.cli.commands.demo import work

    work.run_demo(Path(out), seed)
