"""Images that persons compared: triplets with the more similar candidate, and pairs with a rating."""

import dataclasses
import hashlib
from typing import Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics import ranking, regression
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


class Compared(Placed):
    """Samples of images that persons compared: the first of each with the others."""

    @classmethod
    def score(cls, similarities: FloatArray) -> FloatArray:
        """Return the score of each sample (N,) from the similarities of its first image to the others (N, n - 1)."""
        raise NotImplementedError

    @classmethod
    def notes(cls, scores: FloatArray) -> tuple[str, ...]:
        """Return remarks on scores (N,)."""
        return ()


@dataclasses.dataclass(frozen=True, eq=False)
class Triplets(Compared):
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
    def score(cls, similarities: FloatArray) -> FloatArray:
        """Return the similarity of the right candidate minus that of the left one."""
        return similarities[:, 1] - similarities[:, 0]

    @classmethod
    def notes(cls, scores: FloatArray) -> tuple[str, ...]:
        """Tell the number of equal similarities."""
        ties = int((scores == 0).sum())
        text = f"{ties:,} of {len(scores):,} triplets have equal similarities and count one half."
        return (text,) if ties else ()

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the agreement with the choices."""
        return [ranking.choice_measure(scores, values)]


@dataclasses.dataclass(frozen=True, eq=False)
class RatedPairs(Compared):
    """Pairs among M images, each with the similarity that persons gave it.

    Attributes:
        values: float64 (N, 1), ratings; only their order counts.
        images: M images, each of them once.
        places: (N, 2), positions of both images.
    """

    name = "rated_pairs"
    title = "pairs of images with a rating"
    metric = "spearman"
    given_columns = ("similarity of the two images",)
    classes = ("rating",)
    values: npt.NDArray[np.float64]
    images: Images
    places: IntArray

    def text(self, index: int) -> str:
        """Return the rating."""
        return repr(float(self.values[index, 0]))

    @classmethod
    def score(cls, similarities: FloatArray) -> FloatArray:
        """Return the similarity of the second image to the first."""
        return similarities[:, 0]

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the rank correlation with the ratings."""
        return [Measure((regression.SPEARMAN,), regression.Ranks(values, scores).correlation)]
