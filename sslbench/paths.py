"""Folders: data shipped with sslbench, the user's own, and the cache; files in folders."""

import contextlib
import errno
import functools
import os
import re
import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from sslbench import locks
from sslbench.errors import SslbenchError, UsageError

DataFolder = Literal["benchmarks", "configs", "model_converters"]


@functools.cache  # asked a hundred times per weights file
def builtin_dir(kind: DataFolder) -> Path:
    """Return a data folder shipped with sslbench: inside an installed wheel, else beside the package."""
    # The wheel comes first: an unrelated folder of the same name may be beside an installed package.
    package = Path(__file__).resolve().parent
    in_wheel = package / "_data" / kind
    if in_wheel.is_dir():
        return in_wheel
    checkout = package.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / kind).is_dir():
        return checkout / kind
    raise UsageError(
        f"sslbench's own folder '{kind}' is missing; looked in {in_wheel} and {checkout / kind}",
        "The installation is incomplete: install sslbench again with pip.",
    )


def is_shipped(path: Path) -> bool:
    """Return True for a file in a data folder shipped with sslbench."""
    inside = any(path.is_relative_to(builtin_dir(kind)) for kind in get_args(DataFolder))
    return inside and ".." not in path.parts


def search_path(kind: DataFolder) -> list[Path]:
    """Return the folders to search: each existing `<entry>/<kind>` of $SSLBENCH_PATH, then the built-in one."""
    entries = [Path(entry) for entry in os.environ.get("SSLBENCH_PATH", "").split(os.pathsep) if entry]
    return [entry / kind for entry in entries if (entry / kind).is_dir()] + [builtin_dir(kind)]


def data_dir() -> Path:
    """Return the folder of the data that benchmarks name: $SSLBENCH_DATA, else ./data."""
    return Path(os.environ.get("SSLBENCH_DATA") or "data").expanduser()


def cache_dir() -> Path:
    """Return the cache folder for features, file hashes and floors: $SSLBENCH_CACHE or the platform's cache folder."""
    import platformdirs

    given = os.environ.get("SSLBENCH_CACHE")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("sslbench", appauthor=False))


def size_variable(name: str, default: str) -> int:
    """Return the size in an environment variable in bytes, such as 1.5 GB."""
    text = os.environ.get(name, default)
    match = re.fullmatch(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)B?", text.strip().upper())
    if match is None:
        raise UsageError(f"${name} is '{text}', which is not a size", "Such as 50GB, 500MB, or 0.")
    return int(float(match["number"]) * 1000 ** " KMGT".index(match["unit"] or " "))


def file_url_path(place: str | Path) -> Path | None:
    """Return the path of a URL of a local file or folder; None for anything else.

    >>> file_url_path("file:///data/my%20results"), file_url_path("results")
    (PosixPath('/data/my results'), None)
    """
    if (url := re.fullmatch(r"(?:file|local):(/.*)", str(place), re.DOTALL)) is None:
        return None
    path = re.sub(r"^//localhost/", "///", url[1])
    if isinstance(place, str) and path.startswith("//") and not path.startswith("///"):
        raise UsageError(f"{place} names the machine '{path[2:].partition('/')[0]}'", "Write file:///PATH, or PATH.")
    return Path("/" + urllib.parse.unquote(path).lstrip("/"))


def files_below(folder: Path, suffix: str) -> list[Path]:
    """Return the files below a folder with this suffix, sorted; hidden files and folders are passed over."""
    # Links to folders are not followed, so that none is visited for ever; folders wait in a list, so that any number
    # may lie in each other.
    return sorted(map(Path, paths_below(folder, suffix)), key=lambda path: path.parts)


def paths_below(folder: Path, suffix: str) -> list[str]:
    """Return what `files_below` returns as text and in any order: reading many names takes a fifth of the time."""
    found: list[str] = []
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.name.endswith(suffix) and entry.is_file():
                    found.append(entry.path)
    return found


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, a quota, and a limit of a file's size."""


def not_written(path: Path, error: OSError) -> str:
    """Return the message for a file that cannot be written; of a full disk with the bytes that are free."""
    text = f"cannot write {path}: {error.strerror or error}"
    if error.errno not in FULL:
        return text
    folder = next(each for each in (path.absolute(), *path.absolute().parents) if each.is_dir())
    return f"{text}; {shutil.disk_usage(folder).free:,} bytes are free in {folder}"


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to an OSError of the block that names no file, as those of writing into an open file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def temporary_beside(path: Path, suffix: str = "") -> Iterator[Path]:
    """Yield a new hidden file in the folder of `path`, to be renamed to it; otherwise it is removed at the end."""
    # Its writer holds a lock on it, which the operating system releases however the process ends. Files without this
    # lock were left by writers that were killed: the next writer of `path` removes them.
    _remove_leftovers(path, suffix)
    handle, temporary = _new_locked(path, suffix)
    with os.fdopen(handle, "r+b") as file:
        if not locks.AVAILABLE:
            file.close()  # Windows renames no open file
        try:
            with naming(path):
                yield temporary
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file in the folder of `path` that replaces `path` when the block ends without an error."""
    written = 0
    try:
        with temporary_beside(path, path.suffix) as temporary:
            try:
                yield temporary
                # On the disk before it is renamed: after a power cut the name must not stand for an empty file.
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                temporary.replace(path)
            finally:
                written = temporary.stat().st_size if temporary.exists() else 0
    except OSError as error:
        if error.errno not in FULL:
            raise UsageError(not_written(path, error)) from error
        raise SslbenchError(
            not_written(path, error),
            f"Free some, or write elsewhere. Nothing is left of the {written:,} bytes that were written.",
        ) from error


def _new_locked(path: Path, suffix: str) -> tuple[int, Path]:
    while True:
        temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part{suffix}")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks
            locks.lock(handle)
        if os.fstat(handle).st_nlink:
            return handle, temporary
        os.close(handle)  # another process took it for a leftover before it was locked


def _remove_leftovers(path: Path, suffix: str) -> None:
    if not locks.AVAILABLE:
        return  # a leftover looks like a file that is being written
    name = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{8}" + re.escape(f".part{suffix}"))
    with os.scandir(path.parent) as entries:
        found = [entry.path for entry in entries if name.fullmatch(entry.name)]
    for leftover in found:
        with contextlib.suppress(OSError):  # removed meanwhile, or another user's
            handle = os.open(leftover, os.O_RDWR)
            try:
                if locks.lock(handle, wait=False):
                    os.unlink(leftover)  # noqa: PTH108 - under the lock
            finally:
                os.close(handle)
