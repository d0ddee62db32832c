"""Tiles: large images cut along a grid, every tile a sample with the labels of its image (`?unit=tile&size=224`).

Tiles are not combined: each is predicted and scored by itself. They belong to the group of their image, so seeded
splits and folds keep the tiles of an image together, and intervals draw whole images.
"""

import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sslbench import config
from sslbench.data.location import TileOptions
from sslbench.data.maps.types import size_and_turn
from sslbench.data.objects.crops import IMAGE, Crops
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.errors import UsageError
from sslbench.targets.classes import Classes

_THREADS = 8  # that read the heads of files
_MOST = 10**7  # tiles of a source: each takes about a kilobyte


def split_options(spec: str, options: Mapping[str, str]) -> tuple[TileOptions | None, dict[str, str]]:
    """Return the options of the tiles, None if images stay whole; and those that are left for the format.

    >>> split_options("photos/", {"unit": "tile", "size": "96", "group": "patient"})
    (TileOptions(unit='tile', size=96, overlap=0), {'group': 'patient'})
    """
    if options.get("unit") != "tile":
        return None, dict(options)
    names = {field.name for field in dataclasses.fields(TileOptions)}
    own = {key: int(text) if text.isdecimal() else text for key, text in options.items() if key in names}
    rest = {key: text for key, text in options.items() if key not in names}
    return config.build(TileOptions, own, f"the options of {spec}"), rest


def starts(length: int, options: TileOptions) -> list[int]:
    """Return the first pixels of the tiles along one side of an image; the last tile ends with the image.

    >>> starts(500, TileOptions(size=224, overlap=32)), starts(100, TileOptions(size=224))
    ([0, 192, 276], [0])
    """
    last = max(0, length - options.size)
    return [*range(0, last, options.size - options.overlap), last]


def _number(length: int, options: TileOptions) -> int:
    """Return the number of tiles along a side, without listing them."""
    return 1 + -(-max(0, length - options.size) // (options.size - options.overlap))


def tiles_of(source: Source, options: TileOptions) -> Source:
    """Return the tiles of all images. The id of a tile is its image's and its number, row by row from the top left.

    An image that is smaller than a tile on a side is not enlarged: its tiles are as short as it is.
    """
    if isinstance(source.target, Classes) and source.target.queries is not None:
        raise UsageError(f"{source.name}: queries of a retrieval data set are whole images", "Leave out unit=tile.")
    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = list(pool.map(lambda row: size_and_turn(source.images, row)[0], range(len(source))))
    number = sum(_number(size[0], options) * _number(size[1], options) for size in sizes if size is not None)
    if number > _MOST:
        raise UsageError(
            f"{source.name}: {number:,} tiles of {options.size} x {options.size} pixels are more than {_MOST:,}",
            "Give a larger size, or a smaller overlap.",
        )
    found: list[tuple[str, int, int, tuple[int, int, int, int]]] = []
    small = 0
    for row, (name, size) in enumerate(zip(source.ids, sizes, strict=True)):
        height, width = size or (1, 1)  # decoding the one tile of a file without a size tells the reason
        small += size is not None and min(size) < options.size
        corners = [(x, y) for y in starts(height, options) for x in starts(width, options)]
        for k, (x, y) in enumerate(corners):
            box = x, y, min(x + options.size, width), min(y + options.size, height)
            found.append((f"{name}#{k:06d}", row, k, box))
    # Tiles may sort otherwise than their images: 'a b' comes after 'a', and 'a b#000000' before 'a#000000'.
    found.sort(key=lambda tile: tile[0])
    rows = np.array([tile[1] for tile in found], dtype=np.int64)
    numbers = np.array([tile[2] for tile in found], dtype=np.int64)
    boxes = np.array([tile[3] for tile in found], dtype=np.float32)
    known = np.array([size or (0, 0) for size in sizes], dtype=np.int64)
    shape = f"{options.size} x {options.size} pixels"
    note = f"{source.name}: {counted(len(source), 'image')} cut into {counted(len(found), 'tile')} of {shape}"
    if small:
        note += f"; {counted(small, 'image')} smaller than a tile on a side"
    attributes = {IMAGE: source.ids} | dict(source.attributes)
    return Source(
        source.name,
        tuple(tile[0] for tile in found),
        source.target.select(rows),
        Crops(source.images, rows, numbers, boxes, known[rows], margin=0.0, annotated=False),
        (*source.notes, note),
        {key: tuple(column[row] for row in rows) for key, column in attributes.items()},
        source.grouped_by or IMAGE,
        source.weights,
    )
