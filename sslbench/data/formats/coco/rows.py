"""kwcoco's sqlite view of a manifest (`CocoDataset.view_sql`), read without kwcoco and never written to."""

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from sslbench.data.containers.sniff import encoding_of, head
from sslbench.data.wording import one_line
from sslbench.errors import DataError

_SIGNATURE = b"SQLite format 3\0"
# Column with the keys that have no column.
_REST = "_unstructured"


def is_sqlite(spec: str) -> bool:
    """Return whether a file is a database of sqlite."""
    return head(spec).startswith(_SIGNATURE)


def view_entries(spec: str, tables: Sequence[str]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the entries of a view as those of a manifest: key, value, and whether it is a row of a table."""
    with Path(spec).open("rb"):  # raises OSError with the reason, which sqlite does not know
        pass
    try:
        # immutable: sqlite neither locks the file nor looks for a journal, so it may lie on a read-only disk.
        uri = f"{Path(spec).resolve().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in [name for name in names if name not in tables]:
                yield name, list(_view_rows(database, name)), False
            for name in [name for name in tables if name in names]:
                yield name, [], False
                for row in _view_rows(database, name):
                    yield name, row, True
    except sqlite3.Error as error:
        raise ValueError(f"damaged sqlite view: {error}") from error


def _view_rows(database: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as the mappings that a manifest holds, without empty values."""
    quoted = '"' + table.replace('"', '""') + '"'
    columns = [(str(name), str(kind)) for _, name, kind, *_ in database.execute(f"PRAGMA table_info({quoted})")]
    for values in database.execute(f"SELECT * FROM {quoted} ORDER BY rowid"):
        row: dict[str, Any] = {}
        for (name, kind), value in zip(columns, values, strict=True):
            if value is None or name.startswith("_bbox_"):
                continue
            plain = json.loads(value) if kind == "JSON" and isinstance(value, str) else value
            if name != _REST:
                row[name] = plain
            elif isinstance(plain, dict):
                row |= plain
        yield row


_CHUNK = 1 << 22
_PIECE = 1 << 15  # characters that are parsed at once
_BORDER = re.compile(r"\}[ \t\r\n]*,[ \t\r\n]*\{")
_SPACE = re.compile(r"[ \t\r\n]*")
# Characters before the end of the buffer within which a syntax error may be due to text that is not read yet.
_NEAR_END = 64


class NotAMappingError(ValueError):
    """JSON document other than a mapping; `found` describes it."""

    def __init__(self, found: str) -> None:
        super().__init__(f"it is {found}")
        self.found = found


def json_rows(file: TextIO, tables: tuple[str, ...]) -> Iterator[tuple[str, Any, bool]]:
    """Iterate over the entries of a JSON mapping, and over the rows of its large lists.

    `tables`: keys whose lists are yielded row by row.

    Yields:
        (key, value, False) for each key; for a table (key, [], False), followed by (key, row, True) for each of its
        rows.
    """
    text = _Text(file)
    if text.peek() != "{":
        value = text.value()
        text.end()
        raise NotAMappingError("a list" if isinstance(value, list) else f"{value!r:.40}")
    text.skip("{")
    seen: set[str] = set()
    while text.peek() != "}":
        if seen:
            text.skip(",")
        text.peek()
        key = text.value()
        if not isinstance(key, str):
            raise ValueError(f"{key!r:.40} is not a key")
        if key in seen:
            raise ValueError(f"the key '{key}' occurs twice")
        seen.add(key)
        text.peek()
        text.skip(":")
        if key in tables and text.peek() == "[":
            yield key, [], False
            for row in _rows(text):
                yield key, row, True
        else:
            text.peek()
            yield key, text.value(), False
    text.skip("}")
    text.end()


def json_list(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the mappings of a JSON file that is a list of them; large files take no memory.

    Raises:
        DataError: the file cannot be read, is damaged, or holds something else.
    """
    try:
        with path.open(encoding=encoding_of(head(str(path)))) as file:
            text = _Text(file)
            for row in _rows(text):
                if not isinstance(row, dict):
                    raise ValueError(f"{row!r:.40} is not a mapping")
                yield row
            text.end()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path} is not a list of mappings in JSON: {one_line(error)}") from error


def _rows(text: "_Text") -> Iterator[Any]:
    text.skip("[")
    if text.peek() == "]":
        text.skip("]")
        return
    while True:
        text.peek()
        yield from text.several() or [text.value()]
        if text.peek() == "]":
            text.skip("]")
            return
        text.skip(",")


class _Text:
    """Text read in chunks, with a current position."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._decode = json.JSONDecoder().raw_decode
        self._buffer, self._at, self._before = "", 0, 0
        self._ended = False
        self._at_once = True

    def _more(self) -> None:
        # The chunk doubles each time, so that a single value of any length costs no more than reading it twice.
        piece = self._file.read(max(_CHUNK, len(self._buffer) - self._at))
        self._ended = not piece
        self._before += self._at
        self._buffer, self._at = self._buffer[self._at :] + piece, 0

    def peek(self) -> str:
        """Move to the next character other than white space and return it; '' at the end."""
        while True:
            self._at = _SPACE.match(self._buffer, self._at).end()  # type: ignore[union-attr]  # matches nothing too
            if self._at < len(self._buffer) or self._ended:
                return self._buffer[self._at : self._at + 1]
            self._more()

    def skip(self, sign: str) -> None:
        """Move past `sign`, which must come next."""
        if self.peek() != sign:
            raise ValueError(self._wrong(f"expecting '{sign}'", self._at))
        self._at += 1

    def value(self) -> Any:
        """Parse the next value and move past it."""
        while True:
            try:
                value, end = self._decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                cut_off = error.pos > len(self._buffer) - _NEAR_END or error.msg.startswith("Unterminated")
                if self._ended or not cut_off:
                    raise ValueError(self._wrong(error.msg, error.pos)) from error
            except RecursionError as error:
                raise ValueError("it is nested too deeply") from error
            else:
                # A number may continue in the next chunk: of 1.5e3 the decoder would accept the 1 alone.
                if self._ended or self._buffer[end : end + 1] not in ("", ".", "e", "E"):
                    self._at = end
                    return value
            self._more()

    def several(self) -> list[Any]:
        """Parse many mappings of a list at once and move past them; [] if that cannot be done.

        In brackets, the text up to a border `}, {` is a list of whole rows: a border inside of a row leaves a bracket
        or a quotation mark open. Then rows are parsed singly from there on. If the list ends before, so do the rows.
        """
        at = self._at
        border = self._buffer.rfind("}", at, at + _PIECE) if self._at_once else -1
        while border > at and not _BORDER.match(self._buffer, border):
            border = self._buffer.rfind("}", at, border)
        if border <= at:
            return []
        try:
            rows, end = self._decode(f"[{self._buffer[at : border + 1]}]")
        except (json.JSONDecodeError, RecursionError):
            self._at_once = False
            return []
        self._at = at + end - 2  # the brackets are not in the buffer
        return list(rows)

    def end(self) -> None:
        """Raise ValueError unless only white space follows."""
        if self.peek():
            raise ValueError(self._wrong("extra data after the end of the document", self._at))

    def _wrong(self, message: str, at: int) -> str:
        where = f"at character {self._before + at:,}"
        return f"{message} {where}" + (" (the end: is it complete?)" if self._ended and at >= len(self._buffer) else "")
