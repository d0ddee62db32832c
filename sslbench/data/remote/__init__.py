"""Remote files and compressed shards, read through a size-bounded download cache (least recently used first out).

The cache is the folder `remote` of the cache folder. $SSLBENCH_REMOTE_CACHE bounds its size (default 50GB). A copy in
use is never evicted. With 0, a copy is removed when the last process stops using it.

Most files are downloaded when they are opened, and must fit into the cache together. Tar shards are downloaded when an
image in them is read, once per machine, so that they may exceed the cache together.
"""

import atexit
import contextlib
import functools
import json
import logging
import os
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sslbench.data.once import warn_once
from sslbench.data.remote import cache, transfer
from sslbench.data.remote.origin import Origin, is_url, known_of, place_of, write_info
from sslbench.data.remote.urls import RemoteFile, described, refuse_unreachable
from sslbench.data.wording import counted
from sslbench.errors import DataError, UnreachableError, UsageError
from sslbench.text import without_secrets

__all__ = [
    "SHARDS",
    "Origin",
    "exclusive",
    "is_copy",
    "is_url",
    "local_copies",
    "opened",
    "origin_of",
    "place_of",
    "refuse_unreachable",
    "shards",
]

SHARDS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Suffixes of shards, which are downloaded when they are read."""

_AT_ONCE = 16
_OFTEN = 5  # downloads of one shard within _SOON_S that cause a warning
_SOON_S = 600.0
_ADDRESSES: dict[str, str] = {}
"""URLs of the copies that this process has asked for, by the place of the copy: files lack their secrets."""
_log = logging.getLogger("sslbench")


def local_copies(urls: list[str]) -> list[Path]:
    """Return local copies of remote files, downloaded if they are missing or outdated.

    Args:
        urls: of files that must fit into the cache together; they stay there while this process runs.

    Returns:
        One path per URL, with the same file name; files of one remote folder share a local folder.

    Raises:
        UsageError: the URL scheme is unknown or its package is missing, or the file does not exist.
        DataError: the file cannot be reached, the transfer fails, or the cache is too small.
    """
    files = _described(urls)
    total = sum(file.size or 0 for file in files)
    if total > cache.bound():
        raise DataError(
            f"{counted(len(urls), 'file')} of {total:,} bytes do not fit into the cache of {cache.bound():,}",
            "Raise $SSLBENCH_REMOTE_CACHE (such as 200GB), or copy the data to a folder.",
        )
    for file in files:
        _process_pin(Path(file.place))
        with opened(file):
            pass
    return [Path(file.place) for file in files]


def shards(urls: list[str]) -> list[Path]:
    """Return the future paths of the local copies of shards; nothing is downloaded yet (see `origin_of`).

    Raises:
        UsageError: the URL scheme is unknown or its package is missing, or the file does not exist.
        DataError: a shard cannot be reached, or is larger than the cache.
    """
    files = _described(urls)
    largest = max(files, key=lambda file: file.size or 0)
    if (largest.size or 0) > cache.bound():
        raise DataError(
            f"{largest.url} has {largest.size:,} bytes and the cache holds {cache.bound():,}",
            "Raise $SSLBENCH_REMOTE_CACHE (such as 200GB).",
        )
    total = sum(file.size or 0 for file in files)
    if total > cache.bound():
        _log.info(
            "%s of %s bytes do not fit into the cache of %s at once: each is downloaded when it is needed",
            counted(len(files), "shard"),
            f"{total:,}",
            f"{cache.bound():,}",
        )
    for file in files:
        write_info(file)
    return [Path(file.place) for file in files]


def is_copy(path: Path) -> bool:
    """Return whether a path belongs to the download cache."""
    return path.parent.parent == cache.folder()


def origin_of(path: Path) -> Origin | None:
    """Return the origin of a cached copy, or of the unpacked copy of a compressed local file.

    Returns:
        None for a plain local file.

    Raises:
        DataError: the file cannot be read.
    """
    _clean_up_at_exit()  # in this process, since forked ones may end without running exit handlers
    if is_copy(path):
        known = known_of(path)
        address = _ADDRESSES.get(str(path), "")
        return Origin(known["url"], known["state"], known["size"], str(path), address) if known else None
    try:
        with path.open("rb") as file:
            head = file.read(transfer.HEAD_BYTES)
            stat = os.fstat(file.fileno())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if transfer.compression(head) is None:
        return None
    url = os.path.abspath(path)  # noqa: PTH100 - links stay as they are
    state = json.dumps([stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino])
    return Origin(url, state, stat.st_size, str(place_of(f"unpacked://{urllib.parse.quote(url)}")))


@contextlib.contextmanager
def opened(origin: Origin) -> Iterator[int]:
    """Open the copy as a file descriptor, downloaded if it is missing; it is not evicted inside the block.

    Raises:
        DataError: the download fails, does not fit, or the remote file has changed since it was opened.
    """
    path = Path(origin.place)
    _pin = cache.Pin(path) if cache.limit() else _recent_pin(path)
    copy = _open(origin)
    if copy is None:
        with cache.locked(path) as lock:
            copy = _open(origin)  # another process may have been faster
            if copy is None:
                _fetch(origin, again=os.fstat(lock.fileno()).st_size > 0)
                _count(origin, lock.fileno())
                copy = _open(origin)
    if copy is None:
        raise DataError(f"the copy of {origin.url} was removed from {path.parent} while it was used")
    try:
        yield copy
    finally:
        os.close(copy)
        del _pin


@contextlib.contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Hold the lock of a file that several processes may build; one process at a time has it.

    Raises:
        UsageError: the cache folder cannot be written.
    """
    with cache.locked(file):
        yield


