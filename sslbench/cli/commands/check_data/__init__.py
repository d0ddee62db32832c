"""`sslbench check-data`."""

from typing import Any

import click

from sslbench.cli import early, options, terminal
from sslbench.cli.commands.check_data.flags import CheckFlags
from sslbench.cli.flags import add_options
from sslbench.cli.help import GroupedCommand
from sslbench.cli.options import message_options
from sslbench.data.decode.reading import ENCODED, check_decoder
from sslbench.errors import UsageError

_DECODING = {
    *("decode", "near_copies", "near_threshold", "sheet", "html", "max_pixels", "workers"),
    *("boxes", "label_maps", "pixel_values"),
}
"""Flags that need decoded images."""


@click.command("check-data", cls=GroupedCommand)
@click.argument("data")
@add_options(CheckFlags)
@message_options
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Check DATA before a run: splits, classes, copies, leaks from train to test, broken images.

    Exit code 0: no errors; 1: errors, or images of test that lie in train; 2: wrong usage. DATA is never changed.

    \b
    always, seconds:     classes and labels, hidden and flat folders, 100 decoded images per split
    reads every file:    images of equal content (above 100,000 images: --copies)
    decodes every image: nearly equal images (above 2,000: --near-copies pixels), --decode all
    """  # noqa: D301
    terminal.show_messages()
    if tuple(flags["decoder"] or ()) == (ENCODED,):
        used = {str(parameter.name) for parameter in ctx.command.params} - _DECODING
        options.refuse(ctx, used=used, what=f"--decoder {ENCODED}, which decodes nothing")
        flags |= {"decode": 0, "near_copies": "none", "decoder": ()}
    check_decoder(flags["decoder"] or ())
    if not 0 < flags["test_fraction"] < 1:
        raise UsageError(f"--test-fraction should lie between 0 and 1, not {flags['test_fraction']:g}")
    if not (flags["boxes"] or flags["label_maps"] or flags["pixel_values"]):  # these refuse other flags first
        early.refuse_mistyped(data=(flags["data"], flags["test_data"]))

    from sslbench.cli.commands.check_data import work

    ctx.exit(work.check(ctx, CheckFlags(**{**flags, "decoder": tuple(flags["decoder"] or ())})))
