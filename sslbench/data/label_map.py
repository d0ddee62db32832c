"""The label map of one image."""

import dataclasses

import numpy as np
import numpy.typing as npt

Grid = npt.NDArray[np.int32]
"""(H, W)."""

IGNORED, UNKNOWN = -1, -2
"""Classes of ignored pixels, and of values that are no class."""


@dataclasses.dataclass(frozen=True, eq=False)
class LabelMap:
    """Label map of one image.

    Attributes:
        semantic: int32 (H, W), position in the source's classes; -1: the pixel does not count.
        instances: int32 (H, W), 0: no instance, else a number that differs between the instances of the image; None if
            nothing tells instances apart.
    """

    semantic: Grid
    instances: Grid | None
