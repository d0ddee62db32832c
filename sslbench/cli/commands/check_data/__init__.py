"""`sslbench check-data`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli.commands.check_data import report
from sslbench.cli.echo import echo

if TYPE_CHECKING:
    from sslbench.data.checks.findings import Finding
    from sslbench.data.checks.near import Pair
    from sslbench.data.checks.parts import Checked

HASHED = 100_000
"""Up to so many images, equal ones are looked for unasked: every file has to be read once."""

DECODED = 2_000
"""Up to so many images, nearly equal ones are looked for unasked: every image has to be decoded."""


def _how_many(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Images to decode; None for all."""
    if value == "all":
        return None
    if not value.isdecimal():
        raise click.BadParameter(f"'{value}' should be 'all' or how many images of each part are decoded")
    return int(value)


@click.command("check-data")
@click.argument("data")
@click.option("--test-data", help="The test part, when it lies elsewhere.")
@click.option("--image-col", "image_column", help="Column of a table that holds the image paths.")
@click.option("--label-col", "label_column", help="Column of a table that holds the labels.")
@click.option("--test-fraction", type=float, default=0.2, show_default=True, help="If there is no test part.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the split, if there is no test part.")
@click.option("--boxes", is_flag=True, help="Check the boxes of a manifest or VOC tree, as detection takes them.")
@click.option(
    "--label-maps/--no-label-maps",
    default=None,
    help="Check a class for every pixel: ADE20K, COCO panoptic, Cityscapes, VOC segmentation, images/ with masks/. "
    "Default: where the layout can be nothing else.",
)
@click.option(
    "--decode",
    metavar="all|N",
    callback=_how_many,
    is_flag=False,
    flag_value="all",
    default="100",
    show_default=True,
    help="Decode so many images of each part, spread over it, or all, and list those that cannot be read.",
)
@click.option(
    "--copies/--no-copies",
    default=None,
    help=f"Look for images of equal content; every file is read once. Default: up to {HASHED:,} images.",
)
@click.option(
    "--near-copies",
    type=click.Choice(["pixels", "features", "none"]),
    help="Look for images that are nearly the same: by 16 x 16 pixels (all are decoded), or by stored features. "
    f"Default: pixels, up to {DECODED:,} images.",
)
@click.option("--store", help="Folder of the feature store; with it, --near-copies features.")
@click.option(
    "--near-threshold",
    type=click.FloatRange(0, 1),
    help="Cosine of their whitened pixels or features from which on they may be. Default: 0.85.",
)
@click.option(
    "--pairs",
    type=click.Path(path_type=Path),
    help="Write the images of test that are suspected to be in train too to this CSV, with what they look like there.",
)
@click.option("--csv", type=click.Path(path_type=Path), help="Write images per class to this file.")
@click.option("--sheet", type=click.Path(path_type=Path), help="Write a PNG with some pictures of every class.")
@click.option(
    "--html", type=click.Path(path_type=Path), help="Write a page: findings, counts, pictures of every class."
)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.option("--workers", type=click.IntRange(0), help="Processes that decode.")
@click.option("--max-pixels", type=click.IntRange(1), help="Larger pictures are errors. Default: 178956970.")
@click.option("--decoder", help="A function of yours that decodes: my_module.my_function; several with commas.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Check DATA as `eval` would before it starts: splits, classes, copies, leaks from train to test, broken images.

    Exit code 0: no error; 1: there are errors; 2: wrong usage. Nothing is changed.

    \b
    seconds, always: classes and labels, hidden and flat folders, 100 images of each part decoded
    files read once: images of equal content (more than 100,000 images: --copies)
    all decoded:     images that are nearly the same (more than 2,000: --near-copies pixels), --decode all
    """  # noqa: D301
    from sslbench.cli import terminal
    from sslbench.errors import DataError

    terminal.show_messages()
    if _wants_maps(given):
        ctx.exit(_check_maps(given))
    try:
        checked = _checked(given)
    except DataError as error:
        if not given["as_json"]:
            raise
        echo(report.failed(given["data"], str(error)))
        ctx.exit(1)
    report.write_files(checked, csv=given["csv"], sheet=given["sheet"], html=given["html"], pairs=given["pairs"])
    if given["as_json"]:
        echo(report.as_json(checked))
    else:
        report.show(checked)
    ctx.exit(1 if any(finding.level == "error" for finding in checked.findings) else 0)


def _wants_maps(given: dict[str, Any]) -> bool:
    """Whether label maps are checked: asked for, or the data can be nothing else."""
    from sslbench.data.open import are_label_maps
    from sslbench.errors import UsageError

    others = {"--boxes": given["boxes"], "--label-col": given["label_column"], "--image-col": given["image_column"]}
    others |= {"--test-data": given["test_data"], "--store": given["store"], "--pairs": given["pairs"]}
    others |= {"--near-copies": given["near_copies"] not in (None, "none")}
    named = [flag for flag, value in others.items() if value]
    if given["label_maps"] and named:
        raise UsageError(f"--label-maps and {named[0]} do not go together", "All splits of DATA are checked.")
    return bool(given["label_maps"]) or (given["label_maps"] is None and not named and are_label_maps(given["data"]))


def _check_maps(given: dict[str, Any]) -> int:
    """Checks label maps; the exit code."""
    from sslbench.cli.commands.check_data import maps as check_maps_report
    from sslbench.data.checks import maps as map_checks
    from sslbench.data.open import open_label_maps
    from sslbench.errors import DataError

    reading, workers = _reading(given)
    try:
        parts = open_label_maps(given["data"])
        copies = sum(map(len, parts.values())) <= HASHED if given["copies"] is None else given["copies"]
        found = map_checks.check_maps(
            given["data"], parts, copies=copies, read=given["decode"], workers=workers, reading=reading
        )
    except DataError as error:
        if not given["as_json"]:
            raise
        echo(report.failed(given["data"], str(error)))
        return 1
    check_maps_report.write_files(found, csv=given["csv"], sheet=given["sheet"], html=given["html"])
    if given["as_json"]:
        echo(check_maps_report.as_json(found))
    else:
        check_maps_report.show(found)
    return 1 if any(finding.level == "error" for finding in found.findings) else 0


def _reading(given: dict[str, Any]) -> tuple[Any, int]:
    """How pictures are read, and by how many processes."""
    from sslbench.data.decode.handlers import Reading, resolve
    from sslbench.preprocessing import MAX_PIXELS
    from sslbench.runtime.workers import default_workers

    names = tuple(name.strip() for name in given["decoder"].split(",")) if given["decoder"] else ()
    resolve(names)
    workers = default_workers() if given["workers"] is None else given["workers"]
    return Reading(names, given["max_pixels"] or MAX_PIXELS), workers


def _checked(given: dict[str, Any]) -> "Checked":
    from sslbench.data.checks import parts as checked

    reading, workers = _reading(given)
    opened = _opened(given)
    n = len(opened.data.train) + len(opened.data.test)
    copies = n <= HASHED if given["copies"] is None else given["copies"]
    found = checked.check_parts(opened, copies=copies, decode=given["decode"], workers=workers, reading=reading)
    near = given["near_copies"] or ("features" if given["store"] else "pixels" if n <= DECODED else "none")
    return found.with_near(*_near(near, given, opened.data, workers=workers, reading=reading))


def _opened(given: dict[str, Any]) -> Any:
    from sslbench.data.checks import parts as checked

    split = {key: given[key] for key in ("seed", "test_fraction")}
    if given["boxes"]:
        return checked.open_with_boxes(given["data"], given["test_data"], **split)
    columns = {key: given[key] for key in ("image_column", "label_column")}
    return checked.open_parts(given["data"], given["test_data"], **split, **columns)


def _near(
    by: str, given: dict[str, Any], data: Any, *, workers: int, reading: Any
) -> tuple[list["Finding"], tuple["Pair", ...]]:
    """What is said about images that are nearly the same, and those of test that are nearly the same in train."""
    from sslbench.cli.options import store_folder
    from sslbench.data.checks.duplicates import near_copies, small_pictures
    from sslbench.data.checks.findings import Finding
    from sslbench.data.checks.near import THRESHOLD
    from sslbench.errors import UsageError
    from sslbench.features.store import find_stored

    threshold = THRESHOLD if given["near_threshold"] is None else given["near_threshold"]
    if by == "none" or not len(data.train) or not len(data.test):
        asked = given["near_copies"] == "none"
        n = len(data.train) + len(data.test)
        message = f"images that are nearly the same were not looked for: {n:,} would be decoded (--near-copies pixels)"
        return [] if asked or by != "none" else [Finding("note", message)], ()
    if by == "pixels":
        train, test = (small_pictures(part, workers=workers, reading=reading) for part in (data.train, data.test))
        return near_copies(data.train, data.test, (train, test), threshold=threshold, by="16 x 16 pixels")
    root = store_folder(given["store"])
    stored = find_stored(root, data)
    if stored is None:
        raise UsageError(
            f"{root} has no features of all images of {data.train.name} and {data.test.name}",
            "Make them with sslbench extract or eval on the same data, or compare pixels: --near-copies pixels.",
        )
    vectors = (stored.train, stored.test)
    return near_copies(data.train, data.test, vectors, threshold=threshold, by=stored.made_by)
