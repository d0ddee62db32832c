"""Features whose coordinates on the principal axes are never stored."""

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix, Rows, RowSubset

Precision = type[np.float32] | type[np.float64]


class Unrotated:
    """Centred features in place of their coordinates, for problems larger than memory.

    Standardisation and rotation are one matrix T, so that the logits x T W are products of the centred features with
    T W, and a gradient by W is T' times that by T W. Neither a standardised copy nor coordinates exist; a block is
    centred each time it is read, which takes little beside its products.

    Attributes:
        x: (N, D) features as stored.
        centre: (D,) mean of the features.
        turn: (D, R) T, division by the standard deviation and rotation onto the principal axes.
    """

    def __init__(self, x: Rows, centre: FloatArray, turn: FloatArray) -> None:
        """Store the features, their mean (D,), and T."""
        self.x, self.turn = x, turn
        self.centre = centre
        self._buffers: dict[Precision, Matrix] = {}

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of samples and of coordinates, (N, R)."""
        return len(self.x), self.turn.shape[1]

    @property
    def size(self) -> int:
        """Number of coordinates in all."""
        n, width = self.shape
        return n * width

    def select(self, rows: IntArray) -> "Unrotated":
        """Return some of the samples, by ascending numbers, without a copy."""
        given = RowSubset(self.x.x, self.x.rows[rows]) if isinstance(self.x, RowSubset) else RowSubset(self.x, rows)
        return Unrotated(given, self.centre, self.turn)

    def centred(self, rows: slice, precision: Precision) -> Matrix:
        """Return centred features (n, D) of a range of samples; the next call overwrites them."""
        given = self.x[rows]
        buffer = self._buffers.get(precision)
        if buffer is None or len(buffer) < len(given):
            # New memory for each block takes several times as long as the subtraction.
            buffer = self._buffers[precision] = np.empty(given.shape, precision)
        return np.subtract(given, self.centre, out=buffer[: len(given)], dtype=np.float64, casting="same_kind")
