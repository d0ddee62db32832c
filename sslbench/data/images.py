"""Images as files on disk, and as one array in memory."""

import dataclasses
import functools
import hashlib
import io
import logging
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from sslbench.arrays import OfRows
from sslbench.data.hashes import HashMemo, Stamp, settled, stamp_of
from sslbench.data.regular import open_image, read_all
from sslbench.text import printable
from sslbench.text_rows import TextRows, Texts, packed, select_texts, write_texts

DIGEST_BYTES = 16
_CHUNK = 4096
_THREADS = 8
_MANY = 100_000
_log = logging.getLogger("sslbench")


def digest(content: bytes | memoryview) -> bytes:
    """Return the 16-byte BLAKE2b digest of some content."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


EMPTY_DIGEST = digest(b"")
"""Digest of an empty file."""

UNREADABLE_DIGEST = bytes(DIGEST_BYTES)
"""Digest of an unreadable file; hashing does not stop at one, since decoding reports it by name."""


def array_digest(array: npt.NDArray[np.uint8]) -> bytes:
    """Return the digest of the shape and the pixels of an array."""
    state = hashlib.blake2b(repr(array.shape).encode(), digest_size=DIGEST_BYTES)
    state.update(np.ascontiguousarray(array).data)
    return state.digest()


def joined_digests(digests: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    """Return N digests as one array, (N, 16) bytes."""
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def digests_of(contents: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    """Return the digests of N contents, (N, 16) bytes."""
    return joined_digests(map(digest, contents))


def digests_with(contents: npt.NDArray[np.uint8], others: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    """Return the digests of (N, 16) digests of images with N other values; those of unreadable files stay zeros."""
    digests = np.zeros((len(contents), DIGEST_BYTES), dtype=np.uint8)
    for row, (content, other) in enumerate(zip(contents, others, strict=True)):
        if (image := content.tobytes()) != UNREADABLE_DIGEST:
            digests[row] = np.frombuffer(digest(image + other), dtype=np.uint8)
    return digests


@dataclasses.dataclass(frozen=True, eq=False)
class _Hashed:
    """State of N files at the time of hashing.

    Attributes:
        digests: (N, 16) bytes, result of `Files.digests`.
        stamps: int64 (N,), hash of each file's stamp; 0 where an equal stamp does not imply equal content.
    """

    digests: npt.NDArray[np.uint8]
    stamps: npt.NDArray[np.int64]

    def check(self, index: int, content: bytes, stamp: Stamp) -> None:
        """Raise if the content is not the one that was hashed; it is hashed again only where the stamp differs."""
        if self.stamps[index] != hash(stamp):
            refuse_other_content(content, self.digests[index])


def refuse_other_content(content: bytes, known: npt.NDArray[np.uint8]) -> None:
    """Raise if the digest of a content is not the known one."""
    if known.tobytes() == UNREADABLE_DIGEST:
        raise OSError("could not be read when it was hashed, and can be now")
    if known.tobytes() != digest(content):
        raise OSError("has changed since it was hashed")


@dataclasses.dataclass(frozen=True)
class Files:
    """Encoded image files; reading one that has changed since the first call of `digests` is an error.

    Attributes:
        paths: one per image, relative to `root`; many of them in one piece, or in a file that processes share.
        root: base of relative paths; '' for the current folder.
    """

    paths: Sequence[str | Path]
    root: str = ""
    _hashed: _Hashed | None = dataclasses.field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A list could be changed after it was hashed.
        if not isinstance(self.paths, Texts):
            object.__setattr__(self, "paths", packed(self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    def _file(self, index: int) -> str:
        return os.path.join(self.root, self.paths[index])  # noqa: PTH118 - a Path per image is slow for a million

    def read(self, index: int) -> bytes:
        """Return the bytes of one file."""
        with open_image(self._file(index)) as file:
            content = read_all(file)
            if self._hashed is not None:  # the stamp is taken last, so that it shows a change while the file was read
                self._hashed.check(index, content, stamp_of(os.fstat(file.fileno())))
            return content

    def open(self, index: int) -> io.FileIO:
        """Open one file to read its beginning, which may have changed since it was hashed."""
        return open_image(self._file(index))

    def path(self, index: int) -> str:
        r"""Return the path of a file; bytes that are no UTF-8 are written as \xNN."""
        return printable(self._file(index))

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return the BLAKE2b digest of each file, (N, 16) bytes, zeros for an unreadable one; hashed once per object.

        Digests of files whose size, times and inode are unchanged come from a cache (`HashMemo`).
        """
        # Asking for the stamps of a million files takes half a minute, and an evaluation asks a dozen times.
        if self._hashed is not None:
            return self._hashed.digests.copy()
        digests = np.zeros((len(self), DIGEST_BYTES), dtype=np.uint8)
        stamps = np.zeros(len(self), dtype=np.int64)
        if len(self) >= _MANY:
            _log.info("hashing %s images; those unchanged since the last run are skipped", f"{len(self):,}")
        # In chunks: what was hashed before an interruption is in the memo.
        with HashMemo() as memo, ThreadPoolExecutor(_THREADS) as pool:
            for start in range(0, len(self), _CHUNK):
                stop = min(start + _CHUNK, len(self))
                files = [os.path.abspath(self._file(i)) for i in range(start, stop)]  # noqa: PTH100
                digests[start:stop], stamps[start:stop] = _digests(files, memo, pool)
        object.__setattr__(self, "_hashed", _Hashed(digests, stamps))
        return digests.copy()

    def in_file(self, file: Path) -> "Files":
        """Return the same with the paths written to a file, which is all that other processes are sent."""
        write_texts(self.paths, file)
        same = Files(TextRows(str(file)), self.root)
        object.__setattr__(same, "_hashed", self._hashed)
        return same

    def select(self, indices: npt.NDArray[np.int64]) -> "Files":
        """Return the files at `indices`, in that order."""
        chosen = Files(select_texts(self.paths, indices), self.root)
        if self._hashed is not None:
            hashed = _Hashed(self._hashed.digests[indices], self._hashed.stamps[indices])
            object.__setattr__(chosen, "_hashed", hashed)
        return chosen


