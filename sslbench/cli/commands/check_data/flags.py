"""Flags of `sslbench check-data`."""

import dataclasses
from pathlib import Path
from typing import Literal

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
    decoder: tuple[str, ...]

    def search(self, images: int) -> str:
        """Return the way near copies are found: 'pixels', 'features' or 'none'."""
        return self.near_copies or ("features" if self.store else "pixels" if images <= DECODED else "none")

    def look_for_copies(self, images: int) -> bool:
        """Return whether files of equal content are looked for."""
        return images <= HASHED if self.copies is None else self.copies
