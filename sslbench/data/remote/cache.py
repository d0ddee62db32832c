"""The folder of copies of data that lie elsewhere: never above its bound, shared by any number of processes.

A copy is there whole or not at all. Beside `x.tar` lie `.x.tar.used`, locked by everyone who reads the copy and as old
as the last use, and `.x.tar.copying`, locked by the one who makes it. What is being written ends in `.part`, has its
final size from the start where that is known, and is locked by its writer; one that is not is what a killed process
left. `.room` is locked while sizes are added up. Locks end with their process, however it ends, and their files stay:
removing a file that others may be waiting for would give two of them the same lock.
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

DEFAULT_LIMIT = "50GB"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_STEP = 64 << 20
"""The most that is reserved ahead for a copy whose size is not known before."""
_PATIENCE_S = 10.0
_HELD = 4
_log = logging.getLogger("sslbench")


def folder() -> Path:
    """Where the copies lie, in folders of their own."""
    return paths.cache_dir() / "remote"


def limit() -> int:
    """$SSLBENCH_REMOTE_CACHE in bytes; 0: nothing is kept that nobody uses.

    Raises:
        UsageError: it is no size.
    """
    return _size(os.environ.get("SSLBENCH_REMOTE_CACHE", DEFAULT_LIMIT))


def bound() -> int:
    """Bytes that the copies never exceed; where nothing is kept, what is in use may not either."""
    return limit() or _size(DEFAULT_LIMIT)


def _size(text: str) -> int:
    match = re.fullmatch(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)B?", text.strip().upper())
    if match is None:
        raise UsageError(f"$SSLBENCH_REMOTE_CACHE is '{text}', which is no size", "Such as 50GB, 500MB, or 0.")
    return int(float(match["number"]) * _UNITS[match["unit"]])


class Pin:
    """A copy is not removed while one of its pins exists, in this process or in one forked from it."""

    def __init__(self, path: Path) -> None:
        import fcntl

        self._path = path
        with writable(path.parent):
            self._mark = _beside(path, "used").open("ab")
        fcntl.flock(self._mark, fcntl.LOCK_SH)
        os.utime(self._mark.fileno())

    def __del__(self) -> None:
        if hasattr(self, "_mark") and not self._mark.closed:
            self._mark.close()
            with contextlib.suppress(UsageError):  # of a limit that was changed meanwhile
                if limit() == 0:
                    remove_unused(self._path)


@functools.lru_cache(maxsize=_HELD)
def held(path: Path) -> Pin:
    """A pin that lasts until the process has used other copies since, for when nothing else keeps them."""
    return Pin(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[IO[bytes]]:
    """One process at a time makes the copy; gives the file that is locked.

    Raises:
        UsageError: the folder cannot be written.
    """
    with _exclusive(_beside(path, "copying")) as lock:
        yield lock


@contextlib.contextmanager
def _exclusive(file: Path) -> Iterator[IO[bytes]]:
    import fcntl

    with writable(file.parent):
        lock = file.open("a+b")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


@contextlib.contextmanager
def writable(place: Path) -> Iterator[None]:
    """Makes a folder; what fails in it is the user's to mend.

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
    """Removes a copy unless somebody uses it; whether it did."""
    import fcntl

    with contextlib.suppress(OSError), _beside(path, "used").open("ab") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return True
    return False


def remove_all_unused() -> None:
    """Removes every copy that nobody uses."""
    for copy in _survey().copies:
        remove_unused(copy)


class Part:
    """A copy that is being written, which has its room before its bytes come."""

    def __init__(self, file: IO[bytes], name: str, size: int | None) -> None:
        self._file, self._name, self._reserved, self._written = file, name, 0, 0
        if size is not None:
            self._reserve(size)

    def write(self, chunk: bytes) -> None:
        """Appends.

        Raises:
            DataError: the cache or the disk is too small for it.
        """
        missing = self._written + len(chunk) - self._reserved
        if missing > 0:
            ahead = min(_STEP, self._written // 4, max(bound() - self._reserved - missing, 0))
            self._reserve(missing + ahead)
        try:
            self._file.write(chunk)
        except OSError as error:
            raise DataError(f"{self._name} cannot be copied to {folder()}: {error.strerror}") from error
        self._written += len(chunk)

    def finish(self) -> None:
        """Gives back the room that was not needed."""
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
                    os.ftruncate(self._file.fileno(), self._reserved)  # counted by others from now on
                    return
            if writers:
                since = time.monotonic()
            elif time.monotonic() - since > _PATIENCE_S:
                raise DataError(
                    f"{self._name} does not fit into the cache of {bound():,} bytes: all else in it is in use",
                    f"Raise $SSLBENCH_REMOTE_CACHE to {bound() + missing:,} at least.",
                )
            time.sleep(0.02)


@contextlib.contextmanager
def writing(path: Path, name: str, size: int | None, mtime_ns: int) -> Iterator[Part]:
    """A new copy, which appears whole, or not at all if this ends in an error.

    Args:
        path: of the copy.
        name: of what is copied, for messages.
        size: its bytes; None if they are not known.
        mtime_ns: which time the copy is given.

    Raises:
        DataError: the cache or the disk is too small for it.
    """
    import fcntl

    with contextlib.ExitStack() as stack:
        if size is None:  # one at a time: two that grow could wait for each other
            stack.enter_context(_exclusive(folder() / ".growing"))
        with _exclusive(folder() / ".room"):  # nobody takes it for a left-over before it is locked
            file = stack.enter_context(
                tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False)
            )
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            part = Part(file, name, size)
            yield part
            part.finish()
            os.utime(file.name, ns=(mtime_ns, mtime_ns))
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


@dataclasses.dataclass
class _Found:
    """What lies in the folder."""

    total: int = 0
    copies: dict[Path, tuple[int, int]] = dataclasses.field(default_factory=dict)  # last use, size
    parts: list[Path] = dataclasses.field(default_factory=list)


def _survey() -> _Found:
    found = _Found()
    for place in folder().glob("*/*"):
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
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
    """Removes what was used longest ago until `more` bytes fit; how many are still missing, whether others write."""
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
    """Removes what a killed process was writing; its size, or None if it is being written."""
    import fcntl

    try:
        with part.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(file.fileno()).st_size
            part.unlink(missing_ok=True)
            return size
    except FileNotFoundError:
        return 0
    except OSError:
        return None
