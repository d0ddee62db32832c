"""Segmentation masks: every form that manifests use, as COCO run lengths (RLE), and the boundaries of masks.

A `Segmentation` is what a manifest holds: polygons `[[x, y, x, y, ...], ...]`, run lengths as a list or compressed
(`{"size": [height, width], "counts": ...}`), or kwcoco's `{"exterior": [[x, y], ...], "interiors": [...]}`, one or a
list of them. Polygons of one or two corners, which have no area, are passed over.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Segmentation = list[Any] | dict[str, Any]
Rle = dict[str, Any]
"""Compressed run lengths: {"size": [height, width], "counts": bytes}."""

_LEAST = 6  # numbers in a polygon that has an area: three corners
_BOUNDARY_WIDTH = 0.02  # of the diagonal of the image


@dataclasses.dataclass(frozen=True, eq=False)
class Boundary:
    """Pixels of a mask near its edge, in the box around the mask.

    Attributes:
        top: first row of the box.
        pixels: bool (height, width) of the box.
    """

    top: int
    left: int
    pixels: npt.NDArray[np.bool_]


def problem(segmentation: object) -> str | None:
    """Return the reason why a segmentation is malformed, in a few words; None if it is not."""
    if isinstance(segmentation, dict):
        if "exterior" in segmentation:
            rings = [segmentation["exterior"], *(segmentation.get("interiors") or [])]
            return next((found for ring in rings if (found := _ring_problem(ring))), None)
        return _run_lengths_problem(segmentation.get("counts"), segmentation.get("size"))
    if not isinstance(segmentation, list):
        return f"it is {type(segmentation).__name__}, neither polygons nor run lengths"
    if segmentation and all(isinstance(part, dict) for part in segmentation):
        return next((found for part in segmentation if (found := problem(part))), None)
    return next((found for part in segmentation if (found := _polygon_problem(part))), None)


def _run_lengths_problem(counts: object, size: Any) -> str | None:
    if size is None or not isinstance(counts, list | str | bytes):
        return "run lengths need 'counts' and 'size'"
    sides = size if isinstance(size, list | tuple) else ()
    if len(sides) != 2 or not all(isinstance(n, int | np.integer) for n in sides):
        return f"the size of run lengths is height and width, not {size}"
    if isinstance(counts, list) and any(not isinstance(n, int | np.integer) or n < 0 for n in counts):
        return "run lengths are whole numbers"
    if isinstance(counts, list) and sum(counts) != size[0] * size[1]:
        return f"the sum of run lengths is {sum(counts):,}, and {size[0]} x {size[1]} pixels are {size[0] * size[1]:,}"
    return None


def first_problem(segmentations: Sequence[object]) -> tuple[int, str] | None:
    """Return the position of the first malformed segmentation and the reason; None if there is none.

    `segmentations`: None is passed over.

    >>> first_problem([None, [[0, 0, 4, 0, 4, 4]], [[0, 0, 4]]])
    (2, 'a polygon is a list of numbers x, y, x, y, ...')
    """
    # Polygons are checked all together, since a manifest has millions, and one by one if anything about them is odd.
    usual = [type(one) is list and bool(one) and type(one[0]) is list for one in segmentations]
    fine = _are_polygons([one for one, is_usual in zip(segmentations, usual, strict=True) if is_usual])
    for i, one in enumerate(segmentations):
        if one is not None and not (fine and usual[i]) and (found := problem(one)):
            return i, found
    return None


def _are_polygons(segmentations: Sequence[Any]) -> bool:
    """Return whether all lists have nothing but well-formed polygons."""
    rings = list(itertools.chain.from_iterable(segmentations))
    if not set(map(type, rings)) <= {list} or any(length % 2 for length in set(map(len, rings))):
        return False
    if not set(map(type, itertools.chain.from_iterable(rings))) <= {int, float}:
        return False
    try:
        return math.isfinite(sum(itertools.chain.from_iterable(rings)))
    except OverflowError:
        return False


def is_empty(segmentation: Segmentation) -> bool:
    """Return whether it has polygons only, and none of three corners or more."""
    if isinstance(segmentation, dict) and "counts" in segmentation:
        return False
    if type(segmentation) is list and segmentation and type(segmentation[0]) is list:  # most of them
        return max(map(len, segmentation)) < _LEAST
    return not any(len(rings[0]) >= _LEAST for rings in _parts(segmentation))


def to_rle(segmentation: Segmentation, height: int, width: int) -> Rle:
    """Return any form of mask as compressed run lengths of an image of that size; no polygons: an empty mask."""
    from faster_coco_eval.core import mask

    if found := problem(segmentation):
        raise ValueError(f"not a segmentation: {found}")
    if isinstance(segmentation, dict) and "counts" in segmentation:
        if list(segmentation["size"]) != [height, width]:
            raise ValueError(f"run lengths of {segmentation['size']} (height, width), but the image is {height, width}")
        counts = segmentation["counts"]
        if isinstance(counts, list):
            return dict(mask.frPyObjects(segmentation, height, width))
        return {"size": [height, width], "counts": counts.encode() if isinstance(counts, str) else counts}
    parts = [rings for rings in _parts(segmentation) if len(rings[0]) >= _LEAST]
    if not parts:
        return encode(np.zeros((height, width), dtype=np.bool_))
    masks = []
    for rings in parts:
        outer, *holes = mask.frPyObjects([ring for ring in rings if len(ring) >= _LEAST], height, width)
        masks.append(encode(decode(outer) & ~decode(_union(holes))) if holes else dict(outer))
    return _union(masks)


def encode(bitmap: npt.NDArray[np.bool_]) -> Rle:
    """Return the run lengths of a bitmap (height, width)."""
    from faster_coco_eval.core import mask

    return dict(mask.encode(np.asfortranarray(bitmap, dtype=np.uint8)))


def decode(rle: Rle) -> npt.NDArray[np.bool_]:
    """Return the bitmap (height, width) of run lengths."""
    from faster_coco_eval.core import mask

    return np.asarray(mask.decode(rle), dtype=np.bool_)


def areas(rles: Sequence[Rle]) -> npt.NDArray[np.float64]:
    """Return the areas (n,) of n masks in pixels."""
    from faster_coco_eval.core import mask

    return np.asarray(mask.area(list(rles)), dtype=np.float64) if len(rles) else np.zeros(0)


def boundary(rle: Rle) -> Boundary:
    """Return the pixels of a mask at most 2 % of the image's diagonal from its edge (at least one pixel).

    >>> bitmap = np.ones((5, 5), dtype=np.bool_)
    >>> int(boundary(encode(bitmap)).pixels.sum())
    16
    """
    # Cheng et al. 2021 (Boundary IoU, arXiv 2103.16562), as their code does it: by an erosion in steps to all eight
    # neighbours; beyond the image there is no mask.
    import cv2
    from faster_coco_eval.core import mask

    left, top, width, height = (int(side) for side in mask.toBbox(rle))
    steps = max(1, round(_BOUNDARY_WIDTH * math.hypot(*rle["size"])))
    inside = np.asarray(mask.decode(rle))[top : top + height, left : left + width]
    eroded = cv2.erode(np.pad(inside, 1), np.ones((3, 3), np.uint8), iterations=steps)[1:-1, 1:-1]
    return Boundary(top, left, np.asarray(inside != eroded))


def boundary_overlap(a: Boundary, b: Boundary) -> float:
    """Return the intersection over union of two boundaries in one image; 0 for two empty ones."""
    top, left = max(a.top, b.top), max(a.left, b.left)
    bottom, right = (min(x.top + x.pixels.shape[0] for x in (a, b)), min(x.left + x.pixels.shape[1] for x in (a, b)))
    if bottom <= top or right <= left:
        return 0.0
    parts = [x.pixels[top - x.top : bottom - x.top, left - x.left : right - x.left] for x in (a, b)]
    common = int(np.count_nonzero(parts[0] & parts[1]))
    union = int(np.count_nonzero(a.pixels)) + int(np.count_nonzero(b.pixels)) - common
    return common / union if union else 0.0


def text(rle: Rle) -> Rle:
    """Return the run lengths in JSON's form: `counts` is a str."""
    counts = rle["counts"]
    size = [int(side) for side in rle["size"]]
    return {"size": size, "counts": counts.decode("ascii") if isinstance(counts, bytes) else counts}


