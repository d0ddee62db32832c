"""Scores of one video by every map."""

import dataclasses
from collections.abc import Callable

from sslbench.arrays import FloatArray

KEPT = "first labels kept"
"""Name of the scores of the labels of the first frame in every frame."""
FrameDone = Callable[[], None]
"""Function that is called after each frame."""


@dataclasses.dataclass(frozen=True)
class Tracked:
    """Scores of one video.

    Attributes:
        rows: name of a map, or `KEPT` -> its scores (K,), of which metrics are made by `summary.measures`.
        grids: name of a map -> rows and columns of its cells.
    """

    rows: dict[str, FloatArray]
    grids: dict[str, tuple[int, int]]
