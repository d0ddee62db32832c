"""`sslbench check-data`."""

from typing import Any

import click

from sslbench.cli import early, options, terminal
from sslbench.cli.commands.check_data.flags import DECODED, HASHED, CheckFlags
from sslbench.cli.help import GroupedCommand
from sslbench.cli.options import LocalPath
from sslbench.data.decode.reading import check_decoder
from sslbench.errors import UsageError


def _number_to_decode(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Return the number of images to decode; None for all."""
    if value == "all":
        return None
    if not value.isdecimal():
        raise click.BadParameter(f"'{value}' should be 'all' or a number of images per split")
    return int(value)


@click.command("check-data", cls=GroupedCommand)
@click.argument("data")
@click.option("--test-data", help="Test split. Default: found in DATA, or split off.")
@options.image_column
@options.label_column
@click.option(
    "--test-fraction", type=float, default=0.2, show_default=True, help="Share of test, where DATA has no test split."
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of that split.")
@click.option("--boxes", is_flag=True, help="Check the boxes and masks of objects, as for detection.")
@click.option(
    "--label-maps/--no-label-maps",
    default=None,
    help="Check label maps: ADE20K, COCO panoptic, Cityscapes, VOC segmentation, images/ with masks/. Default: if the "
    "layout allows nothing else.",
)
@click.option(
    "--pixel-values",
    type=click.Choice(["depth", "normals"]),
    help="Check the depth or the surface normals of every pixel. Default: if DATA has images/ and depth/ or normals/.",
)
@click.option(
    "--decode",
    metavar="all|N",
    callback=_number_to_decode,
    is_flag=False,
    flag_value="all",
    default="100",
    show_default=True,
    help="Number of images to decode per split, evenly spaced, or all; unreadable ones are listed.",
)
@click.option(
    "--copies/--no-copies",
    default=None,
    help=f"Look for images of equal content; reads every file once. Default: up to {HASHED:,} images.",
)
@click.option(
    "--near-copies",
    type=click.Choice(["pixels", "features", "none"]),
    help="Look for nearly equal images by 16 x 16 pixels (decodes all) or by stored features. "
    f"Default: pixels, up to {DECODED:,} images.",
)
@click.option("--store", help="Folder of the feature store, for --near-copies features.")
@click.option(
    "--near-threshold",
    type=click.FloatRange(0, 1),
    help="Smallest cosine similarity of nearly equal images, on whitened pixels or features. Default: 0.85.",
)
@click.option(
    "--pairs", type=LocalPath(), help="CSV file to write suspected leaks to: images of test and their matches in train."
)
@click.option("--csv", type=LocalPath(), help="CSV file to write the images per class to.")
@click.option("--sheet", type=LocalPath(), help="PNG file with example images of every class.")
@click.option("--html", type=LocalPath(), help="HTML page with findings, counts and example images.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--workers", type=click.IntRange(0), help="Processes that decode images.")
@click.option("--max-pixels", type=click.IntRange(1), help="Largest allowed picture, in pixels. Default: 178956970.")
@click.option("--decoder", help="Decoder of your own: my_module.my_function; several with commas.")
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
    decoders = tuple(name.strip() for name in flags["decoder"].split(",")) if flags["decoder"] else ()
    check_decoder(decoders)
    if not 0 < flags["test_fraction"] < 1:
        raise UsageError(f"--test-fraction should lie between 0 and 1, not {flags['test_fraction']:g}")
    if not (flags["boxes"] or flags["label_maps"] or flags["pixel_values"]):  # these refuse other flags first
        early.refuse_mistyped(data=(flags["data"], flags["test_data"]))

    from sslbench.cli.commands.check_data import work

    ctx.exit(work.check(ctx, CheckFlags(**{**flags, "decoder": decoders})))
