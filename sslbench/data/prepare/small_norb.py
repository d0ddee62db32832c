"""Small NORB: images and their angles in six arrays of LeCun's own format."""

import gzip
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.data.prepare.layout import BLOCK_BYTES, LayoutPlan
from sslbench.data.prepare.official import Official
from sslbench.data.prepare.pixels import png
from sslbench.errors import DataError

_NAME = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}
ARCHIVES = tuple(
    Official(f"{name}-{kind}.mat.gz", others=(f"{name}-{kind}.mat",))
    for name in _NAME.values()
    for kind in ("dat", "info")
)
_DTYPES = {0x1E3D4C54: "<i4", 0x1E3D4C55: "<u1"}


def azimuth(archives: Mapping[str, Path]) -> LayoutPlan:
    """Plan a folder per azimuth, 000 to 340 degrees in steps of 20."""
    return _plan(archives, lambda info: f"{10 * int(info[2]):03d}")


def elevation(archives: Mapping[str, Path]) -> LayoutPlan:
    """Plan a folder per elevation, 30 to 70 degrees in steps of 5."""
    return _plan(archives, lambda info: str(30 + 5 * int(info[1])))


def _plan(archives: Mapping[str, Path], label: Callable[[npt.NDArray[np.int32]], str]) -> LayoutPlan:
    def files() -> Iterator[tuple[str, Callable[[], bytes]]]:
        for part, name in _NAME.items():
            images = _read(archives[f"{name}-dat.mat.gz"])
            infos = _read(archives[f"{name}-info.mat.gz"])
            if images.ndim != 4 or infos.shape != (len(images), 4):
                raise DataError(f"{archives[f'{name}-dat.mat.gz']}: {images.shape} images and {infos.shape} angles")
            for number, (pair, info) in enumerate(zip(images, infos, strict=True)):
                yield f"{part}/{label(info)}/{number:05d}.png", png(pair[0])  # the first camera's

    return LayoutPlan(files(), 2 * 24_300 * 2 * BLOCK_BYTES)


def _read(path: Path) -> npt.NDArray[np.generic]:
    """Read an array: magic number of its type, number of dimensions, at least three sizes, values; little-endian."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        magic, n = (int(value) for value in np.frombuffer(content, "<i4", 2))
        shape = tuple(int(value) for value in np.frombuffer(content, "<i4", n, offset=8))
        values = np.frombuffer(content, _DTYPES[magic], offset=4 * (2 + max(n, 3)))
        return values.reshape(shape)
    except (EOFError, gzip.BadGzipFile, KeyError, ValueError) as error:
        raise DataError(f"{path} is not an array of small NORB: {error}", "Download it again.") from error
