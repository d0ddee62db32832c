"""Pairs of images with corresponding points, or related by a homography, and images warped by one."""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.data.changed import ChangedPictures
from sslbench.data.decode.handlers import PictureDecoder, picture_of
from sslbench.data.decode.picture import Decoded
from sslbench.data.images import digests_with
from sslbench.data.source import Source
from sslbench.data.wording import refuse_problems
from sslbench.errors import DataError
from sslbench.targets.pairs import Homographies, HomographyPair, PointPair, Points
from sslbench.targets.target import Images


def pairs_source(
    name: str,
    ids: Sequence[str],
    images: Images,
    pairs: Sequence[PointPair | HomographyPair],
    *,
    classes: Sequence[str] = (),
    notes: tuple[str, ...] = (),
    sized: bool = False,
) -> Source:
    """Return the source of pairs, in order of their ids.

    Pairs of one source image have the same value of the attribute 'image', and stay together in comparisons.

    `classes` has one name per pair with points; `sized`: the annotations say the size of the images, and it is theirs.
    """
    if not pairs:
        raise DataError(f"{name} has no pair of images")
    order = sorted(range(len(ids)), key=ids.__getitem__)
    chosen = [pairs[i] for i in order]
    target: Points | Homographies
    if isinstance(chosen[0], PointPair):
        names = tuple(sorted(set(classes)))
        values = np.array([names.index(classes[i]) for i in order], dtype=np.int64)
        target = Points(names, values, images, tuple(p for p in chosen if isinstance(p, PointPair)), sized)
    else:
        target = Homographies(images, tuple(p for p in chosen if isinstance(p, HomographyPair)), sized)
    first = images.select(np.array([pair.source for pair in chosen], dtype=np.int64))
    return Source(
        name,
        tuple(ids[i] for i in order),
        target,
        first,
        notes,
        {"image": tuple(images.path(pair.source) for pair in chosen)},
        "image",
    )


def check_points(name: str, ids: Sequence[str], pairs: Sequence[PointPair], sizes: Sequence[tuple[int, int]]) -> None:
    """Refuse pairs without points, without an extent of the target, or with points outside their images."""
    empty, outside, sides = list[str](), list[str](), list[str]()
    for pair_id, pair in zip(ids, pairs, strict=True):
        if not len(pair.source_points):
            empty.append(pair_id)
        if not pair.side > 0:
            sides.append(pair_id)
        both = ((pair.source, pair.source_points), (pair.target, pair.target_points))
        # Up to a pixel beyond the edge, since annotations may count from 1; nan fails, too.
        if not all(((points >= -1) & (points <= sizes[image][::-1])).all() for image, points in both):
            outside.append(pair_id)
    problems = {
        "have no point that is visible in both images": empty,
        "have points outside the image": outside,
        "have a target box without extent": sides,
    }
    refuse_problems(name, "pairs", len(ids), problems, "Correct or remove these annotations.")


STRENGTHS = (0.05, 0.1, 0.15, 0.2, 0.25)
"""Largest displacements of the corners, as shares of the sides: one copy of each image per value."""


def corner_homography(generator: np.random.Generator, strength: float) -> FloatArray:
    """Return a homography (3, 3) of the unit square that moves each corner by up to `strength` along either axis.

    DeTone et al. 2016 (HomographyNet), section 3.

    >>> moved = corner_homography(np.random.default_rng(0), 0.1)
    >>> bool(np.abs(moved[:2, 2] / moved[2, 2]).max() <= 0.1)  # the corner at the origin
    True
    """
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    targets = corners + generator.uniform(-strength, strength, (4, 2))
    rows = []
    for (x, y), (u, v) in zip(corners, targets, strict=True):
        # Direct linear transform with the last entry 1: two equations for each corner.
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
    solved = np.linalg.solve(np.array(rows), targets.ravel())
    return np.append(solved, 1.0).reshape(3, 3)


def in_pixels(homography: FloatArray, height: int, width: int) -> FloatArray:
    """Return a homography of the unit square as one of the pixels of an image, whose first centre is (0, 0)."""
    # The unit square begins at the outer corner of the first pixel, half a pixel before its centre.
    to_unit = np.array([[1 / width, 0, 0.5 / width], [0, 1 / height, 0.5 / height], [0, 0, 1]])
    return np.asarray(np.linalg.inv(to_unit) @ homography @ to_unit)


@dataclasses.dataclass(frozen=True, eq=False)
class WarpedImages(ChangedPictures):
    """Images and warped copies of them.

    Attributes:
        base: M images.
        rows: int64 (N,), row of each in `base`.
        homographies: (N, 3, 3) of the unit square; the identity leaves the image as it is.
        reflected: places that no pixel is mapped to show the image mirrored at its border; otherwise they are black.
    """

    of_rows = ("rows", "homographies")
    rows: IntArray
    homographies: FloatArray
    reflected: bool = False

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Return the warped picture that `decoder` reads, of the same size."""
        import cv2
        import torch

        full = decoder.wanting(dataclasses.replace(decoder.wanted, resize=None))
        whole = picture_of(self.base, int(self.rows[index]), full)
        if np.array_equal(self.homographies[index], np.eye(3)):
            return whole
        picture = np.ascontiguousarray(whole.image.permute(1, 2, 0).numpy())
        height, width = picture.shape[:2]
        matrix = in_pixels(self.homographies[index], height, width)
        border = cv2.BORDER_REFLECT_101 if self.reflected else cv2.BORDER_CONSTANT
        warped = cv2.warpPerspective(picture, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=border)
        # OpenCV drops the last axis of a single channel.
        image = torch.from_numpy(warped.reshape(height, width, -1)).permute(2, 0, 1)
        return dataclasses.replace(whole, image=image)

    def path(self, index: int) -> str:
        """Return the name of the image; of a copy 'a.jpg (warped)'."""
        name = self.base.path(int(self.rows[index]))
        return name if np.array_equal(self.homographies[index], np.eye(3)) else f"{name} (warped)"

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return the digest of content and homography of each image, (N, 16); zeros for unreadable images."""
        border = b"reflected" if self.reflected else b""
        return digests_with(self.base.digests()[self.rows], [matrix.tobytes() + border for matrix in self.homographies])


def homography_pairs(source: Source, name: str) -> Source:
    """Return pairs of every image with a copy of it under each of five homographies of growing strength.

    The homographies of an image follow from its id alone: not from other images, nor from a seed of the run.
    """
    per_image = 1 + len(STRENGTHS)
    matrices, pairs, ids = [], [], []
    for row, sample in enumerate(source.ids):
        generator = np.random.default_rng(list(hashlib.sha256(sample.encode()).digest()))
        matrices.append(np.eye(3))
        for k, strength in enumerate(STRENGTHS, start=1):
            matrices.append(corner_homography(generator, strength))
            pairs.append(HomographyPair(row * per_image, row * per_image + k, matrices[-1], unit_square=True))
            ids.append(f"{sample}/{k}")
    rows = np.repeat(np.arange(len(source), dtype=np.int64), per_image)
    images = WarpedImages(source.images, rows, np.array(matrices).reshape(-1, 3, 3))
    return pairs_source(name, ids, images, pairs, notes=source.notes)
