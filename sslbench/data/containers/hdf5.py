"""Images in one array of an HDF5 file, read one at a time: the file may be larger than memory."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import OfRows
from sslbench.data.hashes import Stamp, check_unchanged
from sslbench.data.images import DIGEST_BYTES, digest
from sslbench.errors import DataError

_CHUNK = 256


def open_hdf5(file: Path) -> Any:
    """Open an HDF5 file for reading."""
    if not file.is_file():
        # h5py's error of a missing file is an OSError, too, which below is that of a damaged one.
        raise FileNotFoundError(2, "No such file", str(file))
    try:
        h5py = importlib.import_module("h5py")
    except ImportError:
        raise DataError(f"{file} is an HDF5 file, and h5py is not installed", "pip install h5py") from None
    try:
        return h5py.File(file, "r")
    except OSError as error:
        raise DataError(f"{file} is damaged or no HDF5 file: {error}") from error


@dataclasses.dataclass(frozen=True)
class Hdf5Images(OfRows):
    """Images in rows of an HDF5 array (N, H, W, C), uint8.

    Attributes:
        file: the HDF5 file.
        key: name of the array in the file.
        rows: int64, selected rows of the array, in order.
        name: name of the data set in messages.
        stamp: stamp of the file when it was opened; reading a file that has changed since is an error.
    """

    of_rows = ("rows",)
    file: Path
    key: str
    rows: npt.NDArray[np.int64]
    name: str
    stamp: Stamp

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return one image: uint8 (H, W, C)."""
        # Opened for every image: an open HDF5 file can neither be pickled nor be used after a fork.
        with self._opened() as opened:
            image: npt.NDArray[np.uint8] = opened[self.key][int(self.rows[index])]
        return image

    def _opened(self) -> Any:
        check_unchanged(str(self.file), self.file.stat(), self.stamp)
        return open_hdf5(self.file)

    def path(self, index: int) -> str:
        """Return the data set's name and the row in the array, such as 'PCAM-test[17]'."""
        return f"{self.name}[{self.rows[index]}]"

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return the BLAKE2b digest of each image's pixels, (N, 16) bytes, read in blocks."""
        found: npt.NDArray[np.uint8] = np.zeros((len(self), DIGEST_BYTES), dtype=np.uint8)
        with self._opened() as opened:
            array = opened[self.key]
            for start in range(0, len(self), _CHUNK):
                for i, image in enumerate(array[self.rows[start : start + _CHUNK]], start):
                    found[i] = np.frombuffer(digest(np.ascontiguousarray(image).data), dtype=np.uint8)
        return found
