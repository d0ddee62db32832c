"""Images of satellites: bands of any type and range, chosen by name and scaled by those of train, and their maps."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.data.decode.picture import UnreadableImage, check_size
from sslbench.data.hashes import stamp_of
from sslbench.data.images import Files, OfFiles, digests_with
from sslbench.data.maps.types import RawMap
from sslbench.data.wording import some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean

ReadBands = Callable[[str, Sequence[str]], list[npt.NDArray[Any]]]
"""Path and names of bands -> the bands (H, W); raises OSError."""
_NUMBERED = re.compile(r"0*(\w+) - (.+)")
_MEASURED = 500  # train images of which the statistics of bands are taken, at most
_SPREAD = 2.0  # standard deviations on each side of the mean that are kept


@dataclasses.dataclass(frozen=True, eq=False)
class BandImages(OfFiles):
    """Images made of some bands of files that hold more.

    Attributes:
        files: one per image.
        read_bands: function that reads bands of a file.
        bands: names of the bands, in order.
        low: (C,) value of each band that becomes 0; empty: values stay as they are.
        high: (C,) value that becomes 255.
    """

    files: Files
    read_bands: ReadBands
    bands: tuple[str, ...]
    low: FloatArray
    high: FloatArray

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return an image (H, W, C), uint8, or uint16 without a scale; smaller bands are enlarged to the largest."""
        import cv2

        path = self.files.path(index)
        found = self.read_bands(path, self.bands)
        height, width = (max(sides) for sides in zip(*(band.shape for band in found), strict=True))
        planes = [
            band if band.shape == (height, width) else cv2.resize(band.astype(np.float32), (width, height))
            for band in found
        ]
        image = np.stack(planes, axis=2)
        if len(self.low):
            shares = (image.astype(np.float64) - self.low) / (self.high - self.low)
            # Not a number, outside of the swath of a satellite, is dark.
            return np.asarray((255 * np.nan_to_num(shares).clip(0, 1)).round(), np.uint8)
        if image.dtype != np.uint8 and (image.min() < 0 or image.max() > np.iinfo(np.uint16).max):
            raise OSError(f"{path}: values from {image.min():g} to {image.max():g} are no 16 bits: ?scale=train")
        return image if image.dtype == np.uint8 else image.round().astype(np.uint16)

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: a hash of each file, the names of the bands and their scale."""
        about = "\n".join(self.bands).encode() + self.low.tobytes() + self.high.tobytes()
        return digests_with(self.files.digests(), [about] * len(self))


@dataclasses.dataclass(frozen=True, eq=False)
class LabelBands(OfFiles):
    """Label maps that are a band of files, one per image."""

    files: Files
    read_bands: ReadBands
    band: str

    def read(self, index: int, max_pixels: int) -> RawMap:
        """Read one map; see `Maps`."""
        try:
            (values,) = self.read_bands(self.path(index), (self.band,))
        except OSError as error:
            raise UnreadableImage(self.path(index), str(error)) from error
        check_size(values.shape[1], values.shape[0], self.path(index), max_pixels)
        return RawMap(values.astype(np.int32))


def chosen_bands(spec: str, wanted: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the bands that the user wants: whole, or the number or the word of '04 - Red'.

    >>> chosen_bands("m-eurosat", "red|3", ["02 - Blue", "03 - Green", "04 - Red"])
    ('04 - Red', '03 - Green')
    """
    known = {name.lower(): name for name in names}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            known |= {key.lower(): name for key in match.groups() if key.lower() not in known}
    if not wanted:
        return tuple(names)
    keys = [word.strip().lower() for word in wanted.split("|")]
    if missing := [key for key in keys if key not in known and key.lstrip("0") not in known]:
        problem = f"{spec}: there is no band '{missing[0]}'; its bands: {some(names, 20)}"
        raise UsageError(problem, did_you_mean(missing[0], list(known)))
    found = tuple(known.get(key) or known[key.lstrip("0")] for key in keys)
    if len(set(found)) < len(found):
        raise UsageError(f"{spec}: bands={wanted} names a band twice")
    return found


def scaled(files: Files, train: Sequence[Path], bands: tuple[str, ...], read_bands: ReadBands) -> BandImages:
    """Return images of 8 bits: mean and two standard deviations of each band in train become 0 and 255.

    SSL4EO-S12 does so (Wang et al. 2023, arXiv 2211.07044). At most 500 files of train are measured.
    """
    measured = [path.absolute() for path in train[:: -(-len(train) // _MEASURED)]]
    stamps = tuple(stamp_of(path.stat()) if path.is_file() else None for path in measured)
    low, high = _scales(read_bands, tuple(map(str, measured)), stamps, bands)
    return BandImages(files, read_bands, bands, np.array(low), np.array(high))


@functools.lru_cache(maxsize=8)
def _scales(
    read_bands: ReadBands, paths: tuple[str, ...], stamps: tuple[Any, ...], bands: tuple[str, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean minus and plus two standard deviations of each band over the pixels of files.

    `stamps`: of the files, which tell their versions apart.
    """
    sums, squares, number = np.zeros(len(bands)), np.zeros(len(bands)), np.zeros(len(bands))
    for image in _readable(read_bands, paths, bands):
        for i, band in enumerate(image):
            values = band[np.isfinite(band)].astype(np.float64)
            sums[i] += values.sum()
            squares[i] += np.square(values).sum()
            number[i] += values.size
    if not number.all():
        folder = Path(paths[0]).parent
        raise DataError(f"{folder}: no image of train can be read, so its bands have no scale")
    mean = sums / number
    spread = np.sqrt(np.maximum(squares / number - mean**2, 0.0))
    spread[spread == 0] = 1.0
    return tuple((mean - _SPREAD * spread).tolist()), tuple((mean + _SPREAD * spread).tolist())


def _readable(read_bands: ReadBands, paths: Sequence[str], bands: Sequence[str]) -> Iterator[list[npt.NDArray[Any]]]:
    for path in paths:
        try:
            yield read_bands(path, bands)
        except OSError:  # listed by the evaluation
            continue