def _parts(segmentation: Segmentation) -> list[list[list[float]]]:
    """Return the polygons, each with its holes: lists x, y, x, y, ... of the outer ring and of the inner ones."""
    parts = [segmentation] if isinstance(segmentation, dict) else segmentation
    return [
        [[float(x) for point in ring for x in point] for ring in (part["exterior"], *(part.get("interiors") or []))]
        if isinstance(part, dict)
        else [list(map(float, part))]
        for part in parts
    ]


def _ring_problem(ring: object) -> str | None:
    if not isinstance(ring, list) or not all(isinstance(point, list) and len(point) == 2 for point in ring):
        return "a ring of kwcoco is a list of points [x, y]"
    return _polygon_problem([x for point in ring for x in point])


def _polygon_problem(polygon: object) -> str | None:
    if not isinstance(polygon, list) or len(polygon) % 2:
        return "a polygon is a list of numbers x, y, x, y, ..."
    try:
        return None if math.isfinite(math.fsum(polygon)) else "a coordinate is not a finite number"
    except (TypeError, ValueError, OverflowError):
        return "a coordinate is not a finite number"


def _union(rles: Sequence[Rle]) -> Rle:
    from faster_coco_eval.core import mask

    return dict(rles[0]) if len(rles) == 1 else dict(mask.merge(list(rles)))
