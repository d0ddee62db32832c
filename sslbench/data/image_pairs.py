"""Pairs of images with corresponding points, or related by a homography."""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from sslbench.arrays import FloatArray, IntArray
from sslbench.data.labels import no_labels
from sslbench.data.source import Images, Labels, Source
from sslbench.data.wording import some
from sslbench.errors import DataError


@dataclasses.dataclass(frozen=True, eq=False)
class PointPair:
    """Pair of images with K corresponding points.

    Coordinates are x, y in pixels of the upright images: (0, 0) is the centre of the first pixel.

    Attributes:
        source: position of the source image in `ImagePairs.images`.
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
        source: position of the source image in `ImagePairs.images`.
        target: position of the target image.
        homography: (3, 3), from pixels of the source image to pixels of the target; the centre of the first pixel is
            (0, 0).
        unit_square: the homography maps shares of width and height, from the outer corner on, in place of pixels.
    """

    source: int
    target: int
    homography: FloatArray
    unit_square: bool = False


Pair = PointPair | HomographyPair


@dataclasses.dataclass(frozen=True, eq=False)
class ImagePairs:
    """N pairs among M images; see `source.ImageTuples`.

    Attributes:
        images: M images, each of them once.
        pairs: N pairs of one kind.
        sized: the annotations say the size of the images.
    """

    images: Images
    pairs: tuple[Pair, ...]
    sized: bool = False

    def rows(self, index: int) -> tuple[int, ...]:
        """Return the positions of the source and the target image of a pair."""
        return self.pairs[index].source, self.pairs[index].target

    def select(self, indices: IntArray) -> "ImagePairs":
        """Return the pairs at `indices`, in that order, with their images only."""
        chosen = [self.pairs[i] for i in indices]
        used = sorted({row for pair in chosen for row in (pair.source, pair.target)})
        place = {row: i for i, row in enumerate(used)}
        moved = (dataclasses.replace(p, source=place[p.source], target=place[p.target]) for p in chosen)
        images = self.images.select(np.array(used, dtype=np.int64))
        return dataclasses.replace(self, images=images, pairs=tuple(moved))

    def fingerprint(self) -> str:
        """Return a hash of the images and of all numbers, 32 hex digits."""
        digest = hashlib.sha256(self.images.digests().tobytes())
        for pair in self.pairs:
            for value in dataclasses.astuple(pair):
                array = np.ascontiguousarray(value)
                digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        return digest.hexdigest()[:32]


def pairs_source(
    name: str,
    ids: Sequence[str],
    images: Images,
    pairs: Sequence[Pair],
    *,
    classes: Sequence[str] = (),
    notes: tuple[str, ...] = (),
    sized: bool = False,
) -> Source:
    """Return the source of pairs, in order of their ids.

    Pairs of one source image have the same value of the attribute 'image', and stay together in comparisons.

    Args:
        name: location as the user wrote it, with the split.
        ids: N unique ids.
        images: all of the images.
        pairs: N pairs of one kind.
        classes: N names of the classes of pairs with points; () for pairs under homographies.
        notes: of the source.
        sized: the annotations say the size of the images, and it is theirs.

    Raises:
        DataError: no pair is given.
    """
    if not pairs:
        raise DataError(f"{name} has no pair of images")
    order = sorted(range(len(ids)), key=ids.__getitem__)
    chosen = tuple(pairs[i] for i in order)
    labels = dataclasses.replace(no_labels(len(ids)), kind="homography")
    if isinstance(chosen[0], PointPair):
        names = tuple(sorted(set(classes)))
        labels = Labels("points", names, np.array([names.index(classes[i]) for i in order], dtype=np.int64))
    first = images.select(np.array([pair.source for pair in chosen], dtype=np.int64))
    return Source(
        name,
        tuple(ids[i] for i in order),
        labels,
        first,
        notes,
        {"image": tuple(images.path(pair.source) for pair in chosen)},
        "image",
        tuples=ImagePairs(images, chosen, sized),
    )


def check_points(name: str, ids: Sequence[str], pairs: Sequence[PointPair], sizes: Sequence[tuple[int, int]]) -> None:
    """Refuse pairs without points, without an extent of the target, or with points outside their images.

    Args:
        name: of the data.
        ids: of the pairs.
        pairs: N pairs.
        sizes: height and width of each image.

    Raises:
        DataError: lists all of them.
    """
    problems = {
        "have no point that is visible in both images": list[str](),
        "have points outside the image": list[str](),
    }
    empty, outside = problems.values()
    sides: list[str] = []
    for pair_id, pair in zip(ids, pairs, strict=True):
        if not len(pair.source_points):
            empty.append(pair_id)
        if not pair.side > 0:
            sides.append(pair_id)
        both = ((pair.source, pair.source_points), (pair.target, pair.target_points))
        if not all(_inside(points, sizes[image]) for image, points in both):
            outside.append(pair_id)
    problems["have a target box without extent"] = sides
    found = [
        f"{len(which):,} of {len(ids):,} pairs {what}: {some(which, 5)}" for what, which in problems.items() if which
    ]
    if found:
        raise DataError(f"{name}:\n" + "\n".join(f"  {line}" for line in found), "Correct or remove these annotations.")


def _inside(points: FloatArray, size: tuple[int, int]) -> bool:
    """Return whether points lie on an image, up to a pixel beyond its edge, since annotations may count from 1."""
    height, width = size
    finite = bool(np.isfinite(points).all())
    return finite and bool((points >= -1).all() and (points[:, 0] <= width).all() and (points[:, 1] <= height).all())
