"""`sslbench check-data`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from sslbench.cli import early, options, terminal
from sslbench.cli.commands.check_data import maps as map_report
from sslbench.cli.commands.check_data import report
from sslbench.cli.echo import echo
from sslbench.cli.help import GroupedCommand
from sslbench.cli.options import LocalPath
from sslbench.data.checks.findings import Finding
from sslbench.data.decode.reading import check_decoder
from sslbench.errors import DataError, UsageError
from sslbench.preprocessing import MAX_PIXELS
from sslbench.runtime.resources import default_workers
from sslbench.targets.label_maps import LabelMaps
from sslbench.targets.pixel_values import Depth, Normals

if TYPE_CHECKING:
    from sslbench.data.checks.findings import Finding
    from sslbench.data.checks.near import Pair
    from sslbench.data.checks.parts import CheckedParts, OpenedParts
    from sslbench.data.decode.handlers import Reading
    from sslbench.data.splits import TrainTest

HASHED = 100_000
"""Largest number of images that are searched for copies by default: every file has to be read once."""

DECODED = 2_000
"""Largest number of images that are searched for near copies by default: every image has to be decoded."""


@dataclasses.dataclass(frozen=True)
class CheckFlags:
    """Values of the flags of `sslbench check-data`."""

    data: str
    test_data: str | None
    image_column: str | None
    label_column: str | None
    test_fraction: float
    seed: int
    boxes: bool
    label_maps: bool | None
    pixel_values: Literal["depth", "normals"] | None
    decode: int | None
    copies: bool | None
    near_copies: Literal["pixels", "features", "none"] | None
    store: str | None
    near_threshold: float | None
    pairs: Path | None
    csv: Path | None
    sheet: Path | None
    html: Path | None
    as_json: bool
    workers: int | None
    max_pixels: int | None
    decoder: str | None

    def search(self, images: int) -> str:
        """Return the way near copies are found: 'pixels', 'features' or 'none'."""
        return self.near_copies or ("features" if self.store else "pixels" if images <= DECODED else "none")

    def decoders(self) -> tuple[str, ...]:
        """Return the names in --decoder."""
        return tuple(name.strip() for name in self.decoder.split(",")) if self.decoder else ()

    def kind_of_pixels(self) -> str:
        """Return the targets of pixels to check: asked for, or the only ones that fit the layout; '' without any."""
        from sslbench.data.open import kind_alone

        if self.pixel_values or self.label_maps:
            return self.pixel_values or "map"
        columns = self.label_column or self.image_column
        if self.boxes or columns or self.store:
            return ""
        kind = kind_alone(self.data)
        name = "" if kind is None else kind.name
        near = self.near_copies not in (None, "none")
        of_images = self.label_maps is False or self.test_data or self.pairs or near
        return "" if name == "map" and of_images else name

    def look_for_copies(self, images: int) -> bool:
        """Return whether files of equal content are looked for."""
        return images <= HASHED if self.copies is None else self.copies


_OF_MAPS = (*("label_maps", "decode", "copies", "csv", "sheet", "html", "as_json", "workers", "max_pixels", "decoder"),)
"""Flags that a check of label maps uses."""


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
    "--pairs",
    type=LocalPath(),
    help="CSV file to write suspected leaks to: images of test and their matches in train.",
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
    check_flags = CheckFlags(**flags)
    if check_flags.pixel_values:
        _refuse_beside_values(ctx, check_flags.pixel_values)
    elif check_flags.label_maps:
        _refuse_beside_maps(ctx, check_flags)
    check_decoder(check_flags.decoders())
    if not 0 < check_flags.test_fraction < 1:
        raise UsageError(f"--test-fraction should lie between 0 and 1, not {check_flags.test_fraction:g}")
    if not (check_flags.boxes or check_flags.label_maps or check_flags.pixel_values):  # they refuse other flags first
        early.refuse_mistyped(data=(check_flags.data, check_flags.test_data))
    kind = check_flags.kind_of_pixels()
    if kind in ("depth", "normals"):
        _refuse_beside_values(ctx, kind)
        ctx.exit(_check_values(check_flags, "depth" if kind == "depth" else "normals"))
    if kind == "map":
        _refuse_beside_maps(ctx, check_flags)
        ctx.exit(_check_maps(check_flags))
    if check_flags.boxes:
        columns = {"image_column", "label_column"}
        options.refuse(ctx, used=set(flags) - columns, what="--boxes: objects have no columns")
    try:
        checked = _check(ctx, check_flags)
    except DataError as error:
        if not check_flags.as_json:
            raise
        echo(report.failed(check_flags.data, str(error)))
        ctx.exit(1)
    report.write_files(
        checked, csv=check_flags.csv, sheet=check_flags.sheet, html=check_flags.html, pairs=check_flags.pairs
    )
    if check_flags.as_json:
        echo(report.as_json(checked))
    else:
        report.show(checked, pairs=check_flags.pairs)
        for file in filter(None, (check_flags.csv, check_flags.sheet, check_flags.html, check_flags.pairs)):
            echo(f"written: {file}")
    ctx.exit(report.exit_code(checked.findings))


def _refuse_beside_values(ctx: click.Context, quantity: str) -> None:
    options.refuse(ctx, used=("pixel_values", "decode"), what=f"values of pixels ({quantity})")


def _check_values(given: CheckFlags, quantity: Literal["depth", "normals"]) -> int:
    """Check depth or normals, print the report and return the exit code."""
    from sslbench.data.checks.pixel_values import check_values
    from sslbench.data.open import open_as

    parts = open_as(given.data, Depth if quantity == "depth" else Normals)
    found = check_values(parts, quantity, given.decode)
    for line in found.lines:
        echo(line)
    report.show_findings(found.findings)
    return report.exit_code(found.findings)


def _refuse_beside_maps(ctx: click.Context, given: CheckFlags) -> None:
    used = (*_OF_MAPS, "near_copies") if given.near_copies == "none" else _OF_MAPS
    options.refuse(ctx, used=used, what="label maps")


def _check_maps(given: CheckFlags) -> int:
    """Check label maps, print the report and return the exit code."""
    from sslbench.data.checks.maps import check_maps
    from sslbench.data.open import open_as

    reading, workers = _reading(given)
    try:
        parts = open_as(given.data, LabelMaps)
        copies = given.look_for_copies(sum(map(len, parts.values())))
        found = check_maps(given.data, parts, copies=copies, read=given.decode, workers=workers, reading=reading)
    except DataError as error:
        if not given.as_json:
            raise
        echo(report.failed(given.data, str(error)))
        return 1
    map_report.write_files(found, csv=given.csv, sheet=given.sheet, html=given.html)
    if given.as_json:
        echo(map_report.as_json(found))
    else:
        map_report.show(found)
    return report.exit_code(found.findings)


def _reading(given: CheckFlags) -> tuple["Reading", int]:
    """Return the decoders with their limit, and the number of worker processes."""
    from sslbench.data.decode.handlers import Reading, resolve

    names = given.decoders()
    resolve(names)
    workers = default_workers() if given.workers is None else given.workers
    return Reading(names, given.max_pixels or MAX_PIXELS), workers


def _check(ctx: click.Context, given: CheckFlags) -> "CheckedParts":
    """Check images or boxes."""
    from sslbench.data.checks.parts import check_parts

    reading, workers = _reading(given)
    opened = _open(given)
    images = len(opened.data.train) + len(opened.data.test)
    search = given.search(images)
    used = {str(parameter.name) for parameter in ctx.command.params}
    if search != "features":
        options.refuse(ctx, used=used - {"store"}, what=f"--near-copies {search}")
    if search == "none":
        options.refuse(ctx, used=used - {"near_threshold"}, what="--near-copies none")
    if not opened.data.seeded:
        options.refuse(ctx, used=used - {"seed", "test_fraction"}, what=f"data with a test split: {opened.data.how}")
    copies = given.look_for_copies(images)
    found = check_parts(opened, copies=copies, decode=given.decode, workers=workers, reading=reading)
    return found.with_near(*_near(search, given, opened.data, workers=workers, reading=reading))


def _open(given: CheckFlags) -> "OpenedParts":
    from sslbench.data.checks.parts import open_parts, open_with_boxes

    if given.boxes:
        return open_with_boxes(given.data, given.test_data, seed=given.seed, test_fraction=given.test_fraction)
    return open_parts(
        given.data,
        given.test_data,
        seed=given.seed,
        test_fraction=given.test_fraction,
        image_column=given.image_column,
        label_column=given.label_column,
    )


def _near(
    search: str, given: CheckFlags, data: "TrainTest", *, workers: int, reading: "Reading"
) -> tuple[list["Finding"], tuple["Pair", ...]]:
    """Return findings about nearly equal images, and the pairs of images of test and train."""
    from sslbench.data.checks.duplicates import near_copies, small_pictures
    from sslbench.data.checks.near import THRESHOLD
    from sslbench.features.store import find_stored

    threshold = THRESHOLD if given.near_threshold is None else given.near_threshold
    if search == "none" or not len(data.train) or not len(data.test):
        n = len(data.train) + len(data.test)
        message = f"near duplicates were not searched: {n:,} images would be decoded (--near-copies pixels)"
        unasked = search == "none" and given.near_copies is None
        return [Finding("note", message)] if unasked else [], ()
    if search == "pixels":
        train, test = (small_pictures(part, workers=workers, reading=reading) for part in (data.train, data.test))
        return near_copies(data.train, data.test, (train, test), threshold=threshold, by="16 x 16 pixels")
    root = options.store_folder(given.store)
    stored = find_stored(root, data)
    if stored is None:
        raise UsageError(
            f"{root} has no features of all images of {data.train.name} and {data.test.name}",
            "Make them with sslbench extract or eval on the same data, or compare pixels: --near-copies pixels.",
        )
    vectors = (stored.train, stored.test)
    return near_copies(data.train, data.test, vectors, threshold=threshold, by=stored.made_by)
