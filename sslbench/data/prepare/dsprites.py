"""dSprites: 737,280 shapes of 64 x 64 pixels in one .npz; labels are bins of a factor, as VTAB has them."""

import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from sslbench.data.prepare.layout import BLOCK_BYTES, LayoutPlan
from sslbench.data.prepare.official import Official
from sslbench.data.prepare.pixels import png
from sslbench.errors import DataError

NAME = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
ARCHIVES = (Official(NAME),)
_CHUNK = 4096  # images
_ORIENTATION, _X = 3, 4  # columns of the factors: colour, shape, scale, orientation, x, y


def location(archives: Mapping[str, Path]) -> LayoutPlan:
    """Plan a folder per bin of the x position: 16 bins of two of its 32 values."""
    return _plan(archives, _X, 32)


def orientation(archives: Mapping[str, Path]) -> LayoutPlan:
    """Plan a folder per bin of the angle: 16 bins of its 40 values."""
    return _plan(archives, _ORIENTATION, 40)


def _plan(archives: Mapping[str, Path], column: int, values: int) -> LayoutPlan:
    path = archives[NAME]

    def files() -> Iterator[tuple[str, Callable[[], bytes]]]:
        try:
            with zipfile.ZipFile(path) as packed:
                with packed.open("latents_classes.npy") as file:
                    factors = np.concatenate(list(_rows(file)))
                with packed.open("imgs.npy") as file:
                    number = 0
                    for images in _rows(file):
                        for image in images:
                            label = int(factors[number, column]) * 16 // values
                            yield f"{label:02d}/{number:06d}.png", png(np.asarray(image * 255, np.uint8))
                            number += 1
        except (zipfile.BadZipFile, KeyError, EOFError, ValueError, IndexError) as error:
            raise DataError(f"{path} is damaged or another file: {error}", "Download it again.") from error

    return LayoutPlan(files(), 737_280 * BLOCK_BYTES)


def _rows(file: IO[bytes]) -> Iterator[npt.NDArray[np.generic]]:
    """Yield an array in an .npy stream, some rows at a time: all images together take 3 GB."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    if by_columns or dtype.hasobject:
        raise ValueError("an array in an order or of a type that dSprites does not have")
    row = int(np.prod(shape[1:])) * dtype.itemsize
    for begin in range(0, shape[0], _CHUNK):
        count = min(_CHUNK, shape[0] - begin)
        content = file.read(row * count)
        if len(content) != row * count:
            raise EOFError("it ends early")
        yield np.frombuffer(content, dtype).reshape(count, *shape[1:])
