"""Text files of any encoding that tables and lists have: UTF-8, UTF-16 with its mark, Windows-1252."""

import codecs
from pathlib import Path

from sslbench.data.regular import open_regular, read_all
from sslbench.errors import DataError

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r\f")
"""Bytes that are not in the text of any table."""


def encoding_of(head: bytes) -> str:
    r"""Return the encoding that the mark at the beginning of a text says; UTF-8 without one.

    >>> encoding_of(b"\xff\xfep\0a\0"), encoding_of(b"path,label")
    ('utf-16', 'utf-8-sig')
    """
    return next((encoding for mark, encoding in _MARKS.items() if head.startswith(mark)), "utf-8-sig")


def read_text(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the text of a file, and a note if it is not in UTF-8.

    Raises:
        DataError: it cannot be read, or is no text.
    """
    try:
        with open_regular(str(path)) as file:
            content = read_all(file)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    encoding = encoding_of(content[:4])
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        text, encoding = _of_windows(path, content, error), "cp1252"
    if encoding == "utf-8-sig":
        return text, ()
    name = "Windows-1252 (Latin-1)" if encoding == "cp1252" else encoding.upper()
    return text, (f"{path} is not in UTF-8 and is read as {name}",)


def _of_windows(path: Path, content: bytes, error: UnicodeDecodeError) -> str:
    """Return text of one byte per character, as Excel saves tables in western Europe."""
    advice = "Save it as UTF-8."
    if not _CONTROL.isdisjoint(content):
        what = "UTF-16 without its mark" if content.count(0) > len(content) / 4 else "a binary file, or damaged"
        raise DataError(f"{path} is not text in UTF-8 (byte {error.start:,}): it may be {what}", advice) from error
    try:
        return content.decode("cp1252")
    except UnicodeDecodeError:
        raise DataError(f"{path} is neither text in UTF-8 nor in Windows-1252 (Latin-1): {error}", advice) from error
