"""Triplets of images with a choice: the candidate that is more similar to a reference."""

import dataclasses
import hashlib
from typing import Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.metrics import ranking
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.target import Images, Rows, SeveralImages


class Placed(SeveralImages):
    """Samples of n images each, known by their places among all images.

    Attributes:
        places: (N, n).
    """

    places: IntArray

    def rows(self, index: int) -> tuple[int, ...]:
        """Return the positions of the images of a sample."""
        return tuple(self.places[index].tolist())

    def select(self, indices: IntArray) -> Self:
        """Return the samples at `indices`, in that order, with their images only."""
        used, places = np.unique(self.places[indices], return_inverse=True)
        # By the version of numpy, the inverse of a matrix is flat or has its shape.
        images, places = self.images.select(used), places.reshape(-1, self.places.shape[1])
        return self.changed(values=self.values[indices], images=images, places=places)

    def content_key(self) -> bytes:
        """Return the key of the images and of their places."""
        digest = hashlib.sha256(self.images.digests().tobytes())
        digest.update(np.ascontiguousarray(self.places, dtype=np.int64).tobytes())
        return ("tuples" + digest.hexdigest()[:32]).encode()


@dataclasses.dataclass(frozen=True, eq=False)
class Triplets(Placed):
    """Triplets among M images.

    Attributes:
        values: int64 (N,), 0: the left candidate is the more similar one; 1: the right.
        images: M images, each of them once.
        places: (N, 3), positions of the reference, the left and the right candidate.
    """

    name = "triplets"
    title = "triplets of images with a choice"
    default = ("triplets:textures:images", "triplets made of drawn textures")
    metric = "choice_accuracy"
    given_columns = ranking.CHOICE_COLUMNS
    classes = ("left", "right")
    values: npt.NDArray[np.int64]
    images: Images
    places: IntArray

    def text(self, index: int) -> str:
        """Return the choice."""
        return self.classes[int(self.values[index])]

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the agreement with the choices."""
        return [ranking.choice_measure(scores, values)]
