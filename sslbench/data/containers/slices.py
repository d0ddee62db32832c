"""Images that are stretches of bytes in a few large files: members of archives, cells of tables, parts of records."""

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
from sslbench.data.cache.digests import remembered
from sslbench.data.hashes import Stamp, check_unchanged
from sslbench.data.wording import printable

RAW, DEFLATED, BASE64 = range(3)
"""How an image is packed in its container."""
UNKNOWN = -1
"""A check sum that the container does not give."""

_THREADS = 4
_MAX_OPEN = 64
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class _Handle:
    """An open file, closed when the last one who uses it lets go."""

    def __init__(self, path: str, stamp: Stamp) -> None:
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        check_unchanged(path, os.fstat(self.fd), stamp)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class _Handles:
    """The containers this process has open. Another process opens its own: nothing is carried over by pickling.

    A forked process shares the files but no position in them, since every read says where.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Handle] = {}

    def __reduce__(self) -> tuple[type["_Handles"], tuple[()]]:
        return _Handles, ()

    def get(self, path: str, stamp: Stamp) -> _Handle:
        handle = self._open.get(path)
        if handle is None:
            while len(self._open) >= _MAX_OPEN:
                self._open.pop(next(iter(self._open)), None)
            handle = self._open[path] = _Handle(path, stamp)
        else:
            check_unchanged(path, os.fstat(handle.fd), stamp)  # it may be written to while it is open
        return handle


@dataclasses.dataclass(frozen=True, eq=False)
class Slices:
    """Encoded images inside containers.

    Attributes:
        containers: the files.
        stamps: their state when `places` was found; reading from a file that has changed since is an error.
        names: one per image, what it is called in its container.
        places: int64 (N, 6): container, offset, bytes there, bytes when unpacked, CRC-32 or UNKNOWN, packing.
        origins: per container where it is copied from when it is not there; None if it is a file of the user's. Empty
            if all are.
    """

    containers: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    names: tuple[str, ...]
    places: npt.NDArray[np.int64]
    origins: tuple[remote.Origin | None, ...] = ()
    _handles: _Handles = dataclasses.field(default_factory=_Handles, repr=False)

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> bytes:
        """The unpacked bytes of one image.

        Raises:
            OSError: they cannot be read, do not fit their check sum, or the container has changed.
            DataError: the container cannot be fetched.
        """
        container, offset, stored, size, checksum, packing = self.places[index].tolist()
        path = self._called(container)
        with self._opened(container) as fd:
            data = _read_at(fd, path, offset, stored)
        try:
            unpacked = _unpack(data, size, packing)
        except (zlib.error, binascii.Error, ValueError) as error:
            raise OSError(f"damaged in {path}: {error}") from error
        if checksum != UNKNOWN and zlib.crc32(unpacked) != checksum:
            raise OSError(f"damaged in {path}: its check sum is wrong")
        return unpacked

    def path(self, index: int) -> str:
        """The container and the name in it: 'photos.tar/cat/1.jpg'."""
        return printable(f"{self._called(self.places[index, 0])}/{self.names[index]}")

    def _called(self, container: int) -> str:
        origin = self.origins[container] if self.origins else None
        return self.containers[container] if origin is None else origin.url

    @contextlib.contextmanager
    def _opened(self, container: int) -> Iterator[int]:
        origin = self.origins[container] if self.origins else None
        if origin is None:
            handle = self._handles.get(self.containers[container], self.stamps[container])
            yield handle.fd
        else:
            with remote.opened(origin) as fd:
                yield fd

    def shards(self) -> npt.NDArray[np.int64]:
        """int64 (N,): in which container each image lies."""
        return self.places[:, 0]

    def fetched(self) -> npt.NDArray[np.int64]:
        """int64 (containers,): bytes that are copied before a container can be read; 0 for a file of the user's."""
        sizes = [0 if origin is None else origin.size or 0 for origin in self.origins]
        return np.array(sizes or [0] * len(self.containers), dtype=np.int64)

    def digests(self) -> npt.NDArray[np.uint8]:
        """(N, 16) bytes: BLAKE2b of each unpacked image, zeros for one that cannot be read.

        The same as for the image in a file of its own. Kept in the memo of file hashes while a container is unchanged.
        """
        in_place = np.lexsort((self.places[:, 1], self.places[:, 0]))  # one pass through each container
        return remembered(in_place, self._key, lambda i: self.stamps[self.places[i, 0]], self.read, threads=_THREADS)

    def _key(self, index: int) -> str:
        container, offset, stored, *_, packing = self.places[index].tolist()
        return f"{os.path.abspath(self.containers[container])}\0{offset}+{stored}:{packing}"  # noqa: PTH100

    def select(self, indices: npt.NDArray[np.int64]) -> "Slices":
        """Some of the images, in the order of `indices`."""
        chosen = np.asarray(indices, dtype=np.int64)
        names = tuple(self.names[i] for i in chosen)
        return dataclasses.replace(self, names=names, places=self.places[chosen])


def _read_at(fd: int, path: str, offset: int, size: int) -> bytes:
    data = os.pread(fd, size, offset)
    while len(data) < size:  # one call gives at most 2 GB
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            raise OSError(f"{path} ends {size - len(data):,} bytes too early")
        data += more
    return data


def _unpack(data: bytes, size: int, packing: int) -> bytes:
    if packing == RAW:
        return data
    if packing == BASE64:
        return binascii.a2b_base64(data.translate(_URL_SAFE), strict_mode=True)
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    unpacked = unpacker.decompress(data, size + 1)  # never more than the directory of the archive announces
    if len(unpacked) != size or not unpacker.eof:
        raise ValueError(f"unpacks to {'more' if len(unpacked) > size else 'less'} than the {size:,} bytes announced")
    return unpacked


def joined(
    parts: Iterable[tuple[Path, Stamp, tuple[str, ...], npt.NDArray[np.int64]]],
    origins: Sequence[remote.Origin | None] = (),
) -> Slices:
    """The images of several containers one behind the other.

    Args:
        parts: per container its path, its stamp, the names, and int64 (n, 5): `places` without the first column.
        origins: per container; see `Slices`.
    """
    listed = list(parts)
    places = [np.column_stack([np.full(len(place), i), place]) for i, (*_, place) in enumerate(listed)]
    names = tuple(name for _, _, part, _ in listed for name in part)
    stacked = np.concatenate(places).astype(np.int64) if places else np.zeros((0, 6), dtype=np.int64)
    containers, stamps = tuple(str(path) for path, *_ in listed), tuple(stamp for _, stamp, *_ in listed)
    return Slices(containers, stamps, names, stacked, tuple(origins) if any(origins) else ())
