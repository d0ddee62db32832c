"""Paths of data that do not exist. Nothing heavy is imported, so that a mistyped path is told at once."""

import errno
from pathlib import Path

from sslbench.data import catalog, regular
from sslbench.errors import UsageError
from sslbench.names import did_you_mean


def refuse_missing_file(path: Path) -> None:
    """Raise for a path that is no file, and suggest what the user probably meant.

    Raises:
        UsageError: the path is no file.
    """
    if not path.is_file():
        siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UsageError(f"there is no file {path}", did_you_mean(path.name, siblings))


def refuse_empty_folder(spec: str) -> None:
    """Raise for a folder in which nothing lies.

    Raises:
        UsageError: the folder is empty.
    """
    folder = Path(spec)
    try:
        empty = folder.is_dir() and next(folder.iterdir(), None) is None
    except OSError:
        return  # the reader of the data says why
    if empty:
        raise UsageError(f"'{spec}' is an empty folder")


def refuse_missing(spec: str) -> None:
    """Raise for a path that is no file or folder, and suggest what the user probably meant.

    Raises:
        UsageError: it does not exist, cannot be reached, or is a device, a pipe or a broken link.
    """
    path = Path(spec)
    try:
        kind = regular.kind_of(path.stat().st_mode)
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
