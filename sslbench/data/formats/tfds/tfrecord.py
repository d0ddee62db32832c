"""Index of a TFDS shard: place of each record's image, its file name and its label."""

import dataclasses
import functools
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sslbench.data.cache.index import Index
from sslbench.data.formats.tfds.example import Feature, parse
from sslbench.errors import DataError

_FRAME = struct.Struct("<QI")
_FOOTER_BYTES = 4
_MASK = 0xA282EAD8
_CASTAGNOLI = 0x82F63B78
AGAIN = "Get the file again, or prepare the data set again with TFDS."


@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys of the features with the image, its label and its file name; empty for none."""

    image: str
    label: str
    name: str


def build_tfrecord(path: Path, keys: Keys) -> Index:
    """Index a TFRecord file: numbers are offset and size of the image, texts the label as JSON.

    A record is its length (8 bytes), a masked CRC-32C of that, the data, and one of these
    (https://www.tensorflow.org/tutorials/load_data/tfrecord). The sum of the length is checked; that of the data is
    not, which would take longer than reading them.

    Raises:
        DataError: it is damaged or truncated, or a record is no example with an image.
    """
    entries = [entry(path, i, record, keys, start) for i, (start, record) in enumerate(_records(path))]
    return index_of(entries)


_Entry = tuple[int, int, str, str]


def index_of(entries: list[_Entry]) -> Index:
    """Return the index of the entries of a shard."""
    numbers = np.array([entry[:2] for entry in entries], dtype=np.int64).reshape(-1, 2)
    return Index(tuple(entry[2] for entry in entries), numbers, tuple(entry[3] for entry in entries))


def entry(path: Path, number: int, record: bytes, keys: Keys, at: int) -> _Entry:
    """Return offset and size of the image, file name and label of the record at offset `at`.

    Raises:
        DataError: the record is no example, or has not one image.
    """
    try:
        features = parse(record)
        images = features.get(keys.image, Feature()).texts
        if len(images) != 1:
            raise ValueError(f"it has {len(images)} values of '{keys.image}', should be one encoded image")
        start, stop = images[0]
        label, name = features.get(keys.label, Feature()), features.get(keys.name, Feature())
        texts = [record[slice(*place)].decode("utf-8") for place in label.texts]
        names = [record[slice(*place)].decode("utf-8") for place in name.texts]
    except ValueError as error:
        raise DataError(f"{path}: record {number} does not match features.json: {error}", AGAIN) from error
    return at + start, stop - start, names[0] if names else "", json.dumps([*label.numbers, *texts])


def _records(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of every record."""
    end = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at < end:
            frame = file.read(_FRAME.size)
            if len(frame) < _FRAME.size:
                raise _truncated(path, at)
            length, checksum = _FRAME.unpack(frame)
            if _masked_crc(frame[:8]) != checksum:
                raise DataError(f"{path} is damaged at byte {at:,}, or not a TFRecord file", AGAIN)
            start = at + _FRAME.size
            at = start + length + _FOOTER_BYTES
            if at > end:
                raise _truncated(path, start)
            yield start, file.read(length)
            file.seek(at)


def _truncated(path: Path, at: int) -> DataError:
    return DataError(f"{path} is truncated in the record at byte {at:,}", AGAIN)


@functools.cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_CASTAGNOLI if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _masked_crc(data: bytes) -> int:
    """Return TFRecord's masked CRC-32C: rotated, plus a constant."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF
