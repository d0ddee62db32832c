"""Pairs of images with corresponding points, or related by a homography."""

from collections.abc import Sequence

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.targets.images import Images
from sslbench.targets.pairs import Homographies, HomographyPair, PointPair, Points


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
