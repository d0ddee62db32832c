"""Many texts in one piece: of memory, or of a file that processes share, of which only the name is sent to others."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
_ERRORS = "surrogatepass"  # file names may hold bytes that are not UTF-8
_BLOCK = 65_536
PACKED_FROM = 100_000
"""Number of texts from which on they are kept in one piece: a str takes about 60 bytes beside its characters."""


class Texts(Sequence[str]):
    """N texts that equal a tuple of the same ones."""

    rows: IntArray | None = None

    @property
    def _content(self) -> tuple[IntArray, npt.NDArray[np.uint8]]:
        """Offsets, (n + 1,), and bytes of the texts, each of which ends with a NUL."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._content[0]) - 1 if self.rows is None else len(self.rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            chosen = range(len(self))[index]
            if self.rows is None and chosen.step == 1:
                return self._between(chosen.start, max(chosen.start, chosen.stop))
            return tuple(self[i] for i in chosen)
        starts, content = self._content
        row = range(len(self))[index] if self.rows is None else int(self.rows[index])
        return content[int(starts[row]) : int(starts[row + 1]) - 1].tobytes().decode("utf-8", _ERRORS)

    def _between(self, start: int, stop: int) -> tuple[str, ...]:
        starts, content = self._content
        texts = content[int(starts[start]) : int(starts[stop])].tobytes().decode("utf-8", _ERRORS)
        return tuple(texts.split("\0")[:-1])

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BLOCK):
            yield from self[start : start + _BLOCK]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Texts | tuple):
            return NotImplemented
        if self is other or len(self) != len(other):
            return self is other
        if isinstance(other, Texts) and self.rows is None and other.rows is None:
            (starts, content), (others, theirs) = self._content, other._content
            return np.array_equal(starts, others) and np.array_equal(content, theirs)
        return all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self)) if len(self) <= 10 else f"<{len(self):,} texts, {self[0]!r} to {self[-1]!r}>"

    def select(self, indices: IntArray) -> "Texts":
        """Return the texts at `indices`, in that order."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PackedTexts(Texts):
    """Texts in memory, 9 bytes each beside their characters.

    >>> texts = PackedTexts.of(("a", "é", ""))
    >>> texts[1], texts[-1], texts.select(np.array([2, 0])) == ("", "a"), texts == ("a", "é", "")
    ('é', '', True, True)
    """

    starts: IntArray
    content: npt.NDArray[np.uint8]

    @property
    def _content(self) -> tuple[IntArray, npt.NDArray[np.uint8]]:
        return self.starts, self.content

    @classmethod
    def of(cls, texts: Sequence[str | Path]) -> "PackedTexts":
        """Return texts in one piece.

        Raises:
            ValueError: one holds a NUL, which separates them.
        """
        parts = [_encoded(texts[start : start + _BLOCK]) for start in range(0, len(texts), _BLOCK)]
        return cls._joined(parts)

    @classmethod
    def _joined(cls, parts: Sequence[tuple[IntArray, npt.NDArray[np.uint8]]]) -> "PackedTexts":
        """Return the texts of several parts: their ends, from the start of each, and bytes."""
        begins = np.cumsum([0, *(len(content) for _, content in parts)])
        ends = [own + begin for (own, _), begin in zip(parts, begins.tolist(), strict=False)]
        starts = np.concatenate([np.zeros(1, np.int64), *ends])
        return cls(starts, np.concatenate([np.zeros(0, np.uint8), *(content for _, content in parts)]))

    def select(self, indices: IntArray) -> "PackedTexts":
        """Return the texts at `indices`, in that order."""
        chosen, parts = np.asarray(indices, dtype=np.int64), []
        for start in range(0, len(chosen), _BLOCK):
            begin = self.starts[chosen[start : start + _BLOCK]]
            lengths = self.starts[chosen[start : start + _BLOCK] + 1] - begin
            ends = np.cumsum(lengths)
            parts.append((ends, self.content[np.repeat(begin - ends + lengths, lengths) + np.arange(ends[-1])]))
        return self._joined(parts)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TextRows(Texts):
    """Texts in a file that `write_texts` wrote.

    Attributes:
        file: its path.
        rows: int64, the texts that count, in order; None for all of them.
    """

    file: str
    rows: IntArray | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"file": self.file, "rows": self.rows}

    @functools.cached_property
    def _content(self) -> tuple[IntArray, npt.NDArray[np.uint8]]:
        # Memory-mapped: the system keeps one copy for all processes.
        mapped = np.memmap(self.file, dtype=np.uint8, mode="r")
        n = int(mapped[:8].view("<i8")[0])
        return mapped[8 : 16 + 8 * n].view("<i8"), mapped[16 + 8 * n :]

    def select(self, indices: IntArray) -> "TextRows":
        """Return the texts at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return TextRows(self.file, chosen if self.rows is None else self.rows[chosen])


def packed(texts: Sequence[Any]) -> Sequence[Any]:
    """Return texts in one piece where they are many; others, and those with a NUL, as a tuple."""
    if len(texts) < PACKED_FROM:
        return tuple(texts)
    try:
        return texts if isinstance(texts, Texts) else PackedTexts.of(texts)
    except ValueError:
        return tuple(texts)


def select_texts(texts: Sequence[Any], indices: IntArray) -> Sequence[Any]:
    """Return the texts at `indices`, in that order, in the form that they have."""
    return texts.select(indices) if isinstance(texts, Texts) else tuple(texts[i] for i in indices)


def _encoded(texts: Sequence[str | Path]) -> tuple[IntArray, npt.NDArray[np.uint8]]:
    """Return the ends of texts, behind the NUL that each gets, and their bytes."""
    content = np.frombuffer("".join(f"{text}\0" for text in texts).encode("utf-8", _ERRORS), dtype=np.uint8)
    ends = np.flatnonzero(content == 0) + 1
    if len(ends) != len(texts):
        raise ValueError("a text contains a NUL")
    return ends, content


def write_texts(texts: Sequence[str | Path], file: Path) -> None:
    """Write texts for `TextRows`.

    Raises:
        ValueError: one holds a NUL, which separates them.
        OSError: the file cannot be written.
    """
    whole = texts if isinstance(texts, PackedTexts) else PackedTexts.of(texts)
    with file.open("wb") as out:
        out.write(len(texts).to_bytes(8, "little"))
        out.write(whole.starts.astype("<i8").tobytes())
        out.write(whole.content.tobytes())
