"""Remote files and compressed tar files, read through a download cache that the processes of a machine share.

$SSLBENCH_REMOTE_CACHE bounds the cache (50GB), least recently used files first out; with 0 it is emptied when the last
process that uses it ends. Most files are downloaded when they are opened, and must fit together. Tar shards are
downloaded when an image in them is read, once per machine, so that together they may exceed the cache.
"""

# fsspec's own `filecache` does not serve here: it has neither a bound nor locks, a reader can meet a file that another
# process is writing, and files behind http never change for it.

import atexit
import bz2
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import importlib
import io
import json
import logging
import lzma
import os
import re
import sys
import time
import urllib.parse
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

from sslbench import paths
from sslbench.data.hashes import Stamp
from sslbench.data.remote.urls import RemoteFile, described, refuse_unreachable
from sslbench.data.wording import counted, one_line, warn_once
from sslbench.errors import DataError, UnreachableError, UsageError
from sslbench.locks import lock
from sslbench.text import without_secrets

__all__ = ["SHARDS", "Origin", "is_copy", "is_url", "local_copies", "opened", "origin_of", "refuse_unreachable"]

SHARDS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Suffixes of shards, which are downloaded when they are read."""

PAUSES_S = (1.0, 3.0, 9.0)
"""Seconds before each retry of a broken transfer; after the last one it fails."""

_DEFAULT_LIMIT = 50 * 10**9
_HEAD_BYTES = 6
_AT_ONCE = 16
_CHUNK = 1 << 20
_STEP = 64 << 20  # most bytes that a download of unknown size reserves ahead
_PROGRESS_S = 10.0
_PATIENCE_S = 60.0  # longer than a busy disk or processor delays a reader that is about to release its copy
_ORIGINS: dict[str, "Origin"] = {}  # of the copies that this process has asked for, by path
_HELD: dict[str, IO[bytes]] = {}  # copies that this process opens by their path, locked (shared)
_log = logging.getLogger("sslbench")


class _TransferError(Exception):
    """Connection that broke before the end of the file."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """Remote or compressed file in one state, and the place of its local copy.

    Attributes:
        url: of the file, without secrets; for a compressed local file its path.
        state: text that changes with the file's content (ETag, time and size).
        size: bytes of the (packed) file; None if the server does not say.
        place: path of the copy.
        address: URL to fetch it from, with its secrets, which never go to disk.
    """

    url: str
    state: str
    size: int | None
    place: str
    address: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name that no other file has, the same on every machine: URLs may differ in their hidden parts only."""
        return f"{Path(self.place).parent.name}/{self.url}"

    @property
    def stamp(self) -> Stamp:
        """Stamp of the file, the same on every machine."""
        number = int.from_bytes(hashlib.sha256(f"{self.name}\0{self.state}".encode()).digest()[:12])
        # The copy's modification time tells an outdated one: even whole seconds, which every disk can store.
        return self.size or 0, 2 * (number % 2**29) * 10**9, 0, number >> 33


def is_url(spec: str) -> bool:
    """Return whether the string is a URL such as s3://... or https://..."""
    return re.fullmatch(r"[A-Za-z][\w+.-]*://.+", spec, re.DOTALL) is not None


def is_copy(path: Path) -> bool:
    """Return whether a path is that of a copy, downloaded or not, that this process has asked for."""
    return str(path) in _ORIGINS


def folder() -> Path:
    """Return the folder of the download cache."""
    return paths.cache_dir() / "remote"


def limit() -> int:
    """Return $SSLBENCH_REMOTE_CACHE in bytes; 0: the cache is emptied after use."""
    return paths.size_variable("SSLBENCH_REMOTE_CACHE", str(_DEFAULT_LIMIT))


def bound() -> int:
    """Return the maximum size of the cache in bytes."""
    return limit() or _DEFAULT_LIMIT


