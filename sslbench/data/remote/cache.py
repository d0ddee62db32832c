"""Size-bounded download cache, shared by any number of processes.

A copy appears atomically. Beside `x.tar` lie `.x.tar.used`, locked (shared) by every reader and touched at each use,
and `.x.tar.copying`, locked by the process that downloads it. A download ends in `.part`, has its final size from the
start where that is known, and is locked by its writer; an unlocked one was left by a killed process. `.room` is locked
while sizes are added up. Locks end with their process; their files stay, since removing a file that others wait for
would give two of them the same lock.
"""

import contextlib
import dataclasses
import functools
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sslbench import paths
from sslbench.errors import DataError, UsageError
from sslbench.locks import lock

DEFAULT_LIMIT = "50GB"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_STEP = 64 << 20
"""Maximum number of bytes reserved ahead for a download of unknown size."""
_PATIENCE_S = 60.0
"""Longer than a busy disk or processor delays a reader that is about to release its copy."""
_RECENT = 4
_log = logging.getLogger("sslbench")


def folder() -> Path:
    """Return the folder of the download cache."""
    return paths.cache_dir() / "remote"


def limit() -> int:
    """Return $SSLBENCH_REMOTE_CACHE in bytes; 0: copies are removed after use.

    Raises:
        UsageError: its value is no size.
    """
    return _size(os.environ.get("SSLBENCH_REMOTE_CACHE", DEFAULT_LIMIT))


def bound() -> int:
    """Return the maximum size of the cache in bytes; with a limit of 0, of the copies in use."""
    return limit() or _size(DEFAULT_LIMIT)


def _size(text: str) -> int:
    match = re.fullmatch(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)B?", text.strip().upper())
    if match is None:
        raise UsageError(f"$SSLBENCH_REMOTE_CACHE is '{text}', which is not a size", "Such as 50GB, 500MB, or 0.")
    return int(float(match["number"]) * _UNITS[match["unit"]])


class Pin:
    """Protection of a copy from eviction while the pin exists, in this process or in one forked from it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with writable(path.parent):
            self._mark = _beside(path, "used").open("ab")
        lock(self._mark, shared=True)
        os.utime(self._mark.fileno())

    def __del__(self) -> None:
        if hasattr(self, "_mark") and not self._mark.closed:
            self._mark.close()
            with contextlib.suppress(UsageError):  # the environment variable may have changed
                if limit() == 0:
                    remove_unused(self._path)


@functools.lru_cache(maxsize=_RECENT)
def recent_pin(path: Path) -> Pin:
    """Return a pin that lasts until the process has used a few other copies since."""
    return Pin(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[IO[bytes]]:
    """Hold the download lock of a copy, and return the locked file.

    Raises:
        UsageError: the folder cannot be written.
    """
    with _exclusive(_beside(path, "copying")) as lock:
        yield lock


@contextlib.contextmanager
def _exclusive(file: Path) -> Iterator[IO[bytes]]:
    with writable(file.parent):
        handle = file.open("a+b")
    with handle:
        lock(handle)
        yield handle


@contextlib.contextmanager
def writable(place: Path) -> Iterator[None]:
    """Make a folder, and turn errors of writing inside the block into a message for the user.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(
            f"the cache folder {place} cannot be written: {error.strerror}",
            "Set $SSLBENCH_CACHE to a folder that can be written.",
        ) from error


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}")


def remove_unused(path: Path) -> bool:
    """Remove a copy unless it is in use, and return whether it was removed."""
    with contextlib.suppress(OSError), _beside(path, "used").open("ab") as mark:
        if lock(mark, wait=False):
            path.unlink(missing_ok=True)
            return True
    return False


def remove_all_unused() -> None:
    """Remove every copy that is not in use."""
    for copy in _survey().copies:
        remove_unused(copy)


