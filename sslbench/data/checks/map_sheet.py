"""Images overlaid with their coloured label maps, for visual inspection."""

import colorsys

import numpy as np
import numpy.typing as npt
from PIL import Image

from sslbench.data.checks.maps import CheckedMaps
from sslbench.data.checks.sheets import Thumbnail
from sslbench.data.decode.handlers import make_decoder
from sslbench.data.decode.picture import UnreadableImage, Wanted
from sslbench.data.loading import loader
from sslbench.data.maps.types import CodedMaps
from sslbench.targets.label_maps import UNKNOWN

_OPACITY = 0.55
_SWATCH = 14
_IGNORED, _UNKNOWN = (255, 255, 255), (0, 0, 0)
_GOLDEN = 0.618033988749895


def class_colours(n: int) -> npt.NDArray[np.uint8]:
    """Return n distinct, deterministic colours, uint8 (n, 3): hues by the golden ratio, in three brightnesses."""
    rows = [colorsys.hsv_to_rgb(i * _GOLDEN % 1, 0.9 - 0.2 * (i % 2), (0.95, 0.6, 0.8)[i % 3]) for i in range(n)]
    return np.round(255 * np.array(rows).reshape(n, 3)).astype(np.uint8)


def overlays(
    checked: CheckedMaps, split: str, *, classes: int, each: int, side: int = 128, seed: int = 0
) -> dict[str, list[Thumbnail]]:
    """Return for each class its colour, and images beside their overlaid maps.

    White pixels are ignored ones, black pixels have values of no class.

    Args:
        checked: result of the check; the images are those whose maps were read.
        split: name of the split.
        classes: maximum number of classes; those with most pixels are shown.
        each: maximum number of images per class.
        side: longer side of an image in pixels.
        seed: of the choice of images.
    """
    part, present = checked.parts[split], checked.present[split]
    rng, colours = np.random.default_rng(seed), class_colours(len(part.classes))
    order = np.argsort(-checked.counts[split].pixels, kind="stable").tolist()[:classes]
    made: dict[int, Thumbnail | None] = {}
    found: dict[str, list[Thumbnail]] = {}
    for c in sorted(order):
        rows = [index for index, there in present.items() if c in there]
        chosen = sorted(rng.permutation(np.array(rows, dtype=np.int64))[:each].tolist())
        for row in chosen:
            if row not in made:
                made[row] = _overlay(checked, part, row, colours, side)
        swatch = Image.new("RGB", (_SWATCH, side // 2), tuple(colours[c].tolist()))
        pictures = [thumbnail for row in chosen if (thumbnail := made[row]) is not None]
        found[part.classes[c]] = [Thumbnail(swatch, "", "its colour"), *pictures] if pictures else []
    return found


def _overlay(
    checked: CheckedMaps, part: CodedMaps, row: int, colours: npt.NDArray[np.uint8], side: int
) -> Thumbnail | None:
    reading = checked.reading
    decoder = make_decoder(reading.decoder, Wanted(max_pixels=reading.max_pixels), part.images)
    try:
        image = loader.read(part.images, row, decoder).image
        raw = part.maps.read(row, reading.max_pixels)
    except UnreadableImage:
        return None
    picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
    factor = side / max(picture.size)
    size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
    small = picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
    places = part.coding.positions(raw.values)
    at_y, at_x = (
        np.minimum((np.arange(n) + 0.5) * m / n, m - 1).astype(int)
        for n, m in zip(size[::-1], places.shape, strict=True)
    )
    places = places[at_y][:, at_x]
    table = np.array([_UNKNOWN, _IGNORED, *colours.tolist()], dtype=np.float32)
    drawn = (1 - _OPACITY) * np.asarray(small, dtype=np.float32) + _OPACITY * table[places - UNKNOWN]
    both = Image.new("RGB", (2 * size[0], size[1]))
    both.paste(small, (0, 0))
    both.paste(Image.fromarray(drawn.round().astype(np.uint8)), (size[0], 0))
    names = [part.classes[c] for c in np.unique(places[places >= 0]).tolist()]
    return Thumbnail(both, part.images.path(row), ", ".join(names))
