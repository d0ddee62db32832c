"""Search for one object per image in the maps of a frozen network."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from sslbench.protocols._parts.untrained import MapRun, SearchSettings
from sslbench.protocols.protocol import Cost, Part, Shapes

if TYPE_CHECKING:
    from PIL import Image

    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.dense import DenseInput
    from sslbench.backbones.layers import Layer


# Colours of truth (green) and prediction (red).
TRUE, FOUND = (20, 150, 60), (230, 30, 30)

T = TypeVar("T", bound=SearchSettings)


class ObjectSearch(MapRun[T]):
    """Run that searches an object in every image."""

    @classmethod
    def maps(
        cls, backbone: "Backbone", layers: "Sequence[Layer]", settings: T
    ) -> "Mapping[str, tuple[DenseInput, ...]]":
        """Return the rows of results, 'blocks.11@key', with the maps of each; see `objects.searched_maps`."""
        from sslbench.protocols._parts.objects import searched_maps

        return {each.name: each.inputs for each in searched_maps(backbone, layers, settings)}

    @classmethod
    def part(cls, settings: T) -> Part:
        """Return the part of the data that is searched."""
        return settings.part


def cost(settings: SearchSettings, shapes: Shapes) -> Cost:
    """Return one pass per image."""
    return Cost(images=shapes.test, rest="the search for regions in the maps")


def with_boxes(picture: "Image.Image", boxes: npt.ArrayLike, colour: tuple[int, int, int], factor: float) -> None:
    """Draw boxes (n, 4) of the original image on a picture that is smaller or larger by `factor`."""
    from PIL import ImageDraw

    pen = ImageDraw.Draw(picture)
    for box in np.asarray(boxes, dtype=np.float64).reshape(-1, 4).tolist():
        left, top, right, bottom = (value * factor for value in box)
        # Pillow draws the last row and column too, and refuses a box that ends before it begins.
        pen.rectangle((left, top, max(right - 1, left), max(bottom - 1, top)), outline=colour, width=2)


def with_heat(picture: "Image.Image", heat: npt.NDArray[np.floating], colour: tuple[int, int, int]) -> "Image.Image":
    """Return a picture with values (h, w) from 0 to 1 in its centre as a colour of that strength."""
    from PIL import Image

    cover = Image.new("L", picture.size)
    height, width = heat.shape
    strength = Image.fromarray((200 * heat).clip(0, 200).astype(np.uint8))
    cover.paste(strength, ((picture.width - width) // 2, (picture.height - height) // 2))
    return Image.composite(Image.new("RGB", picture.size, colour), picture, cover)


def with_mask(picture: "Image.Image", mask: npt.NDArray[np.bool_], colour: tuple[int, int, int]) -> "Image.Image":
    """Return a picture with a coloured mask (H, W) of the original image over it."""
    from PIL import Image

    small = Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST)
    tinted = Image.blend(picture, Image.new("RGB", picture.size, colour), 0.5)
    return Image.composite(tinted, picture, small)