class PartialCopy:
    """Copy being written; its space in the cache is reserved before its bytes arrive."""

    def __init__(self, file: IO[bytes], name: str, size: int | None) -> None:
        self._file, self._name, self._reserved, self._written = file, name, 0, 0
        if size is not None:
            self._reserve(size)

    def write(self, chunk: bytes) -> None:
        """Append a chunk.

        Raises:
            DataError: the cache is too small.
            OSError: the disk is.
        """
        missing = self._written + len(chunk) - self._reserved
        if missing > 0:
            ahead = min(_STEP, self._written // 4, max(bound() - self._reserved - missing, 0))
            self._reserve(missing + ahead)
        self._file.write(chunk)
        self._written += len(chunk)

    def finish(self) -> None:
        """Release the reserved space that was not needed."""
        self._file.flush()
        self._file.truncate(self._written)

    def _reserve(self, more: int) -> None:
        if self._reserved + more > bound():
            raise DataError(
                f"{self._name} has more than {self._reserved + more - 1:,} bytes, and the cache may hold {bound():,}",
                "Raise $SSLBENCH_REMOTE_CACHE (such as 200GB) if these are the data you expect.",
            )
        since = time.monotonic()
        while True:
            with _exclusive(folder() / ".room"):
                missing, writers = _evict(more, Path(self._file.name))
                if missing <= 0:
                    self._reserved += more
                    os.ftruncate(self._file.fileno(), self._reserved)  # the size that other processes count
                    return
            if writers:
                since = time.monotonic()
            elif time.monotonic() - since > _PATIENCE_S:
                raise DataError(
                    f"{self._name} does not fit into the cache of {bound():,} bytes: all other copies are in use",
                    f"Raise $SSLBENCH_REMOTE_CACHE to {bound() + missing:,} at least.",
                )
            time.sleep(0.02)


@contextlib.contextmanager
def writing(path: Path, name: str, size: int | None, mtime_ns: int) -> Iterator[PartialCopy]:
    """Write a new copy, which appears atomically at the end of the block, and not at all after an error.

    Args:
        path: of the copy.
        name: name of the file in messages.
        size: in bytes; None if unknown.
        mtime_ns: modification time to set.

    Raises:
        DataError: the cache or the disk is too small.
    """
    with contextlib.ExitStack() as stack:
        if size is None:  # one at a time: two growing copies could deadlock
            stack.enter_context(_exclusive(folder() / ".growing"))
        with _exclusive(folder() / ".room"):  # otherwise it could be removed as a left-over before it is locked
            file = stack.enter_context(
                tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False)
            )
            lock(file)
        try:
            part = PartialCopy(file, name, size)
            yield part
            part.finish()
            os.utime(file.name, ns=(mtime_ns, mtime_ns))
            Path(file.name).replace(path)
        except OSError as error:
            Path(file.name).unlink(missing_ok=True)
            raise DataError(
                f"{name} cannot be copied: {paths.not_written(path.parent, error)}",
                "Free some, or set $SSLBENCH_CACHE to a folder on another disk.",
            ) from error
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


@dataclasses.dataclass
class _Contents:
    """Contents of the cache folder."""

    total: int = 0
    copies: dict[Path, tuple[int, int]] = dataclasses.field(default_factory=dict)  # last use, size
    parts: list[Path] = dataclasses.field(default_factory=list)


def _survey() -> _Contents:
    found = _Contents()
    for place in folder().glob("*/*"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            stat = place.stat()
            found.total += stat.st_size
            if place.suffix == ".part" and place.name.startswith("."):
                found.parts.append(place)
            elif not place.name.startswith(".") and place.suffix != ".info":
                mark = _beside(place, "used")
                last = mark.stat().st_mtime_ns if mark.exists() else stat.st_mtime_ns
                found.copies[place] = (last, stat.st_size)
    return found


def _evict(more: int, own: Path) -> tuple[int, bool]:
    """Evict least recently used copies until `more` bytes fit; return the missing bytes and whether others write."""
    found = _survey()
    writers = False
    for part in found.parts:
        if part == own:
            continue
        if (size := _remove_left_over(part)) is None:
            writers = True
        else:
            found.total -= size
    missing = found.total + more - bound()
    for copy, (_, size) in sorted(found.copies.items(), key=lambda item: item[1][0]):
        if missing <= 0:
            break
        if remove_unused(copy):
            missing -= size
            _log.debug("removed %s from the cache, which is full", copy)
    return missing, writers


def _remove_left_over(part: Path) -> int | None:
    """Remove the partial download of a killed process and return its size; None if it is being written."""
    try:
        with part.open("r+b") as file:
            if not lock(file, wait=False):
                return None
            size = os.fstat(file.fileno()).st_size
            part.unlink(missing_ok=True)
            return size
    except FileNotFoundError:
        return 0
    except OSError:
        return None
