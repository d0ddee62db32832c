"""Images in ArrayRecord files, read by the package array_record."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import OfRows
from sslbench.data.containers.index import Index, cached_digests
from sslbench.data.formats.tfds.tfrecord import AGAIN, Keys, entry, index_of
from sslbench.data.hashes import Stamp, check_unchanged
from sslbench.errors import DataError
from sslbench.text import printable

_CHUNK = 256


def build_array_record(path: Path, keys: Keys) -> Index:
    """Index an ArrayRecord file: numbers are offset and size of the image in its record, texts labels as JSON."""
    reader = _reader(path)
    try:
        count = reader.num_records()
        entries = [
            entry(path, first + i, record, keys, 0)
            for first in range(0, count, _CHUNK)
            for i, record in enumerate(reader.read(list(range(first, min(first + _CHUNK, count)))))
        ]
        reader.close()  # raises the error that num_records hides
    except (RuntimeError, IndexError, ValueError) as error:
        raise DataError(f"{path} is damaged: {' '.join(str(error).split())[:200]}", AGAIN) from error
    return index_of(entries)


def _reader(path: Path) -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise DataError(
            "reading ArrayRecord files needs the package array_record", "pip install 'sslbench[tfds]'"
        ) from error
    try:
        return array_record_module.ArrayRecordReader(str(path))
    except RuntimeError as error:
        raise DataError(f"cannot read {path}: {' '.join(str(error).split())[:200]}", AGAIN) from error


class _Readers:
    """Readers that this process has open, by path; every process opens its own."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], Any] = {}

    def __reduce__(self) -> tuple[type["_Readers"], tuple[()]]:
        return _Readers, ()

    def get(self, path: str) -> Any:
        key = (os.getpid(), path)  # a forked process does not inherit the reader's threads
        if key not in self._open:
            self._open[key] = _reader(Path(path))
        return self._open[key]


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayRecords(OfRows):
    """Encoded images in records of ArrayRecord files.

    Attributes:
        containers: the files.
        stamps: their state when `places` was found.
        places: int64 (N, 4): container, record, offset in the record, size.
    """

    of_rows = ("places",)
    containers: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    places: npt.NDArray[np.int64]
    _readers: _Readers = dataclasses.field(default_factory=_Readers, repr=False)

    def read(self, index: int) -> bytes:
        """Return the bytes of one image."""
        container, record, offset, size = self.places[index].tolist()
        path = self.containers[container]
        try:
            check_unchanged(path, Path(path).stat(), self.stamps[container])
            content: bytes = self._readers.get(path).read([record])[0]
        except (RuntimeError, IndexError) as error:
            raise OSError(f"record {record} of {path}: {' '.join(str(error).split())[:200]}") from error
        if len(content) < offset + size:
            raise OSError(f"record {record} of {path} is shorter than it was")
        return content[offset : offset + size]

    def path(self, index: int) -> str:
        """Return file and record: 'x.array_record-00000-of-00001[17]'."""
        return printable(f"{self.containers[self.places[index, 0]]}[{self.places[index, 1]}]")

    def shards(self) -> npt.NDArray[np.int64]:
        """Return the file of each image, int64 (N,)."""
        return self.places[:, 0]

    def fetched(self) -> npt.NDArray[np.int64]:
        """Return the bytes to download before a file can be read, int64 (files,): zeros."""
        return np.zeros(len(self.containers), dtype=np.int64)

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: BLAKE2b of each image, zeros for one that cannot be read."""
        order = np.lexsort((self.places[:, 1], self.places[:, 0]))
        return cached_digests(order, self._key, lambda i: self.stamps[self.places[i, 0]], self.read)

    def _key(self, index: int) -> str:
        return f"{os.path.abspath(self.containers[self.places[index, 0]])}\0{self.places[index, 1:].tolist()}"  # noqa: PTH100