def local_copies(urls: Sequence[str]) -> list[Path]:
    """Return local copies of remote files, downloaded if they are missing or outdated.

    They must fit into the cache together, and stay there while this process runs. File names are kept, and files of one
    remote folder share a local folder.
    """
    origins = _origins(urls)
    total = sum(origin.size or 0 for origin in origins)
    if total > bound():
        raise DataError(
            f"{counted(len(urls), 'file')} of {total:,} bytes do not fit into the cache of {bound():,}",
            "Raise $SSLBENCH_REMOTE_CACHE (such as 200GB), or copy the data to a folder.",
        )
    for origin in origins:
        while True:
            _copy(origin).close()
            with _locked(folder() / ".room"):  # no copy is evicted meanwhile
                if (copy := _current(origin)) is not None:
                    lock(copy, shared=True)
                    _HELD[origin.place] = copy
                    break
    return [Path(origin.place) for origin in origins]


def shards(urls: Sequence[str]) -> list[Path]:
    """Return the future paths of the local copies of shards; nothing is downloaded yet (see `origin_of`)."""
    origins = _origins(urls)
    largest = max(origins, key=lambda origin: origin.size or 0)
    if (largest.size or 0) > bound():
        raise DataError(
            f"{largest.url} has {largest.size:,} bytes and the cache holds {bound():,}",
            "Raise $SSLBENCH_REMOTE_CACHE (such as 200GB).",
        )
    total = sum(origin.size or 0 for origin in origins)
    if total > bound():
        _log.info(
            f"{counted(len(origins), 'shard')} of {total:,} bytes do not fit into the cache of {bound():,} at once: "
            "each is downloaded when it is needed"
        )
    return [Path(origin.place) for origin in origins]


def origin_of(path: Path) -> Origin | None:
    """Return the origin of a copy, or of the unpacked copy of a compressed local file; None for a plain local file."""
    if is_copy(path):
        return _ORIGINS[str(path)]
    try:
        with path.open("rb") as file:
            head, stat = file.read(_HEAD_BYTES), os.fstat(file.fileno())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if _unpacker(head) is None:
        return None
    url = os.path.abspath(path)  # noqa: PTH100 - links stay as they are
    state = json.dumps([stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino])
    return Origin(url, state, stat.st_size, str(_place_of(f"unpacked://{urllib.parse.quote(url)}")))


def shown(spec: str, origin: Origin | None) -> str:
    """Return the URL, with its braces, of a location of shards whose first one has this origin; else the location."""
    if origin is None or not is_url(origin.url):
        return spec
    return f"{origin.url.partition('?')[0].rpartition('/')[0]}/{Path(spec).name}"


def was_fetched(url: str) -> bool:
    """Return whether there is a copy of a URL, current or outdated."""
    return _place_of(url).is_file()


@contextlib.contextmanager
def opened(origin: Origin) -> Iterator[int]:
    """Open the copy as a file descriptor, downloaded if it is missing; once open it is readable though evicted."""
    with _copy(origin) as copy:
        yield copy.fileno()


@contextlib.contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Hold the lock of a file that several processes may build; one process at a time has it."""
    with _locked(file.with_name(f".{file.name}.lock")):
        yield


def _origins(urls: Sequence[str]) -> list[Origin]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        files = list(pool.map(_ask, urls))
    origins = [Origin(without_secrets(f.url), f.state, f.size, str(_place_of(f.url)), f.url) for f in files]
    for origin in origins:
        _ORIGINS[origin.place] = origin
        about = json.dumps({"url": origin.url, "state": origin.state, "size": origin.size})
        info = _beside(Path(origin.place), "info")  # stays when the copy is evicted: its index serves without a network
        with _writable(info.parent), paths.temporary_beside(info) as new:
            new.write_text(about, encoding="utf-8")
            new.replace(info)
    return origins


def _ask(url: str) -> RemoteFile:
    """Ask the server for a file's size and state; if it cannot be reached, return those at its last answer."""
    try:
        return described(url)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {url}") from error
    except OSError as error:
        problem = error
    try:
        about = json.loads(_beside(_place_of(url), "info").read_text(encoding="utf-8"))
        size, state = about["size"], about["state"]
    except (OSError, ValueError, KeyError):
        raise UnreachableError(f"{url} cannot be reached: {one_line(problem)}") from problem

    def fail() -> Any:
        raise OSError(f"it cannot be reached: {one_line(problem)}") from problem

    warn_once(f"{url} cannot be reached ({one_line(problem)}): the cached copy is used")
    return RemoteFile(url, size, state, fail)


