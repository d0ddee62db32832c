"""Data behind a URL, and compressed shards: read from copies in a folder that never grows beyond a bound.

The folder is `remote` in the cache folder. It holds $SSLBENCH_REMOTE_CACHE at most (50GB unless set): what was used
longest ago goes first, never what is being read. With 0 a copy is removed when the last process that uses it lets go.

Most files are copied when they are opened, and all of them must fit. Tar shards are not: each is fetched when an image
in it is read and its copy is not there, once per machine, so that there may be more of them than fit.
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

from sslbench.data.remote import cache, transfer
from sslbench.data.remote.origin import Origin, is_url, known_of, place_of, write_info
from sslbench.data.remote.urls import RemoteFile, described
from sslbench.data.wording import counted
from sslbench.errors import DataError, UsageError

__all__ = [
    "SHARDS",
    "Origin",
    "alone",
    "is_copy",
    "is_url",
    "local_copies",
    "opened",
    "origin_of",
    "shards",
]

SHARDS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Suffixes of files that are fetched when they are read."""

_AT_ONCE = 16
_OFTEN = 5  # fetches of one shard within _SOON_S that are worth a word
_SOON_S = 600.0
_log = logging.getLogger("sslbench")


def local_copies(urls: list[str]) -> list[Path]:
    """The files behind URLs as local ones, copied if they are not there or have changed.

    Args:
        urls: of files; all of them must fit into the cache at once, and stay there while this process runs.

    Returns:
        One path per URL, with the same file name; files of one remote folder lie in one folder.

    Raises:
        UsageError: the kind of URL is unknown or its package is missing, or there is no such file.
        DataError: it cannot be reached, breaks off, or does not fit into the cache.
    """
    files = _described(urls)
    total = sum(file.size or 0 for file in files)
    if total > cache.bound():
        raise DataError(
            f"{counted(len(urls), 'file')} of {total:,} bytes do not fit into the cache of {cache.bound():,}",
            "Raise $SSLBENCH_REMOTE_CACHE (such as 200GB), or copy the data to a folder.",
        )
    for file in files:
        _use(Path(file.place))
        with opened(file):
            pass
    return [Path(file.place) for file in files]


def shards(urls: list[str]) -> list[Path]:
    """Where the copies of shards will lie; none is fetched yet. `origin_of` says of such a path what belongs there.

    Raises:
        UsageError: the kind of URL is unknown or its package is missing, or there is no such file.
        DataError: one cannot be reached, or does not fit into the cache by itself.
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
            "%s of %s bytes do not fit into the cache of %s at once: each is fetched when it is needed",
            counted(len(files), "shard"),
            f"{total:,}",
            f"{cache.bound():,}",
        )
    for file in files:
        write_info(file)
    return [Path(file.place) for file in files]


def is_copy(path: Path) -> bool:
    """Whether a path is one that `shards` gave."""
    return path.parent.parent == cache.folder()


def origin_of(path: Path) -> Origin | None:
    """What a path in the folder of copies stands for; of a compressed file on this machine, its unpacked copy.

    Returns:
        None for a file that can be read as it is.

    Raises:
        DataError: the file cannot be read.
    """
    _clean_up_at_exit()  # in this process: those that it forks may end without a word
    if is_copy(path):
        known = known_of(path)
        return Origin(known["url"], known["state"], known["size"], str(path)) if known else None
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
    """The copy as a file descriptor to read from; it is fetched if it is not there, and stays until the end of this.

    Raises:
        DataError: it cannot be fetched, does not fit, or the file has changed since it was described.
    """
    path = Path(origin.place)
    _pin = cache.Pin(path) if cache.limit() else _held(path)
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
def alone(file: Path) -> Iterator[None]:
    """One process at a time makes a file that all of them would make.

    Raises:
        UsageError: its folder cannot be written.
    """
    with cache.locked(file):
        yield


def _open(origin: Origin) -> int | None:
    """The copy, if it is there and of this state."""
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
    # Whoever reads shard by shard fetches the same ones every epoch: only the first time is worth a line.
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
            raise DataError(f"{origin.url} was written to while it was read", "Try again when it is complete.")
        return
    size = f" ({origin.size:,} bytes)" if origin.size is not None else ""
    _log.log(level, "copying %s%s", origin.url, size)
    open_ = functools.partial(_open_remote, origin)
    unpack = origin.url.partition("?")[0].lower().endswith(SHARDS)
    transfer.copy(origin.url, open_, path, size=origin.size, mtime_ns=origin.stamp[1], unpack=unpack)
    write_info(origin)


def _open_remote(origin: Origin) -> Any:
    file = _ask(origin.url)
    if file.state != origin.state:
        raise DataError(f"{origin.url} has changed since it was opened", "Run the command again.")
    return file.open()


def _count(origin: Origin, lock: int) -> None:
    """Says so when a shard is fetched again and again: the order of reading and the cache do not go together."""
    times = [float(text) for text in os.pread(lock, 200, 0).split()][1 - _OFTEN :]
    times.append(time.time())
    os.ftruncate(lock, 0)
    os.write(lock, " ".join(f"{moment:.1f}" for moment in times).encode())  # it was opened to append
    if len(times) < _OFTEN or times[-1] - times[0] > _SOON_S:
        return
    said = cache.folder() / ".said"
    if said.exists() and time.time() - said.stat().st_mtime < _SOON_S:  # by another process as well
        return
    said.touch()
    _log.warning(
        "%s was fetched %d times within 10 minutes: a cache of %s bytes is too small for the order in which images "
        "are read. Raise $SSLBENCH_REMOTE_CACHE, or read shard by shard (pretrain: sampler=shards).",
        origin.url,
        _OFTEN,
        f"{cache.limit():,}",
    )


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)


def _described(urls: Sequence[str]) -> list[Origin]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        files = list(pool.map(_ask, urls))
    return [Origin(file.url, file.state, file.size, str(place_of(file.url))) for file in files]


def _ask(url: str) -> RemoteFile:
    """The file as its server describes it; if that cannot be reached, as it was known before."""
    try:
        return described(url)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {url}") from error
    except (OSError, RuntimeError) as error:
        problem = error
    known = known_of(place_of(url))
    if known is None:
        raise DataError(f"{url} cannot be reached: {transfer.one_line(problem)}") from problem

    def fail() -> Any:
        raise OSError(f"it cannot be reached: {transfer.one_line(problem)}") from problem

    _warn_once(f"{url} cannot be reached ({transfer.one_line(problem)}): the copy that was made before is used")
    return RemoteFile(url, known["size"], known["state"], fail)


def _held(path: Path) -> cache.Pin:
    """Where nothing is kept: a pin that stays while the process reads from this and a few other copies."""
    _clean_up_at_exit()
    return cache.held(path)


@functools.cache
def _use(path: Path) -> cache.Pin:
    """A pin that lasts as long as this process, and those that it forks."""
    _clean_up_at_exit()
    return cache.Pin(path)


@functools.cache
def _clean_up_at_exit() -> None:
    atexit.register(_clean_up)


def _clean_up() -> None:
    _use.cache_clear()
    cache.held.cache_clear()
    if cache.limit() == 0:
        cache.remove_all_unused()
