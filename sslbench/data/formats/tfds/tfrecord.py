"""Index of a TFDS shard: place of each record's image, its file name and its label."""

import dataclasses
import functools
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sslbench.data.containers.index import Index
from sslbench.errors import DataError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


@dataclasses.dataclass(frozen=True)
class Feature:
    """Feature of an example.

    Attributes:
        texts: (start, stop) of each value in the record, of a list of bytes.
        numbers: the values of a list of integers.
    """

    texts: tuple[tuple[int, int], ...] = ()
    numbers: tuple[int, ...] = ()


def parse(record: bytes) -> dict[str, Feature]:
    """Parse the features of an example; lists of floats are returned empty."""
    features: dict[str, Feature] = {}
    for _, start, stop in _messages(record, 0, len(record)):
        for _, entry_start, entry_stop in _messages(record, start, stop):
            # An entry of a map in protobuf: field 1 is the key, field 2 the value.
            entry = {number: place for number, *place in _messages(record, entry_start, entry_stop, (1, 2))}
            if 1 in entry:
                key = record[slice(*entry[1])].decode("utf-8")
                features[key] = _feature(record, *entry[2]) if 2 in entry else Feature()
    return features


def _feature(record: bytes, start: int, stop: int) -> Feature:
    texts: list[tuple[int, int]] = []
    numbers: list[int] = []
    # tf.train.Feature: 1 is a list of bytes, 2 of floats, 3 of integers.
    for kind, list_start, list_stop in _messages(record, start, stop, (1, 2, 3)):
        if kind == 1:
            texts += [(s, e) for _, s, e in _messages(record, list_start, list_stop)]
        elif kind == 3:
            numbers += _integers(record, list_start, list_stop)
    return Feature(tuple(texts), tuple(numbers))


def _integers(record: bytes, start: int, stop: int) -> Iterator[int]:
    """Parse an Int64List, packed or not."""
    for number, wire, value, at in _fields(record, start, stop):
        if number == 1 and wire == _VARINT:
            yield _signed(value)
        elif number == 1 and wire == _LENGTH:
            while value < at:
                one, value = _varint(record, value, at)
                yield _signed(one)


def _signed(value: int) -> int:
    # int64 in protobuf is two's complement, without zigzag.
    return value - (1 << 64) if value >> 63 else value


def _messages(record: bytes, start: int, stop: int, numbers: tuple[int, ...] = (1,)) -> Iterator[tuple[int, int, int]]:
    """Yield (field, start, stop) of the length-delimited fields with these numbers."""
    for number, wire, value, end in _fields(record, start, stop):
        if number in numbers:
            if wire != _LENGTH:
                raise ValueError(f"field {number} has the wire type {wire}")
            yield number, value, end


def _fields(record: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field, wire type, value of a varint or start of the value, end of the value)."""
    at = start
    while at < stop:
        tag, at = _varint(record, at, stop)
        wire = tag & 7
        if wire == _VARINT:
            value, at = _varint(record, at, stop)
            yield tag >> 3, wire, value, at
            continue
        if wire == _LENGTH:
            size, at = _varint(record, at, stop)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"the wire type {wire} does not occur in an example")
        if size > stop - at:
            raise ValueError("a value reaches beyond its message")
        yield tag >> 3, wire, at, at + size
        at += size


def _varint(record: bytes, at: int, stop: int) -> tuple[int, int]:
    value = 0
    for i in range(_MAX_VARINT_BYTES):
        if at + i >= stop:
            break
        byte = record[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            # The tenth byte has bits beyond the 64th.
            return value & ((1 << 64) - 1), at + i + 1
    raise ValueError("a number does not end")


_FRAME = struct.Struct("<QI")
_FOOTER_BYTES = 4
# kMaskDelta of TensorFlow's crc32c.h.
_MASK = 0xA282EAD8
# The polynomial of CRC-32C, lowest bit first.
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
    """
    entries = [entry(path, i, record, keys, start) for i, (start, record) in enumerate(_records(path))]
    return index_of(entries)


_Entry = tuple[int, int, str, str]


def index_of(entries: list[_Entry]) -> Index:
    """Return the index of the entries of a shard."""
    numbers = np.array([entry[:2] for entry in entries], dtype=np.int64).reshape(-1, 2)
    return Index(tuple(entry[2] for entry in entries), numbers, tuple(entry[3] for entry in entries))


def entry(path: Path, number: int, record: bytes, keys: Keys, at: int) -> _Entry:
    """Return offset and size of the image, file name and label of the record at offset `at`."""
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
            # Over the checksum of the data, which is not compared.
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
