"""Images at the sizes that dense protocols ask for, and their maps of features and of pixels."""

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch.nn import functional

from sslbench.arrays import FloatArray
from sslbench.backbones.dense import DenseEncoder
from sslbench.data.decode.handlers import picture_decoder
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.decode.transforms import normalise, resize_and_crop
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.images import unreadable_images
from sslbench.protocols._parts.untrained import Shape

# Beginning of the names of maps of pixels.
PIXELS = "pixels"
# Pixels of a cell of such maps, in each direction.
_SIDE = 8


@dataclasses.dataclass(frozen=True)
class Fitted:
    """Place of an image in the network's input; heights before widths.

    Attributes:
        original: size of the upright image in pixels.
        size: size of the resized image.
        offset: its upper left corner in the input.
        canvas: size of the input.
    """

    original: tuple[int, int]
    size: tuple[int, int]
    offset: tuple[int, int]
    canvas: tuple[int, int]

    def to_cells(self, points: FloatArray, grid: tuple[int, int]) -> FloatArray:
        """Return points (K, 2) in pixels of the image as positions on the grid of a map; see `from_cells`.

        `points`: x, y; (0, 0) is the centre of the first pixel.
        """
        # Sizes are scaled from edge to edge, and the centre of the first pixel lies half a pixel from the edge.
        place = (points + 0.5) * _xy(self.size) / _xy(self.original) + _xy(self.offset)
        return np.asarray(place * _xy(grid) / _xy(self.canvas) - 0.5)

    def from_cells(self, positions: FloatArray, grid: tuple[int, int]) -> FloatArray:
        """Return positions (K, 2) on the grid of a map, columns and rows, as pixels of the image.

        >>> place = Fitted((200, 100), (448, 224), (0, 0), (448, 224))
        >>> place.from_cells(np.array([[0.0, 0.0]]), (28, 14)).round(2).tolist()  # the centre of the first cell
        [[3.07, 3.07]]
        """
        place = (positions + 0.5) * _xy(self.canvas) / _xy(grid) - _xy(self.offset)
        return np.asarray(place * _xy(self.original) / _xy(self.size) - 0.5)

    def centres(self, grid: tuple[int, int]) -> FloatArray:
        """Return the centres (h * w, 2) of the cells in pixels of the image, row by row."""
        rows, columns = np.mgrid[: grid[0], : grid[1]]
        return self.from_cells(np.column_stack([columns.ravel(), rows.ravel()]).astype(np.float64), grid)


def _xy(size: tuple[int, int]) -> FloatArray:
    return np.array(size[::-1], dtype=np.float64)


def fit(original: tuple[int, int], size: int, shape: Shape, multiple: int) -> Fitted:
    """Return the place of an image in an input whose sides are multiples of a patch.

    `size`: longer side of the input in pixels; rounded to the nearest multiple.

    >>> fit((300, 400), 448, "aspect", 14).canvas, fit((300, 400), 448, "pad", 14).offset
    ((336, 448), (56, 0))
    """
    side = max(multiple, round(size / multiple) * multiple)
    if shape == "square":
        return Fitted(original, (side, side), (0, 0), (side, side))
    scale = side / max(original)
    if shape == "aspect":
        height, width = (max(multiple, round(length * scale / multiple) * multiple) for length in original)
        return Fitted(original, (height, width), (0, 0), (height, width))
    inner = max(1, round(original[0] * scale)), max(1, round(original[1] * scale))
    offset = (side - inner[0]) // 2, (side - inner[1]) // 2
    return Fitted(original, inner, offset, (side, side))


def pictures(
    source: Source, rows: Sequence[int], preprocessing: Preprocessing, engine: ExtractSettings
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield rows of `source.every_image()` and their pictures (C, H, W), uint8 or float32 from 0 to 255.

    A few threads decode ahead of the caller.
    """
    every = source.every_image()
    whole = dataclasses.replace(preprocessing, resize=None, squash=None, crop=None)
    decoder = picture_decoder(whole, every.images)

    def read(row: int) -> torch.Tensor:
        return loader.read(every.images, row, decoder).image

    with ThreadPoolExecutor(max(1, engine.workers)) as pool:
        waiting = iter(rows)
        # Two for each thread: a pool with all rows at once would hold every decoded picture.
        running = deque((row, pool.submit(read, row)) for row in itertools.islice(waiting, 2 * max(1, engine.workers)))
        try:
            while running:
                row, future = running.popleft()
                picture = future.result()
                if (following := next(waiting, None)) is not None:
                    running.append((following, pool.submit(read, following)))
                yield row, picture
        except UnreadableImage as error:
            raise unreadable_images(every, preprocessing, engine) from error


def network_input(picture: torch.Tensor, fitted: Fitted, preprocessing: Preprocessing) -> torch.Tensor:
    """Return a picture (C, H, W) as the network's input, (1, C, canvas height, canvas width)."""
    resized = resize_and_crop(picture, dataclasses.replace(preprocessing, resize=fitted.size, squash=None, crop=None))
    if fitted.size != fitted.canvas:
        top, left = fitted.offset
        bottom = fitted.canvas[0] - fitted.size[0] - top
        right = fitted.canvas[1] - fitted.size[1] - left
        # Before the normalisation: the borders are black pixels.
        resized = functional.pad(resized, (left, right, top, bottom))
    return normalise(resized[None], preprocessing)


def maps_and_pixels(encoder: DenseEncoder, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the maps (B, D, h, w) of the encoder's inputs, and of the pixels on each of their grids.

    A map of pixels is called 'pixels NAME' after the first input with that grid, see `pixel_floors`.

    `images`: (B, C, H, W), normalised.
    """
    maps = encoder(images)
    grids: dict[tuple[int, ...], str] = {}
    for name, value in maps.items():
        grids.setdefault(tuple(value.shape[2:]), name)
    return maps | {f"{PIXELS} {name}": pixel_map(images, (grid[0], grid[1])) for grid, name in grids.items()}


def pixel_map(images: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Return the pixels of each cell as its features, (B, 64 * C, h, w): 8 x 8 means of areas.

    `images`: (B, C, H, W).
    """
    height, width = grid
    small = functional.interpolate(images.float(), (height * _SIDE, width * _SIDE), mode="area")
    return functional.pixel_unshuffle(small, _SIDE)


def pixel_floors(grids: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Return the name of an input -> that of the map of pixels on its grid."""
    first: dict[tuple[int, int], str] = {}
    return {name: f"{PIXELS} {first.setdefault(grid, name)}" for name, grid in grids.items()}
