"""Images in ArrayRecord files, read by the package array_record."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.index import InContainers, Index, OpenFiles
from sslbench.data.formats.tfds.tfrecord import AGAIN, Keys, entry, index_of
from sslbench.data.hashes import Stamp, check_unchanged
from sslbench.errors import DataError
from sslbench.text import printable

_CHUNK = 256
_MAX_OPEN = 1_000_000  # a reader has threads, and is never closed


def build_array_record(path: Path, keys: Keys) -> Index:
    """Index an ArrayRecord file: numbers are offset and size of the image in its record, texts labels as JSON."""
    reader = _reader(str(path))
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


def _reader(path: str) -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise DataError(
            "reading ArrayRecord files needs the package array_record", "pip install 'sslbench[tfds]'"
        ) from error
    try:
        return array_record_module.ArrayRecordReader(path)
    except RuntimeError as error:
        raise DataError(f"cannot read {path}: {' '.join(str(error).split())[:200]}", AGAIN) from error


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayRecords(InContainers):
    """Encoded images in records of ArrayRecord files.

    Attributes:
        containers: the files.
        stamps: their state when `places` was found.
        places: int64 (N, 4): container, record, offset in the record, size.
    """

    containers: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    places: npt.NDArray[np.int64]
    _readers: OpenFiles = dataclasses.field(default_factory=OpenFiles, repr=False)

    def read(self, index: int) -> bytes:
        """Return the bytes of one image."""
        container, record, offset, size = self.places[index].tolist()
        path = self.containers[container]
        try:
            check_unchanged(path, Path(path).stat(), self.stamps[container])
            content: bytes = self._readers.get(path, _MAX_OPEN, _reader).read([record])[0]
        except (RuntimeError, IndexError) as error:
            raise OSError(f"record {record} of {path}: {' '.join(str(error).split())[:200]}") from error
        if len(content) < offset + size:
            raise OSError(f"record {record} of {path} is shorter than it was")
        return content[offset : offset + size]

    def path(self, index: int) -> str:
        """Return file and record: 'x.array_record-00000-of-00001[17]'."""
        return printable(f"{self.containers[self.places[index, 0]]}[{self.places[index, 1]}]")

    def place_key(self, index: int) -> str:
        """Return record, offset and size of an image."""
        return str(self.places[index, 1:].tolist())
