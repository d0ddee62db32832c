"""Paths of data: reading of regular files only, and refusal of paths that do not exist.

A named pipe blocks its reader forever, a device may never end. Nothing heavy is imported, so that a mistyped path is
told at once.
"""

import contextlib
import errno
import fnmatch
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sslbench.data import catalog
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.paths import FULL

MAX_BYTES = 1 << 32
"""Size limit of an image file, 4 GiB: more than a picture of --max-pixels with 13 bands of 16 bits."""

# O_NONBLOCK: to open a pipe without it waits for a writer.
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY"))
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


def kind_of(mode: int) -> str:
    """Return the kind of a file by its mode: 'a file', 'a folder', 'a named pipe', 'a device' or 'a socket'."""
    return _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")


@contextlib.contextmanager
def reading(where: str = "") -> Iterator[None]:
    """Report an error of the disk as one of the data; `where` precedes the message."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno in FULL:
            raise  # nothing of the data: a connection, a bug, or a copy that was being written
        raise DataError(f"{where}cannot read {error.filename!s:.300}: {error.strerror}") from error


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files below a folder that fit a pattern, sorted: '*_query.txt', '*/H_1_2'; hidden ones do not.

    `Path.glob` passes over folders that it cannot read.

    Raises:
        OSError: a folder cannot be read.
    """
    first, _, rest = pattern.partition("/")
    if not rest and not any(sign in first for sign in "*?["):
        return [folder / first] if os.path.lexists(folder / first) else []
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        fitting = [entry for entry in entries if fnmatch.fnmatch(entry.name, first) and not entry.name.startswith(".")]
    found = [folder / entry.name for entry in fitting if not rest or entry.is_dir()]
    return sorted(file for path in found for file in (matching(path, rest) if rest else (path,)))


def open_regular(path: str) -> io.FileIO:
    """Open a regular file for reading, unbuffered."""
    descriptor = os.open(path, _FLAGS)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"{kind_of(mode)}, not a regular file", path)
        return io.FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_image(path: str) -> io.FileIO:
    """Open an image file for reading."""
    file = open_regular(path)
    size = os.fstat(file.fileno()).st_size
    if size > MAX_BYTES:
        file.close()
        raise OSError(errno.EFBIG, f"{size:,} bytes, more than the limit of {MAX_BYTES:,} for an image file", path)
    return file


def read_image(path: str) -> bytes:
    """Return the bytes of an image file."""
    with open_image(path) as file:
        return read_all(file)


def read_all(file: io.FileIO) -> bytes:
    """Return the bytes of an open file."""
    try:
        return file.read()
    except MemoryError as error:
        size = os.fstat(file.fileno()).st_size
        raise OSError(errno.ENOMEM, f"{size:,} bytes do not fit into memory", file.name) from error


def refuse_missing_file(path: Path) -> None:
    """Raise for a path that is no file, and suggest what the user probably meant."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file", "Give a file in it.")
    if not path.is_file():
        siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UsageError(f"there is no file {path}", did_you_mean(path.name, siblings))


def refuse_empty_folder(spec: str) -> None:
    """Raise for a folder in which nothing lies."""
    folder = Path(spec)
    try:
        empty = folder.is_dir() and next(folder.iterdir(), None) is None
    except OSError:
        return  # the reader of the data says why
    if empty:
        raise UsageError(f"'{spec}' is an empty folder")


def refuse_missing(spec: str) -> None:
    """Raise for a path that is no file or folder, and suggest what the user probably meant."""
    path = Path(spec)
    try:
        kind = kind_of(path.stat().st_mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UsageError(f"'{spec}' is a link to itself") from error
        kind = None
    except ValueError:  # a NUL in it
        kind = None
    if kind in ("a file", "a folder"):
        return
    if kind is not None:
        raise UsageError(f"'{spec}' is {kind}, neither a file nor a folder", "Write its content into a file first.")
    if path.is_symlink():
        raise UsageError(f"'{spec}' is a link to {path.readlink()}, which does not exist")
    missing = path
    # Up to the first part of the path that does not exist: that one is mistyped.
    while not missing.parent.exists() and missing.parent != missing:
        missing = missing.parent
    parent = missing.parent
    shown = "this folder" if parent == Path() else str(parent)
    if not parent.is_dir():
        raise UsageError(f"'{spec}' does not exist: {parent} is a file, not a folder")
    try:
        names = [entry.name for entry in parent.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise UsageError(f"'{spec}' cannot be reached: {shown}: {error.strerror}") from error
    if missing == path and parent == Path():
        names += catalog.entries()
    hint = did_you_mean(missing.name, names) if names else f"{shown} is empty."
    raise UsageError(f"'{spec}' does not exist: there is no '{missing.name}' in {shown}", hint)


def read_class_names(path: Path) -> list[str]:
    """Return the names of classes in a text file, one per line; empty lines at the end do not count."""
    # A name may occur twice: ImageNet has two classes called crane.
    try:
        # utf-8-sig: a byte order mark, which Windows' editors write, is no part of the first name.
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the class names in {path}: {error}") from error
    if not names or not all(names):
        raise UsageError(f"{path}: line {names.index('') + 1 if names else 1} is empty", "Write one name per line.")
    return names
