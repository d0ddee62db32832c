"""S2 cells: quadtrees on the six faces of a cube around the globe, and their partition by the number of images.

A place has the index of its leaf cell, of level 30 (about 1 cm): three bits of the face, then two bits per level along
a Hilbert curve. A cell of level L is a range of 4^(30 - L) indices, so its images are neighbours in the order of the
indices. Areas of cells of one level differ by a factor of at most 2.1; the poles and the date line are places like all
others. Indices and tokens are those of the S2 geometry library (s2geometry.io, `S2CellId`).
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.regression import unit_vectors

LEAF_LEVEL = 30
FIRST_LEVEL = 2
"""Level of the largest cells, with sides of about 2,000 km, as in the partition of Mueller-Budack et al. (2018)."""

# Coordinates u and v on a face are these components of the unit vector, divided by that of the face's axis.
_U_AXIS, _U_SIGN = np.array([1, 0, 0, 2, 2, 1]), np.array([1, -1, -1, 1, 1, -1])
_V_AXIS, _V_SIGN = np.array([2, 2, 1, 1, 0, 0]), np.array([1, 1, -1, 1, -1, -1])
# Position along the Hilbert curve of the quarter 2i + j, for each of the four orientations of the curve.
_POSITION = np.array([[0, 1, 3, 2], [0, 3, 1, 2], [2, 3, 1, 0], [2, 1, 3, 0]])
_TURN = np.array([1, 0, 0, 3])  # change of the orientation inside the quarter at a position


def leaf_indices(places: npt.ArrayLike) -> IntArray:
    """Return the indices (N,) of the leaf cells of latitudes and longitudes (N, 2) in degrees.

    >>> leaf_indices([[0.0, 0.0]]).tolist() == [2**59]
    True
    """
    points = unit_vectors(places)
    rows = np.arange(len(points))
    axis = 2 - np.argmax(np.abs(points[:, ::-1]), axis=1)  # of equal components the last
    depth = points[rows, axis]
    face = axis + 3 * (depth < 0)
    i = _leaf_coordinate(_U_SIGN[face] * points[rows, _U_AXIS[face]] / depth)
    j = _leaf_coordinate(_V_SIGN[face] * points[rows, _V_AXIS[face]] / depth)
    index, orientation = np.asarray(face, np.int64), face & 1
    for bit in range(LEAF_LEVEL - 1, -1, -1):
        position = _POSITION[orientation, 2 * (i >> bit & 1) + (j >> bit & 1)]
        index = index << 2 | position
        orientation = orientation ^ _TURN[position]
    return index


def _leaf_coordinate(u: FloatArray) -> IntArray:
    """Return the row of a leaf cell from a coordinate -1 to 1, by the quadratic map that makes areas nearly equal."""
    root = 0.5 * np.sqrt(1 + 3 * np.abs(u))
    share = np.where(u >= 0, root, 1 - root)
    return np.asarray(np.clip(np.floor(share * 2**LEAF_LEVEL), 0, 2**LEAF_LEVEL - 1), np.int64)


@dataclasses.dataclass(frozen=True)
class Cells:
    """Cells that do not overlap, in the order of their indices.

    Attributes:
        starts: (K,), first leaf index of each.
        levels: (K,), level of each, `FIRST_LEVEL` to `LEAF_LEVEL`.
    """

    starts: IntArray
    levels: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    def numbers(self, indices: IntArray) -> IntArray:
        """Return the number of the cell (N,) of each leaf index (N,); -1 for places outside all cells."""
        if not len(self):
            return np.full(len(indices), -1, np.int64)
        number = np.searchsorted(self.starts, indices, side="right") - 1
        last = self.starts + (np.int64(1) << 2 * (LEAF_LEVEL - self.levels))
        return np.where((number >= 0) & (indices < last[number]), number, -1)

    def tokens(self) -> tuple[str, ...]:
        """Return the names of the cells as S2 writes them: '47e66f' is in Paris.

        >>> paris = partition(np.tile(leaf_indices([[48.8584, 2.2945]]), 9), max_images=9, min_images=1)
        >>> paris.tokens()
        ('47',)
        """
        found = []
        for start, level in zip(self.starts.tolist(), self.levels.tolist(), strict=True):
            middle = 2 * start + (1 << 2 * (LEAF_LEVEL - level))
            found.append(f"{middle:016x}".rstrip("0"))
        return tuple(found)


def partition(indices: IntArray, *, max_images: int, min_images: int) -> Cells:
    """Return the cells of an adaptive partition: each is split into four while it holds more than `max_images`.

    Cells with fewer than `min_images` are left out (Weyand et al. 2016; Mueller-Budack et al. 2018).

    Args:
        indices: (N,) leaf indices of the images.
        max_images: largest number of images in a cell; only a leaf cell, with images at one place, may hold more.
        min_images: smallest number of images in a cell.
    """
    ordered = np.sort(indices)
    found: list[tuple[int, int]] = []
    size = 1 << 2 * (LEAF_LEVEL - FIRST_LEVEL)
    open_cells = [(int(first) * size, FIRST_LEVEL) for first in np.unique(ordered // size)]
    while open_cells:
        start, level = open_cells.pop()
        size = 1 << 2 * (LEAF_LEVEL - level)
        number = int(np.diff(np.searchsorted(ordered, [start, start + size]))[0])
        if number > max_images and level < LEAF_LEVEL:
            open_cells += [(start + quarter * (size // 4), level + 1) for quarter in range(4)]
        elif number >= max(1, min_images):
            found.append((start, level))
    found.sort()
    return Cells(*np.array(found, np.int64).reshape(-1, 2).T)


def mean_places(places: FloatArray, numbers: IntArray, n_cells: int) -> FloatArray:
    """Return the mean places (K, 2) in degrees of the images of each cell: their mean unit vectors.

    Args:
        places: (N, 2), latitude and longitude in degrees.
        numbers: (N,) the cell of each place; -1: none.
        n_cells: K; each has a place.

    >>> mean_places(np.array([[0.0, 170.0], [0.0, -160.0]]), np.array([0, 0]), 1).round(6).tolist()
    [[0.0, -175.0]]
    """
    total, inside = np.zeros((n_cells, 3)), numbers >= 0
    np.add.at(total, numbers[inside], unit_vectors(places[inside]))
    x, y, z = total.T
    return np.asarray(np.degrees(np.stack([np.arctan2(z, np.hypot(x, y)), np.arctan2(y, x)], axis=1)))
