"""Pairs of images with the pose of the second camera relative to the first."""

import dataclasses
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.metrics import comparisons
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.images import Images
from sslbench.targets.target import Rows
from sslbench.targets.triplets import Placed


@dataclasses.dataclass(frozen=True, eq=False)
class CameraPairs(Placed):
    """Pairs among M images.

    Attributes:
        classes: names of the numbers: of a quaternion, and perhaps of a translation.
        values: float64 (N, 4) or (N, 7).
        images: M images, each of them once.
        places: (N, 2), positions of the first and the second image.
        exact: the annotations say which side of an image is the longer one, and it is.
    """

    name: ClassVar[str] = "camera_pairs"
    title: ClassVar[str] = "pairs of images with a relative pose"
    metric: ClassVar[str] = "rotation_error"
    given_columns: ClassVar[tuple[str, ...]] = comparisons.POSE_COLUMNS
    classes: tuple[str, ...]
    values: npt.NDArray[np.float64]
    images: Images
    places: IntArray
    exact: bool = False

    @property
    def sized(self) -> bool:
        """True if the annotations say the shape of the images."""
        return self.exact

    def select(self, indices: IntArray) -> Self:
        """Return the pairs at `indices`, in that order, with their images only."""
        used, places = np.unique(self.places[indices], return_inverse=True)
        images = self.images.select(used)
        return self.changed(values=self.values[indices], images=images, places=places.reshape(-1, 2))

    def text(self, index: int) -> str:
        """Return the numbers, joined by ';'."""
        return ";".join(repr(float(value)) for value in self.values[index])

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the errors of rotations and translations."""
        return comparisons.pose_measures(scores.astype(np.float64), values.astype(np.float64))
