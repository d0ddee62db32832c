"""Pairs of images: with corresponding points, or under a homography."""

import dataclasses
import hashlib
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.dense import correspondence
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.target import Images, Rows, SeveralImages, WithoutValues


@dataclasses.dataclass(frozen=True, eq=False)
class PointPair:
    """Pair of images with K corresponding points.

    Coordinates are x, y in pixels of the upright images: (0, 0) is the centre of the first pixel.

    Attributes:
        source: position of the source image in the images of all pairs.
        target: position of the target image.
        source_points: (K, 2).
        target_points: (K, 2), the same points in the target image.
        side: length to which the thresholds of PCK refer, in pixels of the target image: the longer side of the box of
            its object, or of the image.
        keypoints: the points are a few distinct ones, of which a match may hit another; not those of dense flow.
    """

    source: int
    target: int
    source_points: FloatArray
    target_points: FloatArray
    side: float
    keypoints: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class HomographyPair:
    """Pair of images of one plane.

    Attributes:
        source: position of the source image in the images of all pairs.
        target: position of the target image.
        homography: (3, 3), from pixels of the source image to pixels of the target; the centre of the first pixel is
            (0, 0).
        unit_square: the homography maps shares of width and height, from the outer corner on, in place of pixels.
    """

    source: int
    target: int
    homography: FloatArray
    unit_square: bool = False


class ImagePairs(SeveralImages):
    """N pairs among M images.

    Attributes:
        pairs: of one kind.
    """

    pairs: tuple[PointPair, ...] | tuple[HomographyPair, ...]

    def __len__(self) -> int:
        return len(self.pairs)

    def rows(self, index: int) -> tuple[int, ...]:
        """Return the positions of the source and the target image of a pair."""
        return self.pairs[index].source, self.pairs[index].target

    def among_fewer(self, indices: IntArray) -> dict[str, Any]:
        """Return the fields of the pairs at `indices`, in that order, with their images only."""
        chosen = [self.pairs[i] for i in indices]
        used = sorted({row for pair in chosen for row in (pair.source, pair.target)})
        place = {row: i for i, row in enumerate(used)}
        moved = (dataclasses.replace(p, source=place[p.source], target=place[p.target]) for p in chosen)
        return {"images": self.images.select(np.array(used, dtype=np.int64)), "pairs": tuple(moved)}

    def content_key(self) -> bytes:
        """Return the key of the images and of all numbers."""
        digest = hashlib.sha256(self.images.digests().tobytes())
        for pair in self.pairs:
            for value in dataclasses.astuple(pair):
                # The bytes alone do not tell where a field ends, nor its type.
                array = np.ascontiguousarray(value)
                digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        return ("tuples" + digest.hexdigest()[:32]).encode()


@dataclasses.dataclass(frozen=True, eq=False)
class Points(ImagePairs):
    """Pairs of images of one class with corresponding points.

    Attributes:
        classes: the C classes of the objects.
        values: int64 (N,), positions in `classes`.
    """

    name = "points"
    title = "pairs of images with corresponding points"
    default = ("homography:pictures", "scikit-image's pictures under homographies")
    metric = "pck_per_image@0.1"
    given_columns = correspondence.POINT_COLUMNS
    classes: tuple[str, ...]
    values: npt.NDArray[np.int64]
    images: Images
    pairs: tuple[PointPair, ...]
    sized: bool = False

    def select(self, indices: IntArray) -> Self:
        """Return the pairs at `indices`, in that order, with their images only."""
        return self.changed(values=self.values[indices], **self.among_fewer(indices))

    def text(self, index: int) -> str:
        """Return the class of a pair."""
        return self.classes[int(self.values[index])]

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the shares of points that are found."""
        return correspondence.pck_measures(correspondence.PairHits.of_rows(scores, values), units)


@dataclasses.dataclass(frozen=True, eq=False)
class Homographies(ImagePairs, WithoutValues):
    """Pairs of images under a homography."""

    name = "homography"
    title = "pairs of images under a homography"
    default = ("homography:pictures", "scikit-image's pictures under homographies")
    metric = "match_recall@5px"
    given_columns = correspondence.MATCH_COLUMNS
    classes = ()
    images: Images
    pairs: tuple[HomographyPair, ...]
    sized: bool = False

    def select(self, indices: IntArray) -> Self:
        """Return the pairs at `indices`, in that order, with their images only."""
        return self.changed(**self.among_fewer(indices))

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the shares of right matches."""
        return [correspondence.recall_measure(scores)]