def _unchanged(origin: Origin) -> RemoteFile:
    """Ask the server again, and refuse a file that has changed."""
    file = _ask(origin.address or origin.url)
    if file.state != origin.state:
        raise DataError(f"{origin.url} has changed since it was opened", "Run the command again.")
    return file


def _place_of(url: str) -> Path:
    """Return the path of the local copy of a URL; files of one remote folder share a folder and keep their names."""
    parts = urllib.parse.urlsplit(url)
    above, _, name = parts.path.rpartition("/") if parts.path.strip("/") else ("", "", parts.hostname or "")
    key = f"{parts.scheme}://{parts.netloc}{above}?{parts.query}"
    name = urllib.parse.unquote(name).replace("/", "_")
    if not name or name in (".", ".."):
        raise UsageError(f"{url} names no file")
    return folder() / hashlib.sha256(key.encode()).hexdigest()[:16] / name


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}")


@contextlib.contextmanager
def _writable(place: Path) -> Iterator[None]:
    """Make a folder, and turn errors of writing inside the block into a message for the user."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(
            f"the cache folder {place} cannot be written: {error.strerror}",
            "Set $SSLBENCH_CACHE to a folder that can be written.",
        ) from error


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[IO[bytes]]:
    # Lock files stay: removing one that others wait for would give two of them the same lock.
    with _writable(file.parent):
        handle = file.open("a+b")
    with handle:
        lock(handle)
        yield handle


def _copy(origin: Origin) -> IO[bytes]:
    """Open the copy; if it is missing or outdated one process downloads it, and the others wait."""
    _join_users(folder())
    copy = _current(origin)
    if copy is None:
        with _locked(_beside(Path(origin.place), "lock")) as mark:
            copy = _current(origin)
            if copy is None:
                # Reading shard by shard downloads the same ones every epoch; only the first time is told.
                level = logging.DEBUG if os.fstat(mark.fileno()).st_size else logging.INFO
                copy = _fetch(origin, level)
                mark.write(b"1")
    return copy


def _current(origin: Origin) -> IO[bytes] | None:
    """Open the copy; None if it is missing or outdated."""
    try:
        copy = Path(origin.place).open("rb", buffering=0)  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        return None
    modified = os.fstat(copy.fileno()).st_mtime_ns
    if modified != origin.stamp[1]:
        copy.close()
        return None
    with contextlib.suppress(OSError, TypeError):  # another user's file; a system that knows no times of open files
        os.utime(copy.fileno(), ns=(time.time_ns(), modified))  # by which the least recently used one is chosen
    return copy


def _fetch(origin: Origin, level: int) -> IO[bytes]:
    """Download or unpack the copy, again after errors of the network, and open it."""
    size = f" ({origin.size:,} bytes)" if is_url(origin.url) and origin.size is not None else ""
    _log.log(level, "%s %s%s", "copying" if is_url(origin.url) else "unpacking", origin.url, size)
    pauses = PAUSES_S if is_url(origin.url) else ()
    for pause in (*pauses, None):
        try:
            return _attempt(origin)
        except _TransferError as error:
            if pause is None:
                tried = f" (tried {counted(len(pauses) + 1, 'time')})" if pauses else ""
                problem = f"{origin.url} cannot be read: {error}{tried}"
                raise UnreachableError(problem, "Try again when it can be reached.") from error
            _log.warning("%s: %s; trying again in %g s", origin.url, error, pause)
            time.sleep(pause)
    raise AssertionError


def _attempt(origin: Origin) -> IO[bytes]:
    name, size, remote = origin.url, origin.size, is_url(origin.url)
    unpack = not remote or name.partition("?")[0].lower().endswith(SHARDS)
    open_stream: Callable[[], Any] = _unchanged(origin).open if remote else functools.partial(Path(name).open, "rb")
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(contextlib.closing(open_stream()))
        except Exception as error:  # fsspec's packages have errors of their own
            raise _TransferError(one_line(error)) from error
        raw = _Raw(stream)
        buffered = io.BufferedReader(raw, _CHUNK)
        unpacker = _unpacker(buffered.peek(_HEAD_BYTES)) if unpack else None
        try:
            source = unpacker(buffered) if unpacker else buffered
        except ImportError as error:
            remedy = "pip install zstandard; or unpack it: zstd -d"
            raise DataError(f"unpacking {name} needs the package zstandard", remedy) from error
        copy = stack.enter_context(_new_copy(origin, None if unpacker else size))
        told = time.monotonic()
        while chunk := _read(source, raw, name, size):
            copy.write(chunk)
            if time.monotonic() - told > _PROGRESS_S:
                told = time.monotonic()
                _log.info("%s: %s of %s MB", name, f"{raw.count / 1e6:,.0f}", f"{size / 1e6:,.0f}" if size else "?")
        if size is not None and raw.count < size:
            raise _TransferError(f"the transfer ended after {raw.count:,} of {size:,} bytes")
        if remote:
            _unchanged(origin)  # an object may have been replaced by one of equal size meanwhile
        elif origin_of(Path(name)) != origin:
            raise DataError(f"{name} changed while it was read", "Try again when it is complete.")
        return copy.finish()


class _Raw(io.RawIOBase):
    """Stream that counts its bytes and marks its own errors, to tell them from those of a damaged archive."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.count = stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            chunk = self._stream.read(len(buffer))
        except Exception as error:
            raise _TransferError(one_line(error)) from error
        buffer[: len(chunk)] = chunk
        self.count += len(chunk)
        return len(chunk)


