"""Triplets of images with a choice: the candidate that is more similar to a reference."""

import dataclasses
import hashlib
from typing import ClassVar, Self

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

    name: ClassVar[str] = "triplets"
    title: ClassVar[str] = "triplets of images with a choice"
    default: ClassVar[tuple[str, str]] = ("triplets:textures:images", "triplets made of drawn textures")
    metric: ClassVar[str] = "choice_accuracy"
    given_columns: ClassVar[tuple[str, ...]] = ranking.CHOICE_COLUMNS
    classes = ("left", "right")
    values: npt.NDArray[np.int64]
    images: Images
    places: IntArray

    def select(self, indices: IntArray) -> Self:
        """Return the triplets at `indices`, in that order, with their images only."""
        used, places = np.unique(self.places[indices], return_inverse=True)
        images = self.images.select(used)
        return self.changed(values=self.values[indices], images=images, places=places.reshape(-1, 3))

    def text(self, index: int) -> str:
        """Return the choice."""
        return self.classes[int(self.values[index])]

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the agreement with the choices."""
        return [ranking.choice_measure(scores, values)]