def _open(origin: Origin) -> int | None:
    """Open the copy; None if it is missing or outdated."""
    try:
        file = os.open(origin.place, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return None
    if os.fstat(file).st_mtime_ns == origin.stamp[1]:
        return file
    os.close(file)
    return None


def _fetch(origin: Origin, *, again: bool) -> None:
    path = Path(origin.place)
    # Reading shard by shard downloads the same ones every epoch; only the first time is logged.
    level = logging.DEBUG if again else logging.INFO
    if not is_url(origin.url):
        _log.log(level, "unpacking %s", origin.url)
        transfer.copy(
            origin.url,
            functools.partial(open, origin.url, "rb"),
            path,
            size=origin.size,
            mtime_ns=origin.stamp[1],
            unpack=True,
            pauses=(),
        )
        if origin_of(Path(origin.url)) != origin:
            path.unlink(missing_ok=True)
            raise DataError(f"{origin.url} changed while it was read", "Try again when it is complete.")
        return
    size = f" ({origin.size:,} bytes)" if origin.size is not None else ""
    _log.log(level, "copying %s%s", origin.url, size)
    transfer.copy(
        origin.url,
        lambda: _unchanged(origin).open(),
        path,
        size=origin.size,
        mtime_ns=origin.stamp[1],
        unpack=origin.url.partition("?")[0].lower().endswith(SHARDS),
        check=lambda: _check(origin),  # an object may be replaced by one of equal size meanwhile
    )
    write_info(origin)


def _check(origin: Origin) -> None:
    _unchanged(origin)


def _unchanged(origin: Origin) -> RemoteFile:
    file = _ask(origin.address or origin.url)
    if file.state != origin.state:
        raise DataError(f"{origin.url} has changed since it was opened", "Run the command again.")
    return file


def _count(origin: Origin, lock: int) -> None:
    """Count the downloads of a shard, and warn when the cache is too small for the order of reading."""
    times = [float(text) for text in os.pread(lock, 200, 0).split()][1 - _OFTEN :]
    times.append(time.time())
    os.ftruncate(lock, 0)
    os.write(lock, " ".join(f"{moment:.1f}" for moment in times).encode())  # the lock file is open for appending
    if len(times) < _OFTEN or times[-1] - times[0] > _SOON_S:
        return
    warned = cache.folder() / ".warned"
    if warned.exists() and time.time() - warned.stat().st_mtime < _SOON_S:  # or another process has warned
        return
    warned.touch()
    _log.warning(
        "%s was fetched %d times within 10 minutes: a cache of %s bytes is too small for the order in which images "
        "are read. Raise $SSLBENCH_REMOTE_CACHE, or read shard by shard (pretrain: sampler=shards).",
        origin.url,
        _OFTEN,
        f"{cache.limit():,}",
    )


def _described(urls: Sequence[str]) -> list[Origin]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        files = list(pool.map(_ask, urls))
    _ADDRESSES.update({str(place_of(file.url)): file.url for file in files})
    return [
        Origin(without_secrets(file.url), file.state, file.size, str(place_of(file.url)), file.url) for file in files
    ]


def _ask(url: str) -> RemoteFile:
    """Ask the server for a file's size and state; if it cannot be reached, return those of the cached copy."""
    try:
        return described(url)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {url}") from error
    except OSError as error:
        problem = error
    known = known_of(place_of(url))
    if known is None:
        raise UnreachableError(f"{url} cannot be reached: {transfer.one_line(problem)}") from problem

    def fail() -> Any:
        raise OSError(f"it cannot be reached: {transfer.one_line(problem)}") from problem

    warn_once(f"{url} cannot be reached ({transfer.one_line(problem)}): the cached copy is used")
    return RemoteFile(url, known["size"], known["state"], fail)


def _recent_pin(path: Path) -> cache.Pin:
    """Return a pin for a cache of size 0; it lasts while the process reads from this and a few other copies."""
    _clean_up_at_exit()
    return cache.recent_pin(path)


@functools.cache
def _process_pin(path: Path) -> cache.Pin:
    """Return a pin that lasts as long as this process and those forked from it."""
    _clean_up_at_exit()
    return cache.Pin(path)


@functools.cache
def _clean_up_at_exit() -> None:
    atexit.register(_clean_up)


def _clean_up() -> None:
    _process_pin.cache_clear()
    cache.recent_pin.cache_clear()
    if cache.limit() == 0:
        cache.remove_all_unused()