def _read(source: IO[bytes], raw: _Raw, name: str, size: int | None) -> bytes:
    # zstandard is optional, and its error has no base class in common with the others.
    zstd_error = getattr(sys.modules.get("zstandard"), "ZstdError", EOFError)
    try:
        return source.read(_CHUNK)
    except (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, zstd_error) as error:
        # Nothing more comes though bytes are missing: the connection broke, and the file need not be damaged.
        if size is not None and raw.count < size and not raw.read(1):
            raise _TransferError(f"the transfer ended after {raw.count:,} of {size:,} bytes") from error
        raise DataError(
            f"{name} is damaged or truncated: {one_line(error)}", "Download or create the file again."
        ) from error


def _open_zstd(packed: Any) -> IO[bytes]:
    zstandard: Any = importlib.import_module("zstandard")
    # By default the reader ends after the first frame, and programs that pack in parallel write several.
    return cast(IO[bytes], zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True))


# First bytes of a compressed file -> function that unpacks it.
_UNPACKERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}


def _unpacker(head: bytes) -> Callable[[Any], Any] | None:
    return next((unpacker for magic, unpacker in _UNPACKERS.items() if head.startswith(magic)), None)


class _NewCopy:
    """Copy being written; its bytes in the cache are reserved before they arrive."""

    def __init__(self, path: Path, origin: Origin, size: int | None) -> None:
        self._path, self._origin, self._reserved, self._written = path, origin, 0, 0
        self._file = path.open("r+b")
        if size:
            self._reserve(size)

    def write(self, chunk: bytes) -> None:
        """Append a chunk; a file of unknown size grows within the bound."""
        needed = self._written + len(chunk)
        if needed > self._reserved:
            self._reserve(max(needed, min(needed + min(_STEP, self._written // 4), bound())))
        self._file.write(chunk)
        self._written = needed

    def finish(self) -> IO[bytes]:
        """Put the copy in its place, and open it."""
        self._file.truncate(self._written)
        self._file.close()
        modified = self._origin.stamp[1]
        os.utime(self._path, ns=(time.time_ns(), modified))
        copy = self._path.open("rb", buffering=0)  # before others can evict it
        self._path.replace(self._origin.place)
        return copy

    def _reserve(self, size: int) -> None:
        """Evict the least recently used copies until the file fits; wait while other processes write theirs."""
        name = self._origin.url
        if size > bound():
            raise DataError(
                f"{name} has more than {size - 1:,} bytes, and the cache may hold {bound():,}",
                "Raise $SSLBENCH_REMOTE_CACHE (such as 200GB) if these are the data you expect.",
            )
        since = time.monotonic()
        while True:
            with _locked(folder() / ".room"):
                missing, writers = _evict(size - self._reserved, self._path)
                if missing <= 0:
                    self._reserved = size
                    self._file.truncate(size)  # the size that other processes count
                    return
            if writers:
                since = time.monotonic()
            elif time.monotonic() - since > _PATIENCE_S:
                raise DataError(
                    f"{name} does not fit into the cache of {bound():,} bytes: all other copies are in use",
                    f"Raise $SSLBENCH_REMOTE_CACHE to {bound() + missing:,} at least.",
                )
            time.sleep(0.02)


@contextlib.contextmanager
def _new_copy(origin: Origin, size: int | None) -> Iterator[_NewCopy]:
    """Yield a copy to write, which is removed unless it is finished."""
    path = Path(origin.place)
    with contextlib.ExitStack() as stack:
        if size is None:  # one at a time: two growing copies could wait for each other
            stack.enter_context(_locked(folder() / ".growing"))
        try:
            with _writable(path.parent):
                new = stack.enter_context(paths.temporary_beside(path))
            yield _NewCopy(new, origin, size)
        except OSError as error:
            raise DataError(
                f"{origin.url} cannot be copied: {paths.not_written(path.parent, error)}",
                "Free some, or set $SSLBENCH_CACHE to a folder on another disk.",
            ) from error


def _evict(more: int, own: Path) -> tuple[int, bool]:
    """Evict least recently used copies until `more` bytes fit; return the missing bytes and whether others write."""
    total, writers = 0, False
    copies: list[tuple[int, int, Path]] = []
    for path in folder().glob("*/*"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            stat = path.stat()
            total += stat.st_size
            if not path.name.startswith("."):
                copies.append((stat.st_atime_ns, stat.st_size, path))
            elif path.suffix == ".part" and path != own:
                if _removed(path):  # its writer was killed: it would hold a lock
                    total -= stat.st_size
                else:
                    writers = True
    for _, size, path in sorted(copies):
        if total + more <= bound():
            break
        if _removed(path):
            total -= size
    return total + more - bound(), writers


def _removed(path: Path) -> bool:
    """Remove a file unless a process has locked it, and return whether it was removed."""
    with contextlib.suppress(OSError), path.open("r+b") as file:
        if lock(file, wait=False):
            path.unlink(missing_ok=True)
            return True
    return False


@functools.cache
def _join_users(place: Path) -> None:
    """Count this process and those forked from it among the users of the cache: the last one may empty it."""
    with _writable(place):
        users = (place / ".users").open("ab")
    lock(users, shared=True)
    atexit.register(_leave_users, users)


def _leave_users(users: IO[bytes]) -> None:
    users.close()
    with contextlib.suppress(OSError, UsageError), Path(users.name).open("ab") as last:
        if limit() == 0 and lock(last, wait=False):
            for copy in Path(users.name).parent.glob("*/[!.]*"):
                copy.unlink()
