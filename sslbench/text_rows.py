"""Texts in one file that processes share: only the file's name is sent to other processes."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

_ERRORS = "surrogatepass"  # file names may hold bytes that are not UTF-8


@dataclasses.dataclass(frozen=True, eq=False)
class TextRows(Sequence[str]):
    """Texts in a file that `write_texts` wrote.

    Attributes:
        file: its path.
        rows: int64, the texts that count, in order; None for all of them.
    """

    file: str
    rows: npt.NDArray[np.int64] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"file": self.file, "rows": self.rows}

    @functools.cached_property
    def _content(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Offsets, (n + 1,), and bytes of the texts, memory-mapped: the system keeps one copy for all processes."""
        mapped = np.memmap(self.file, dtype=np.uint8, mode="r")
        n = int(mapped[:8].view("<i8")[0])
        return mapped[8 : 16 + 8 * n].view("<i8"), mapped[16 + 8 * n :]

    def __len__(self) -> int:
        return len(self._content[0]) - 1 if self.rows is None else len(self.rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        starts, content = self._content
        row = range(len(self))[index] if self.rows is None else int(self.rows[index])
        return content[int(starts[row]) : int(starts[row + 1]) - 1].tobytes().decode("utf-8", _ERRORS)

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def all(self) -> tuple[str, ...]:
        """Return every text of the file, in order."""
        starts, content = self._content
        if len(starts) == 1:
            return ()
        return tuple(content[: int(starts[-1]) - 1].tobytes().decode("utf-8", _ERRORS).split("\0"))

    def select(self, indices: npt.NDArray[np.int64]) -> "TextRows":
        """Return the texts at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return TextRows(self.file, chosen if self.rows is None else self.rows[chosen])


def write_texts(texts: Sequence[str], file: Path) -> None:
    """Write texts for `TextRows`.

    Raises:
        ValueError: one holds a NUL, which separates them.
        OSError: the file cannot be written.
    """
    content = "".join(f"{text}\0" for text in texts).encode("utf-8", _ERRORS)
    ends = np.flatnonzero(np.frombuffer(content, dtype=np.uint8) == 0)
    if len(ends) != len(texts):
        raise ValueError("a text contains a NUL")
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends + 1])
    with file.open("wb") as out:
        out.write(len(texts).to_bytes(8, "little"))
        out.write(starts.astype("<i8").tobytes())
        out.write(content)