class OfFiles(OfRows):
    """Dataclass of things that lie in one file each, `files`; see `OfRows`."""

    of_rows: ClassVar[tuple[str, ...]] = ("files",)
    files: Files

    def path(self, index: int) -> str:
        """Return the file of a thing."""
        return self.files.path(index)

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: a hash of each file."""
        return self.files.digests()


def _digests(
    files: list[str], memo: HashMemo, pool: ThreadPoolExecutor
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the digests of some files and the hashes of their stamps, as in `_Hashed`."""
    # The stamp is taken before the content is read: a change in between makes the cache miss, never wrong.
    now = time.time_ns()
    stamps = [_stamp(file) for file in files]
    known = memo.lookup(files, stamps)
    todo = [i for i, (found, stamp) in enumerate(zip(known, stamps, strict=True)) if found is None and stamp]
    fresh = dict(zip(todo, pool.map(_hash_file, (files[i] for i in todo)), strict=True))
    memo.remember([(files[i], stamp, d) for i, d in fresh.items() if d and (stamp := stamps[i])], now)
    digests = [found or fresh.get(i) or UNREADABLE_DIGEST for i, found in enumerate(known)]
    # A stamp taken within the clock tick of a change would also fit the changed file, so it is not kept.
    stamp_hashes = [
        hash(stamp) if stamp and content != UNREADABLE_DIGEST and settled(stamp, now) else 0
        for stamp, content in zip(stamps, digests, strict=True)
    ]
    return joined_digests(digests), np.array(stamp_hashes, dtype=np.int64)


def _stamp(file: str) -> Stamp | None:
    try:
        return stamp_of(os.stat(file))  # noqa: PTH116
    except OSError:
        return None


def _hash_file(file: str) -> bytes | None:
    """Return the digest of a file, read in blocks; None if it cannot be read."""
    try:
        with open_image(file) as opened:
            return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).digest()
    except OSError:
        return None


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """Images of equal size in one array.

    Attributes:
        array: uint8 (N, H, W) or (N, H, W, channels).
        name: name of the data set in messages.
        rows: int64, selected rows of `array`, in order; None for all. Selecting copies no pixels.
    """

    array: npt.NDArray[np.uint8]
    name: str
    rows: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.array.dtype != np.uint8 or self.array.ndim not in (3, 4):
            raise ValueError(f"{self.name}: expected uint8 (N, H, W[, C]), got {self.array.dtype} {self.array.shape}")

    def __len__(self) -> int:
        return len(self.array) if self.rows is None else len(self.rows)

    def _row(self, index: int) -> int:
        return range(len(self.array))[index] if self.rows is None else int(self.rows[index])

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return one image: uint8 (H, W) or (H, W, channels)."""
        image: npt.NDArray[np.uint8] = self.array[self._row(index)]
        return image

    def path(self, index: int) -> str:
        """Return the data set's name and the row in the array, such as 'digits[17]'."""
        return f"{self.name}[{self._row(index)}]"

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return the BLAKE2b digest of each image's shape and pixels, (N, 16) bytes, computed once per object."""
        return self._digests.copy()

    @functools.cached_property
    def _digests(self) -> npt.NDArray[np.uint8]:
        return joined_digests(array_digest(self.read(i)) for i in range(len(self)))

    def select(self, indices: npt.NDArray[np.int64]) -> "Arrays":
        """Return the images at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return Arrays(self.array, self.name, chosen if self.rows is None else self.rows[chosen])
