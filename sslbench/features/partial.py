"""Partially extracted layer: the rows in `.partial`, the state and checksum of each in `.progress`.

Rows are written with pwrite, not through a memory map: a full disk then raises an error instead of a signal, and
processes on several machines write only their own bytes. Clients of NFS write back whole pages of a file that is open
for reading too, and with them old rows of other machines: files are open for writing only, and with several processes
synchronously (O_DSYNC), which makes Linux' client send the written bytes alone.
"""

import contextlib
import errno
import itertools
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from sslbench.arrays import UNREADABLE_HEADER, IntArray
from sslbench.errors import StoreError
from sslbench.paths import FULL, not_written

# States of a row.
PENDING, DONE, UNREADABLE = 0, 1, 2

# Record of a row in `.progress`: its state, and the CRC-32 of its bytes once it is done.
RECORD = np.dtype([("state", "u1"), ("checksum", "<u4")])

_BLOCK_BYTES = 1 << 24
_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class PartialLayer:
    """Files of a layer into which any number of processes write, each its own rows.

    Attributes:
        shape: (N, D).
    """

    def __init__(
        self, complete: Path, shape: tuple[int, int], dtype: np.dtype[np.floating], start: int, *, alone: bool = True
    ) -> None:
        self._flags = os.O_WRONLY | (0 if alone else getattr(os, "O_DSYNC", 0))
        self.complete, self.shape, self.dtype = complete, shape, dtype
        self._rows, self._progress = rows_file(complete), progress_file(complete)
        self._start, self._row_bytes = start, shape[1] * dtype.itemsize
        self._unmarked: list[tuple[IntArray, npt.NDArray[np.void]]] = []

    def write(self, indices: IntArray, rows: npt.NDArray[np.floating]) -> None:
        """Write rows (B, D); the next `flush` marks them as done."""
        rows = np.ascontiguousarray(rows, dtype=self.dtype)
        records = np.empty(len(indices), dtype=RECORD)
        records["state"], records["checksum"] = DONE, [zlib.crc32(row) for row in rows]
        with _opened(self._rows, self._flags) as file:
            _write_at(file, self._start, indices, rows)
        self._unmarked.append((indices, records))

    def skip(self, indices: IntArray) -> None:
        """Record rows whose image cannot be decoded; the next `flush` marks them."""
        records = np.zeros(len(indices), dtype=RECORD)
        records["state"] = UNREADABLE
        self._unmarked.append((indices, records))

    @property
    def is_marking_due(self) -> bool:
        """True if `flush` will mark rows."""
        return bool(self._unmarked)

    def flush(self) -> None:
        """Mark the rows written since the last call, after syncing them to disk."""
        if not self._unmarked:
            return
        indices, records = (np.concatenate(parts) for parts in zip(*self._unmarked, strict=True))
        with _opened(self._rows, self._flags) as file:
            os.fsync(file.fileno())
        # After the rows are on the disk: after a crash no mark may stand for a row that is lost.
        self._mark(indices, records)
        self._unmarked.clear()

    def states(self) -> npt.NDArray[np.uint8]:
        """Return the state of every row, uint8 (N,), as marked by all processes so far."""
        return np.fromfile(self._progress, dtype=RECORD)["state"]

    def verify(self, indices: IntArray) -> int:
        """Mark rows as pending whose checksum is wrong or whose state is unknown."""
        records = np.fromfile(self._progress, dtype=RECORD)
        done = indices[records["state"][indices] == DONE]
        damaged = [
            block[[zlib.crc32(row) != checksum for row, checksum in zip(rows, records["checksum"][block], strict=True)]]
            for block, rows in self._blocks(done)
        ]
        unknown = indices[~np.isin(records["state"][indices], (PENDING, DONE, UNREADABLE))]
        invalid = np.concatenate([unknown, *damaged])
        if len(invalid):
            self.reset(invalid)
        return len(invalid)

    def reset(self, indices: IntArray) -> None:
        """Mark rows as pending."""
        self._mark(indices, np.zeros(len(indices), dtype=RECORD))

    def checksum(self, skipped: IntArray) -> int:
        """Return the CRC-32 of the rows that `publish` will make visible."""
        result = 0
        for _, rows in self._blocks(np.setdiff1d(np.arange(self.shape[0]), skipped)):
            result = zlib.crc32(rows.data, result)
        return result

    def publish(self, skipped: IntArray) -> None:
        """Publish the complete file atomically, without the rows in `skipped`."""
        if len(skipped):
            extracted = np.setdiff1d(np.arange(self.shape[0]), skipped)
            compact = self.complete.with_name(self.complete.name + ".tmp")
            start = _allocate(compact, (len(extracted), self.shape[1]), self.dtype)
            with _opened(compact, os.O_WRONLY) as file:
                done = 0
                for block, rows in self._blocks(extracted):
                    _write_at(file, start, np.arange(done, done + len(block)), rows)
                    done += len(block)
                os.fsync(file.fileno())
            compact.replace(self.complete)
        else:
            self._rows.replace(self.complete)
        remove(self.complete)

    def _blocks(self, indices: IntArray) -> Iterator[tuple[IntArray, npt.NDArray[np.floating]]]:
        """Iterate over blocks of rows (B, D) from the file."""
        size = max(1, _BLOCK_BYTES // max(1, self._row_bytes))
        with _opened(self._rows, os.O_RDONLY) as file:
            for at in range(0, len(indices), size):
                block = indices[at : at + size]
                rows = np.empty((len(block), self.shape[1]), dtype=self.dtype)
                for first, stop in _runs(block):
                    place = self._start + int(block[first]) * self._row_bytes
                    content = os.pread(file.fileno(), (stop - first) * self._row_bytes, place)
                    if len(content) < (stop - first) * self._row_bytes:
                        raise StoreError(f"{self._rows} ends too early", "Run the same command again.")
                    rows[first:stop] = np.frombuffer(content, dtype=self.dtype).reshape(-1, self.shape[1])
                yield block, rows

    def _mark(self, indices: IntArray, records: npt.NDArray[np.void]) -> None:
        with _opened(self._progress, self._flags) as file:
            _write_at(file, 0, indices, records)
            os.fsync(file.fileno())


def rows_file(complete: Path) -> Path:
    """Return the path of the rows, a .npy file of the final size from the start."""
    return complete.with_name(complete.name + ".partial")


def progress_file(complete: Path) -> Path:
    """Return the path of the states and checksums."""
    return complete.with_name(complete.name + ".progress")


def create(complete: Path, shape: tuple[int, int], dtype: np.dtype[np.floating]) -> None:
    """Create the files of a layer, with disk space for all rows."""
    rows, progress = rows_file(complete), progress_file(complete)
    progress.unlink(missing_ok=True)  # removed first, since it would apply to the new rows
    temporary = rows.with_name(rows.name + ".tmp")
    _allocate(temporary, shape, dtype)
    temporary.replace(rows)
    try:
        with naming(progress, shape[0] * RECORD.itemsize):
            temporary.write_bytes(bytes(shape[0] * RECORD.itemsize))
            temporary.replace(progress)
    except StoreError:
        for file in (temporary, rows):  # rows without states are of no use
            file.unlink(missing_ok=True)
        raise


def opened(complete: Path, rows: int, dtype: np.dtype[np.floating], *, alone: bool = True) -> PartialLayer | None:
    """Open the partial files of a layer; None if they are missing, damaged or for another number of rows."""
    try:
        with rows_file(complete).open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                return None
            shape, fortran, stored = np.lib.format.read_array_header_1_0(file)
            start, size = file.tell(), os.fstat(file.fileno()).st_size
        marks = progress_file(complete).stat().st_size
    except (FileNotFoundError, *UNREADABLE_HEADER):
        return None
    fits = len(shape) == 2 and shape[0] == rows and stored == dtype and not fortran
    if not fits or size != start + rows * shape[1] * dtype.itemsize or marks != rows * RECORD.itemsize:
        return None
    return PartialLayer(complete, (rows, shape[1]), dtype, start, alone=alone)


def remove(complete: Path) -> None:
    """Delete the partial files of a layer."""
    rows_file(complete).unlink(missing_ok=True)
    progress_file(complete).unlink(missing_ok=True)


@contextlib.contextmanager
def naming(file: Path, needed: int = 0) -> Iterator[None]:
    """Turn an OSError of writing into a StoreError that names the file, and on a full disk the space needed."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            remedy = "Give a folder of your own with --store." if error.errno in _NOT_ALLOWED else None
            raise StoreError(not_written(file, error), remedy) from error
        raise StoreError(
            not_written(file, error) + (f"; {needed:,} are needed" if needed else ""),
            "Free disk space, or give a folder on another disk with --store. Extracted features are "
            "kept; the same command continues.",
        ) from error


def _allocate(file: Path, shape: tuple[int, int], dtype: np.dtype[np.floating]) -> int:
    """Create a .npy file of zeros with reserved disk space, and return the offset of its rows."""
    size = shape[0] * shape[1] * dtype.itemsize
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        with naming(file, size), file.open("wb") as out:
            np.lib.format.write_array_header_1_0(out, header)
            start = out.tell()
            out.flush()
            reserve(out, start + size)
            # The file is still too short where no space could be reserved.
            out.truncate(start + size)
    except StoreError:
        file.unlink(missing_ok=True)
        raise
    return start


def reserve(file: BinaryIO, size: int) -> None:
    """Reserve disk space where system and file system can; elsewhere a full disk shows when rows are written."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise


@contextlib.contextmanager
def _opened(file: Path, flags: int) -> Iterator[BinaryIO]:
    mode = "rb" if flags == os.O_RDONLY else "r+b"
    with (
        naming(file),
        open(file, mode, buffering=0, opener=lambda path, _: os.open(path, flags | _PLAIN)) as opened_file,
    ):
        yield cast(BinaryIO, opened_file)


def _runs(indices: IntArray) -> list[tuple[int, int]]:
    """Return (first, stop) of the runs of consecutive indices."""
    cuts = [0, *(np.flatnonzero(np.diff(indices) != 1) + 1).tolist(), len(indices)]
    return [(first, stop) for first, stop in itertools.pairwise(cuts) if stop > first]


def _write_at(file: BinaryIO, start: int, indices: IntArray, rows: npt.NDArray[np.generic]) -> None:
    """Write rows of equal size at their offsets after `start`."""
    for first, stop in _runs(indices):
        content = memoryview(rows[first:stop].tobytes())
        place = start + int(indices[first]) * rows[first].nbytes
        # pwrite may write less than it is given.
        while content:
            written = os.pwrite(file.fileno(), content, place)
            content, place = content[written:], place + written
