"""tf.train.Example as TFDS writes it, read from the wire format of protocol buffers without TensorFlow.

The messages: Example {Features features = 1}, Features {map<string, Feature> feature = 1}, Feature {BytesList 1,
FloatList 2, Int64List 3}, and each list {repeated value = 1}
(https://www.tensorflow.org/tutorials/load_data/tfrecord, https://protobuf.dev/programming-guides/encoding/).
"""

import dataclasses
from collections.abc import Iterator

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
    """Parse the features of an example; lists of floats are returned empty.

    Raises:
        ValueError: the record is no such message.
    """
    features: dict[str, Feature] = {}
    for _, start, stop in _messages(record, 0, len(record)):
        for _, entry_start, entry_stop in _messages(record, start, stop):
            entry = {number: place for number, *place in _messages(record, entry_start, entry_stop, (1, 2))}
            if 1 in entry:
                key = record[slice(*entry[1])].decode("utf-8")
                features[key] = _feature(record, *entry[2]) if 2 in entry else Feature()
    return features


def _feature(record: bytes, start: int, stop: int) -> Feature:
    texts: list[tuple[int, int]] = []
    numbers: list[int] = []
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
            return value & ((1 << 64) - 1), at + i + 1
    raise ValueError("a number does not end")
