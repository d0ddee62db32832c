"""Flags of `sslbench check-data`."""

import dataclasses
from pathlib import Path
from typing import Literal

import click

from sslbench.cli.flags import flag, same, split_names
from sslbench.cli.options import DataFlags

HASHED = 100_000
"""Largest number of images that are searched for copies by default: every file has to be read once."""

DECODED = 2_000
"""Largest number of images that are searched for near copies by default: every image has to be decoded."""


def _number_to_decode(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Return the number of images to decode; None for all."""
    if value == "all":
        return None
    if not value.isdecimal():
        raise click.BadParameter(f"'{value}' should be 'all' or a number of images per split")
    return int(value)


@dataclasses.dataclass(frozen=True)
class CheckFlags:
    """Data and flags of `sslbench check-data`."""

    data: str
    test_data: str | None = flag("Test split. Default: found in DATA, or split off.")
    image_column: str | None = same(DataFlags, "image_column")
    label_column: str | None = same(DataFlags, "label_column")
    test_fraction: float = flag("Share of test, where DATA has no test split.", default=0.2, show_default=True)
    seed: int = flag("Seed of that split.", default=0, within="[0, 4294967295]", show_default=True)
    boxes: bool = flag("Check the boxes and masks of objects, as for detection.", default=False)
    label_maps: bool | None = flag(
        "Check label maps: ADE20K, COCO panoptic, Cityscapes, VOC segmentation, images/ with masks/. Default: if the "
        "layout allows nothing else.",
        "--label-maps/--no-label-maps",
    )
    pixel_values: Literal["depth", "normals"] | None = flag(
        "Check the depth or the surface normals of every pixel. Default: if DATA has images/ and depth/ or normals/."
    )
    decode: int | None = flag(
        "Number of images to decode per split, evenly spaced, or all; unreadable ones are listed.",
        default="100",
        type=str,
        metavar="all|N",
        callback=_number_to_decode,
        is_flag=False,
        flag_value="all",
        show_default=True,
    )
    copies: bool | None = flag(
        f"Look for images of equal content; reads every file once. Default: up to {HASHED:,} images.",
        "--copies/--no-copies",
    )
    near_copies: Literal["pixels", "features", "none"] | None = flag(
        "Look for nearly equal images by 16 x 16 pixels (decodes all) or by stored features. "
        f"Default: pixels, up to {DECODED:,} images."
    )
    store: str | None = flag("Folder of the feature store, for --near-copies features and --label-errors.")
    near_threshold: float | None = flag(
        "Smallest cosine similarity of nearly equal images, on whitened pixels or features. Default: 0.85.",
        within="[0, 1]",
    )
    pairs: Path | None = flag("CSV file to write suspected leaks to: images of test and their matches in train.")
    label_errors: Path | None = flag(
        "CSV file to write images to whose label is probably wrong, by stored features; the first ones are drawn in a "
        "PNG file beside it."
    )
    csv: Path | None = flag("CSV file to write the images per class to.")
    sheet: Path | None = flag("PNG file with example images of every class.")
    html: Path | None = flag("HTML page with findings, counts and example images.")
    as_json: bool = flag("Print everything as JSON.", "--json", default=False)
    workers: int | None = flag("Processes that decode images.", within="[0, inf)")
    max_pixels: int | None = flag("Largest allowed picture, in pixels. Default: 178956970.", within="[1, inf)")
    decoder: tuple[str, ...] = flag(
        "Decoder of your own: my_module.my_function; several with commas. none: nothing is decoded.",
        multiple=False,
        callback=split_names,
    )

    def search(self, images: int) -> str:
        """Return the way near copies are found: 'pixels', 'features' or 'none'."""
        return self.near_copies or ("features" if self.store else "pixels" if images <= DECODED else "none")

    def look_for_copies(self, images: int) -> bool:
        """Return whether files of equal content are looked for."""
        return images <= HASHED if self.copies is None else self.copies
