"""Array types shared by signatures."""

import dataclasses

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.floating]  # float32 or float64, as stored
IntArray = npt.NDArray[np.int64]
Int8Array = npt.NDArray[np.int8]
Int16Array = npt.NDArray[np.int16]
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]


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
