"""Images stored as byte ranges of a few large files: archive members, table cells, parts of records."""

import binascii
import contextlib
import dataclasses
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.data import remote
from sslbench.data.containers.index import InContainers, OpenFiles
from sslbench.data.hashes import Stamp, check_unchanged
from sslbench.text import printable

RAW, DEFLATED, BASE64 = range(3)
"""Packings of an image in its container."""
UNKNOWN = -1
"""Check sum missing from the container."""

_MAX_OPEN = 64
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class _Handle:
    """Open file, closed with its last reference."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))

    def __del__(self) -> None:
        # Python calls this also where os.open has failed in `__init__`.
        if hasattr(self, "fd"):
            os.close(self.fd)


@dataclasses.dataclass(frozen=True, eq=False)
class Slices(InContainers):
    """Encoded images stored as byte ranges of containers.

    Attributes:
        containers: paths of the container files.
        stamps: stamp of each container when it was indexed; reading a file that has changed since is an error.
        names: name of each image in its container.
        places: int64 (N, 6): container, offset, stored bytes, unpacked bytes, CRC-32 or UNKNOWN, packing.
        origins: per container its remote origin; None for a local file. Empty if all are local.
    """

    containers: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    names: tuple[str, ...]
    places: npt.NDArray[np.int64]
    origins: tuple[remote.Origin | None, ...] = ()
    of_rows = ("names", "places")
    threads = 4
    _files: OpenFiles = dataclasses.field(default_factory=OpenFiles, repr=False)

    def read(self, index: int) -> bytes:
        """Return the unpacked bytes of one image."""
        container, offset, stored, size, checksum, packing = self.places[index].tolist()
        path = self._container_name(container)
        with self._opened(container) as fd:
            # pread takes an offset of its own, so threads and forked processes may share the file.
            data = os.pread(fd, stored, offset)
            while len(data) < stored:  # one call gives at most 2 GB
                more = os.pread(fd, stored - len(data), offset + len(data))
                if not more:
                    raise OSError(f"{path} ends {stored - len(data):,} bytes too early")
                data += more
        try:
            unpacked = _unpack(data, size, packing)
        except (zlib.error, binascii.Error, ValueError) as error:
            raise OSError(f"damaged in {path}: {error}") from error
        if checksum != UNKNOWN and zlib.crc32(unpacked) != checksum:
            raise OSError(f"damaged in {path}: its check sum is wrong")
        return unpacked

    def path(self, index: int) -> str:
        """Return the container and the name in it: 'photos.tar/cat/1.jpg'."""
        return printable(f"{self._container_name(self.places[index, 0])}/{self.names[index]}")

    def _container_name(self, container: int) -> str:
        origin = self.origins[container] if self.origins else None
        return self.containers[container] if origin is None else origin.url

    @contextlib.contextmanager
    def _opened(self, container: int) -> Iterator[int]:
        origin = self.origins[container] if self.origins else None
        if origin is None:
            path = self.containers[container]
            handle = self._files.get(path, _MAX_OPEN, _Handle)
            check_unchanged(path, os.fstat(handle.fd), self.stamps[container])  # it may be written to while it is open
            yield handle.fd
        else:
            with remote.opened(origin) as fd:
                yield fd

    def fetched(self) -> npt.NDArray[np.int64]:
        """Return the bytes to fetch before each container can be read: int64 (containers,), 0 for a local file."""
        sizes = [0 if origin is None else origin.size or 0 for origin in self.origins]
        return np.array(sizes or [0] * len(self.containers), dtype=np.int64)

    def place_key(self, index: int) -> str:
        """Return offset, size and packing of an image."""
        _, offset, stored, *_, packing = self.places[index].tolist()
        return f"{offset}+{stored}:{packing}"


def _unpack(data: bytes, size: int, packing: int) -> bytes:
    if packing == RAW:
        return data
    if packing == BASE64:
        # Unless strict, characters that are not base64 are skipped in silence.
        return binascii.a2b_base64(data.translate(_URL_SAFE), strict_mode=True)
    # Negative: members of a zip have no zlib header.
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    unpacked = unpacker.decompress(data, size + 1)  # never more than the archive's directory declares
    if len(unpacked) != size or not unpacker.eof:
        raise ValueError(f"unpacks to {'more' if len(unpacked) > size else 'less'} than the {size:,} bytes announced")
    return unpacked


def whole_places(numbers: npt.NDArray[np.int64], packing: int = RAW) -> npt.NDArray[np.int64]:
    """Return the places (n, 5) for `joined` of images without check sums, of their offsets and sizes (n, 2)."""
    offset, size = numbers.T
    return np.stack([offset, size, size, np.full(len(size), UNKNOWN), np.full(len(size), packing)], axis=1)


def joined(
    parts: Iterable[tuple[Path, Stamp, tuple[str, ...], npt.NDArray[np.int64]]],
    origins: Sequence[remote.Origin | None] = (),
) -> Slices:
    """Return the images of several containers, concatenated.

    Args:
        parts: per container its path, stamp, names, and int64 (n, 5): `places` without the first column.
        origins: per container; see `Slices`.
    """
    listed = list(parts)
    places = [np.column_stack([np.full(len(place), i), place]) for i, (*_, place) in enumerate(listed)]
    names = tuple(name for _, _, part, _ in listed for name in part)
    stacked = np.concatenate(places).astype(np.int64) if places else np.zeros((0, 6), dtype=np.int64)
    containers, stamps = tuple(str(path) for path, *_ in listed), tuple(stamp for _, stamp, *_ in listed)
    return Slices(containers, stamps, names, stacked, tuple(origins) if any(origins) else ())
