"""`sslbench check-data`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli import check_data_report

if TYPE_CHECKING:
    from sslbench.data.checked import Checked

HASHED = 100_000
"""Up to so many images, equal ones are looked for unasked: every file has to be read once."""

NEAR = {"pixels": 0.985, "features": 0.95}
"""Cosine of the centred vectors from which on two images count as nearly the same."""


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
    type=click.Choice(["pixels", "features"]),
    help="Look for images that are nearly the same: by 16 x 16 pixels (all are decoded), or by stored features.",
)
@click.option("--store", help="Folder of the feature store; with it, --near-copies features.")
@click.option(
    "--near-threshold",
    type=click.FloatRange(0, 1),
    help=f"Cosine from which on they are. Default: {NEAR['pixels']} for pixels, {NEAR['features']} for features.",
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
    all decoded:     --decode all, --near-copies pixels
    """  # noqa: D301
    from sslbench.cli import terminal
    from sslbench.errors import DataError

    terminal.show_messages()
    try:
        checked = _checked(given)
    except DataError as error:
        if not given["as_json"]:
            raise
        click.echo(check_data_report.failed(given["data"], str(error)))
        ctx.exit(1)
    check_data_report.write_files(checked, csv=given["csv"], sheet=given["sheet"], html=given["html"])
    if given["as_json"]:
        click.echo(check_data_report.as_json(checked))
    else:
        check_data_report.show(checked)
    ctx.exit(1 if any(finding.level == "error" for finding in checked.findings) else 0)


def _checked(given: dict[str, Any]) -> "Checked":
    from sslbench.data import checked, loader
    from sslbench.data.decoder import Reading, resolve
    from sslbench.preprocessing import MAX_PIXELS

    names = tuple(name.strip() for name in given["decoder"].split(",")) if given["decoder"] else ()
    resolve(names)
    reading = Reading(names, given["max_pixels"] or MAX_PIXELS)
    workers = loader.default_workers() if given["workers"] is None else given["workers"]
    opened = _opened(given)
    n = len(opened.data.train) + len(opened.data.test)
    copies = n <= HASHED if given["copies"] is None else given["copies"]
    found = checked.check_parts(opened, copies=copies, decode=given["decode"], workers=workers, reading=reading)
    if near := given["near_copies"] or ("features" if given["store"] else None):
        more = _near(near, given, opened.data, workers=workers, reading=reading)
        found = found.with_findings(more)
    return found


def _opened(given: dict[str, Any]) -> Any:
    from sslbench.data import checked

    split = {key: given[key] for key in ("seed", "test_fraction")}
    if given["boxes"]:
        return checked.open_with_boxes(given["data"], given["test_data"], **split)
    columns = {key: given[key] for key in ("image_column", "label_column")}
    return checked.open_parts(given["data"], given["test_data"], **split, **columns)


def _near(by: str, given: dict[str, Any], data: Any, *, workers: int, reading: Any) -> list[Any]:
    from sslbench.cli.flags import store_folder
    from sslbench.data.duplicates import near_copies, small_pictures
    from sslbench.errors import UsageError
    from sslbench.features.stored import find_stored

    threshold = NEAR[by] if given["near_threshold"] is None else given["near_threshold"]
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
