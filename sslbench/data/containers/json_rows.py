"""The rows of the lists in a large JSON mapping, one at a time: a manifest is never in memory whole.

Python's own decoder reads each row; only the level above it is walked here.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

_CHUNK = 1 << 22
_SPACE = re.compile(r"[ \t\r\n]*")
_NEAR_END = 64
"""Characters before the end of what is read within which an error may only mean that the rest is not read yet."""


class NotAMappingError(ValueError):
    """The JSON is something else; `found` says what."""

    def __init__(self, found: str) -> None:
        super().__init__(f"it is {found}")
        self.found = found


def json_rows(file: TextIO, tables: tuple[str, ...]) -> Iterator[tuple[str, Any, bool]]:
    """What a JSON mapping holds.

    Args:
        file: its text.
        tables: keys whose lists are given row by row.

    Yields:
        (key, value, False) for each key; of a table that is a list (key, [], False), and then (key, row, True) for each
        of its rows.

    Raises:
        ValueError: it is no JSON, or a key occurs twice.
        NotAMappingError: it is JSON and no mapping.
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
            raise ValueError(f"a key should stand in place of {key!r:.40}")
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


def _rows(text: "_Text") -> Iterator[Any]:
    text.skip("[")
    if text.peek() == "]":
        text.skip("]")
        return
    while True:
        text.peek()
        yield text.value()
        if text.peek() == "]":
            text.skip("]")
            return
        text.skip(",")


class _Text:
    """A text that is read in pieces, and a place in it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._decode = json.JSONDecoder().raw_decode
        self._buffer, self._at, self._before = "", 0, 0
        self._ended = False

    def _more(self) -> None:
        # Twice as much each time, so that a single value of any length costs no more than reading it twice.
        piece = self._file.read(max(_CHUNK, len(self._buffer) - self._at))
        self._ended = not piece
        self._before += self._at
        self._buffer, self._at = self._buffer[self._at :] + piece, 0

    def peek(self) -> str:
        """The next character that is no white space, which the place moves to; empty at the end."""
        while True:
            self._at = _SPACE.match(self._buffer, self._at).end()  # type: ignore[union-attr]  # matches nothing too
            if self._at < len(self._buffer) or self._ended:
                return self._buffer[self._at : self._at + 1]
            self._more()

    def skip(self, sign: str) -> None:
        """Moves behind `sign`, which must come next."""
        if self.peek() != sign:
            raise ValueError(self._wrong(f"expecting '{sign}'", self._at))
        self._at += 1

    def value(self) -> Any:
        """The value that comes next."""
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
                # A number may go on: of 1.5e3 the decoder takes the 1 when no more is there yet.
                if self._ended or self._buffer[end : end + 1] not in ("", ".", "e", "E"):
                    self._at = end
                    return value
            self._more()

    def end(self) -> None:
        """Nothing may follow."""
        if self.peek():
            raise ValueError(self._wrong("there is more behind its end", self._at))

    def _wrong(self, message: str, at: int) -> str:
        where = f"at character {self._before + at:,}"
        return f"{message} {where}" + (" (the end: is it complete?)" if self._ended and at >= len(self._buffer) else "")
