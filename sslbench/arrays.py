"""Array types shared by signatures, and selection of rows."""

import dataclasses
import tokenize
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.floating]  # float32 or float64, as stored
IntArray = npt.NDArray[np.int64]
Int8Array = npt.NDArray[np.int8]
Int16Array = npt.NDArray[np.int16]
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]

# Errors of numpy on a damaged .npy header, which it parses as a Python literal.
UNREADABLE_HEADER = (ValueError, OverflowError, EOFError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError)


@dataclasses.dataclass(frozen=True)
class RowSubset:
    """Some rows of a matrix, copied only where a range of them is read, so that a memory-mapped one stays on disk.

    Attributes:
        rows: (n,) ascending, so that a file is read from its beginning to its end.

    >>> RowSubset(np.arange(6.0).reshape(3, 2), np.array([0, 2]))[1:].tolist()
    [[4.0, 5.0]]
    """

    x: Matrix
    rows: IntArray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self.rows), self.x.shape[1]

    def __getitem__(self, part: slice) -> Matrix:
        return np.asarray(self.x[self.rows[part]])


Rows = Matrix | RowSubset
"""Matrix that is read in ranges of rows."""


def rows_of_each(numbers: npt.NDArray[np.integer], n: int = 0) -> list[IntArray]:
    """Return the ascending rows of each number from 0 on, of at least `n` numbers.

    >>> [rows.tolist() for rows in rows_of_each(np.array([2, 0, 2]))]
    [[1], [], [0, 2]]
    """
    return np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers, minlength=n))[:-1])


class OfRows:
    """Dataclass in which the fields of `of_rows` have an entry per row: arrays, tuples, or things that select rows."""

    of_rows: ClassVar[tuple[str, ...]]

    def __len__(self) -> int:
        return len(getattr(self, self.of_rows[0]))

    def select(self, indices: IntArray) -> Self:
        """Return the rows at `indices`, in that order; other fields are unchanged."""
        # An empty list would become an array of floats, which selects nothing but an error.
        rows = np.asarray(indices, dtype=np.int64)
        fields: dict[str, Any] = {}
        for name in self.of_rows:
            value = getattr(self, name)
            if hasattr(value, "select"):
                value = value.select(rows)
            elif value is not None:
                value = value[rows] if isinstance(value, np.ndarray) else tuple(value[row] for row in rows.tolist())
            fields[name] = value
        return dataclasses.replace(self, **fields)  # type: ignore[type-var]
