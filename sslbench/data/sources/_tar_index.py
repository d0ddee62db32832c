"""Where the members of a tar file lie, checked to its end mark; nothing is unpacked and no link is followed."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from sslbench.data.sources._index import Index
from sslbench.data.sources._members import images_among, in_clutter, safe_name
from sslbench.data.sources.table import LABEL_COLUMNS
from sslbench.data.wording import counted, printable, some
from sslbench.errors import DataError

LABEL_SUFFIXES = ("cls", "json", "txt")
"""Extensions of members that may hold the label of the sample of the same key, the first that is there winning."""

_MAX_LABEL_BYTES = 1 << 20
_BLOCK = tarfile.BLOCKSIZE


def build(path: Path, shown: str) -> Index:
    """The images and arrays of a tar file, and its members that may hold labels with their text.

    Args:
        path: of the file.
        shown: what messages call it.

    Returns:
        An index whose numbers are offset and size; the text of an image is empty, that of a label is a JSON value.

    Raises:
        DataError: it is damaged or truncated, or a label cannot be read.
        OSError: it cannot be read.
    """
    kept: dict[str, tuple[int, int]] = {}
    left_out: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    with path.open("rb") as file:
        for member in _members(shown, file):
            name = safe_name(member.name)
            reason = _unusable(member, name)
            if reason is not None:
                left_out.setdefault(reason, []).append(printable(member.name))
            elif name is not None and name in kept:
                raise DataError(f"{shown} holds '{printable(name)}' twice")
            elif name is not None and not member.isdir():
                kept[name] = (member.offset_data, member.size)
        images, notes = images_among(shown, kept, _is_label)
        labels = [name for name in kept if _is_label(name) and not in_clutter(name)]
        for name in labels:
            texts[name] = _label(shown, file, name, *kept[name])
    names = [name for name in kept if name in images or name in texts]
    notes += [
        f"{shown}: {counted(len(some_), 'member')} {why} left out: {some(some_)}" for why, some_ in left_out.items()
    ]
    numbers = np.array([kept[name] for name in names], dtype=np.int64).reshape(-1, 2)
    return Index(tuple(names), numbers, tuple(texts.get(name, "") for name in names), tuple(notes))


def split_key(name: str) -> tuple[str, str]:
    """The key of a sample, up to the first dot after the last slash (webdataset's rule), and the part after it."""
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    return folder + slash + stem, extension.lower()


def _is_label(name: str) -> bool:
    return split_key(name)[1] in LABEL_SUFFIXES


def _unusable(member: tarfile.TarInfo, name: str | None) -> str | None:
    if name is None:
        return None if member.isdir() else "with a name that leads outside"
    if member.issym() or member.islnk():
        return "that are links"
    if member.isdir():
        return None
    return None if member.isreg() and member.sparse is None else "that are no plain files"


def _members(shown: str, file: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Every member. Python's tarfile ends without a word at a damaged header, so the end is checked here."""
    end = file.seek(0, 2)
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:", errorlevel=2) as archive:
            reached = -1
            while (member := archive.next()) is not None:
                if member.size < 0 or member.offset_data + member.size > end or member.offset_data <= reached:
                    raise _truncated(shown, member.offset)
                reached = member.offset_data
                archive.members = []  # type: ignore[attr-defined]  # a list of all members is kept otherwise
                yield member
            at = archive.offset
    except (tarfile.TarError, ValueError, OverflowError, EOFError, MemoryError) as error:
        raise DataError(
            f"{shown} is no tar file, damaged or truncated: {error}", "Get it again, or make it again."
        ) from error
    file.seek(at)
    if file.read(_BLOCK) != bytes(_BLOCK):
        raise _truncated(shown, at)
    while rest := file.read(1 << 20):
        if rest.strip(b"\0"):
            raise DataError(
                f"{shown} goes on after its end mark (byte {at:,}): several archives were put one behind the other",
                "Give them as several files, or make one archive of them.",
            )


def _truncated(shown: str, at: int) -> DataError:
    return DataError(f"{shown} is damaged or truncated at byte {at:,}", "Get it again, or make it again.")


def _label(container: str, file: IO[bytes], name: str, offset: int, size: int) -> str:
    """The label in a member, as a JSON value; '' if a .json has no key for it."""
    shown = f"{container}/{printable(name)}"
    if size > _MAX_LABEL_BYTES:
        raise DataError(f"{shown} has {size:,} bytes, too many for a label")
    file.seek(offset)
    try:
        text = file.read(size).decode("utf-8-sig").strip()
        value = json.loads(text) if split_key(name)[1] == "json" else _plain(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shown} cannot be read as a label: {' '.join(str(error).split())[:100]}") from error
    if isinstance(value, dict):
        keys = {str(key).lower(): key for key in reversed(value)}
        value = next((value[keys[column]] for column in LABEL_COLUMNS if column in keys), None)
    return "" if value is None else json.dumps(_as_label(shown, value))


def _plain(text: str) -> object:
    """The text of a .cls or .txt: a list if it is one, else what it says ('007' stays so)."""
    return json.loads(text) if text.startswith("[") and text.endswith("]") else text


def _as_label(shown: str, value: object) -> object:
    if isinstance(value, list):
        return [_as_label(shown, one) for one in value]
    if isinstance(value, bool | int | str) or (isinstance(value, float) and value.is_integer()):
        return str(int(value)) if isinstance(value, float) else str(value)
    raise DataError(f"{shown}: the label is {value!r:.50}, should be a name, a number or a list of names")
