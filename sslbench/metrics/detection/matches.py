"""Matching of detections to objects by the rules of Pascal VOC and of COCO, for all overlap thresholds at once."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.detection import masks as rle
from sslbench.metrics.detection.keypoints import Skeleton, labelled, similarity
from sslbench.metrics.detection.masks import Rle

Frequency = Literal["r", "c", "f", ""]
"""Rare (in 1 to 10 training images), common (to 100), frequent; '' where the data do not say."""
FREQUENCIES: tuple[Frequency, ...] = ("r", "c", "f", "")
THRESHOLDS: FloatArray = np.arange(50, 100, 5) / 100
"""Overlaps (intersection over union) at which detections are scored; T = 10."""
AT_75 = 5
"""Position of .75 among them."""
COCO_AREAS: FloatArray = np.array([[0, 1e10], [0, 32**2], [32**2, 96**2], [96**2, 1e10]])
"""Area ranges in pixels: all, small, medium, large."""
COCO_MOST = 100
"""Largest number of detections of one class that count on one image."""


@dataclasses.dataclass(frozen=True, eq=False)
class Federated:
    """Classes that were looked for in N images, beside those that have objects there.

    Attributes:
        negative: int64 (n, 2), image and class: the class is not in the image.
        not_exhaustive: int64 (m, 2), image and class: not all of its objects in the image are labelled.
        frequencies: one per class.
    """

    negative: IntArray
    not_exhaustive: IntArray
    frequencies: tuple[Frequency, ...]

    def select(self, images: IntArray, n_images: int) -> "Federated":
        """Return the same of the images at these positions of `n_images`."""
        place = np.full(n_images, -1, dtype=np.int64)
        place[images] = np.arange(len(images))
        return dataclasses.replace(
            self, negative=_moved(self.negative, place, 0), not_exhaustive=_moved(self.not_exhaustive, place, 0)
        )

    def with_classes(self, moved: IntArray, n_classes: int) -> "Federated":
        """Return the same with other class numbers, `moved` (C,); -1 drops a class."""
        names: list[Frequency] = [""] * n_classes
        for old, new in enumerate(moved.tolist()):
            if new >= 0:
                names[new] = self.frequencies[old]
        return Federated(_moved(self.negative, moved, 1), _moved(self.not_exhaustive, moved, 1), tuple(names))


def _moved(pairs: IntArray, place: IntArray, column: int) -> IntArray:
    """Return the pairs with new numbers in a column, without those that have none."""
    found = pairs.reshape(-1, 2).copy()
    found[:, column] = place[found[:, column]]
    return np.asarray(found[found[:, column] >= 0], dtype=np.int64)


def among(pairs: IntArray, images: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], n_classes: int) -> BoolArray:
    """Return for each image and label (n,) whether they are one of the pairs (m, 2)."""
    return np.isin(images * n_classes + labels, pairs[:, 0] * n_classes + pairs[:, 1])


@dataclasses.dataclass(frozen=True, eq=False)
class Truth:
    """Labelled objects (m) of N images.

    Attributes:
        n_images: N; an image without objects counts, since every detection on it is wrong.
        classes: names of the C classes.
        images: int64 (m,), position of the image, 0 .. N - 1.
        boxes: float (m, 4), x1, y1, x2, y2 in pixels; the first pixel of an image reaches from 0 to 1.
        labels: int64 (m,), position in `classes`.
        crowd: bool (m,): a region with many objects, matched by any number of detections and never counted.
        difficult: bool (m,): not counted, and neither are its detections.
        areas: float64 (m,), pixels of the mask, else of the box: small, medium or large by COCO's ranges.
        masks: m run lengths, or None.
        groups: int64 (N,), the group of each image (a video), which intervals keep together; None: each for itself.
        federated: the classes that were looked for in each image; None: all of them.
        keypoints: float64 (m, K, 3), x, y and visibility as in COCO's files, or None.
        skeleton: names and sigmas of the K keypoints; None without them.
    """

    n_images: int
    classes: tuple[str, ...]
    images: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.floating]
    labels: npt.NDArray[np.int64]
    crowd: npt.NDArray[np.bool_]
    difficult: npt.NDArray[np.bool_]
    areas: npt.NDArray[np.float64]
    masks: tuple[Rle, ...] | None = None
    groups: npt.NDArray[np.int64] | None = None
    federated: Federated | None = None
    keypoints: npt.NDArray[np.float64] | None = None
    skeleton: Skeleton | None = None

    def __post_init__(self) -> None:
        lengths = [len(self.labels), len(self.crowd), len(self.difficult), len(self.areas)]
        lengths += [len(part) for part in (self.masks, self.keypoints) if part is not None]
        _check(self.n_images, len(self.classes), self.images, self.boxes, self.labels, lengths)

    def __len__(self) -> int:
        return len(self.images)


@dataclasses.dataclass(frozen=True, eq=False)
class Detections:
    """Detected objects (n) on N images.

    Attributes:
        images: int64 (n,), position of the image, 0 .. N - 1.
        scores: float (n,), higher means more certain.
        labels: int64 (n,), position in the truth's classes.
        masks: n run lengths, or None.
        keypoints: float (n, K, 3), x, y as in COCO's files and a score, or None.
    """

    images: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.floating]
    scores: npt.NDArray[np.floating]
    labels: npt.NDArray[np.int64]
    masks: tuple[Rle, ...] | None = None
    keypoints: npt.NDArray[np.floating] | None = None

    def __post_init__(self) -> None:
        lengths = [len(self.scores), len(self.labels)]
        lengths += [len(part) for part in (self.masks, self.keypoints) if part is not None]
        _check(None, None, self.images, self.boxes, self.labels, lengths)
        if not np.isfinite(self.scores).all():
            raise ValueError("a score of a detection is not a finite number")
        if self.keypoints is not None and not np.isfinite(self.keypoints).all():
            raise ValueError("a keypoint of a detection is not finite")

    def __len__(self) -> int:
        return len(self.images)

    def select(self, chosen: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> "Detections":
        """Return the detections at these positions, or where a mask is true."""
        rows = np.arange(len(self))[chosen]
        masks = None if self.masks is None else tuple(self.masks[i] for i in rows)
        keypoints = None if self.keypoints is None else self.keypoints[rows]
        return Detections(self.images[rows], self.boxes[rows], self.scores[rows], self.labels[rows], masks, keypoints)


def _check(
    n_images: int | None,
    n_classes: int | None,
    images: npt.NDArray[np.int64],
    boxes: npt.NDArray[np.floating],
    labels: npt.NDArray[np.int64],
    lengths: list[int],
) -> None:
    if boxes.shape != (len(images), 4) or set(lengths) - {len(images)}:
        raise ValueError(f"{len(images)} images, boxes {boxes.shape}, other arrays of {lengths}")
    if not np.isfinite(boxes).all():
        raise ValueError("a coordinate of a box is not a finite number")
    for name, values, n in (("image", images, n_images), ("class", labels, n_classes)):
        if len(values) and (values.min() < 0 or (n is not None and values.max() >= n)):
            raise ValueError(f"{name} {values.min()} .. {values.max()}, but there are {n}")


@dataclasses.dataclass(frozen=True, eq=False)
class ClassMatches:
    """Matches of one class: its D detections in order of falling score, for A area ranges and T thresholds.

    Attributes:
        images: (D,), image of each detection.
        places: (D,), number of detections of the class on the same image with a higher score.
        hits: (A, T, D), true positives: the first detection of an object that counts.
        ignored: (A, T, D), neither true nor false positives.
        objects: (A, N), number of objects that count in each image.
        scores: (D,), score of each detection.
    """

    images: IntArray
    places: IntArray
    hits: BoolArray
    ignored: BoolArray
    objects: IntArray
    scores: FloatArray


def match_voc(truth: Truth, detections: Detections, *, as_text: bool) -> list[ClassMatches]:
    """Return the matches of each class by the rule of the VOC development kit."""
    # Overlap is counted in whole pixels, corners included (+1). A detection belongs to the object it overlaps most, if
    # that is more than the threshold: the one of highest score is right, the others wrong, and none counts if the
    # object is difficult.
    found, scores = _inclusive(detections.boxes), detections.scores.astype(np.float64)
    if as_text:
        found, scores = _rounded(found, 1), _rounded(scores, 3)
    there, ignore = _inclusive(truth.boxes), truth.difficult | truth.crowd
    matches = []
    for label in range(len(truth.classes)):
        rows, objects = _rows(detections, scores, label), np.flatnonzero(truth.labels == label)
        overlap, nearest = np.full(len(rows), -np.inf), np.full(len(rows), -1, dtype=np.int64)
        images = detections.images[rows]
        for places, candidates in _by_image(images, truth.images[objects]):
            table = box_overlap(found[rows[places]], there[objects[candidates]], 1)
            best = table.argmax(axis=1)
            overlap[places], nearest[places] = table[np.arange(len(places)), best], objects[candidates[best]]
        hits, ignored = np.zeros((2, 1, len(THRESHOLDS), len(rows)), dtype=np.bool_)
        for t, threshold in enumerate(THRESHOLDS):
            near = np.flatnonzero(overlap > threshold)
            _, first = np.unique(nearest[near], return_index=True)
            hits[0, t, near[first]] = True
            ignored[0, t, near] = ignore[nearest[near]]
        counted = np.bincount(truth.images[objects[~ignore[objects]]], minlength=truth.n_images)
        matches.append(ClassMatches(images, places_of(images), hits & ~ignored, ignored, counted[None], scores[rows]))
    return matches


def match_coco(
    truth: Truth,
    detections: Detections,
    areas: FloatArray,
    *,
    kind: str,
    most: int = COCO_MOST,
    lenient: BoolArray | None = None,
) -> list[ClassMatches]:
    """Return the matches of each class by the rule of COCO (pycocotools, `evaluateImg`).

    `areas`: (n,), area of each detection in pixels; `kind`: shapes that are compared: 'boxes', 'masks', 'boundaries'
    (of masks, see `coco_overlap`) or 'keypoints' (by OKS; objects without a labelled one do not count); `lenient`:
    (n,), detections that are ignored if they match no object; None: no such.
    """
    # In order of falling score, a detection takes the object that it overlaps most among those not yet taken, at or
    # above the threshold; objects that do not count (crowd, difficult, of another size) only if there is no other.
    # Detections of those are ignored, and so are detections of another size that match no object.
    scores = detections.scores.astype(np.float64)
    low, high = COCO_AREAS[:, :1], COCO_AREAS[:, 1:]
    not_counted = truth.crowd | truth.difficult
    if kind == "keypoints" and truth.keypoints is not None:
        not_counted = not_counted | ~labelled(truth.keypoints).any(axis=1)
    matches = []
    for label in range(len(truth.classes)):
        rows, objects = _rows(detections, scores, label), np.flatnonzero(truth.labels == label)
        rows = rows[places_of(detections.images[rows]) < most]
        images, of_objects = detections.images[rows], truth.images[objects]
        uncounted = not_counted[objects] | (truth.areas[objects] < low) | (truth.areas[objects] > high)
        other_size = (areas[rows] < low) | (areas[rows] > high)
        hits = np.zeros((len(COCO_AREAS), len(THRESHOLDS), len(rows)), dtype=np.bool_)
        if lenient is not None:
            other_size = other_size | lenient[rows]
        ignored = np.broadcast_to(other_size[:, None], hits.shape).copy()
        for places, candidates in _by_image(images, of_objects):
            chosen = objects[candidates]
            table = coco_overlap(truth, detections, rows[places], chosen, kind)
            _take(table, truth.crowd[chosen], uncounted[:, candidates], places, hits, ignored)
        counted = np.stack([np.bincount(of_objects[~row], minlength=truth.n_images) for row in uncounted])
        matches.append(ClassMatches(images, places_of(images), hits, ignored, counted, scores[rows]))
    return matches


def _take(
    table: FloatArray, crowd: BoolArray, uncounted: BoolArray, places: IntArray, hits: BoolArray, ignored: BoolArray
) -> None:
    """Match one image and class; `table` (d, g), `crowd` (g,), `uncounted` (A, g); fill the columns `places`."""
    areas, thresholds, size = len(uncounted), len(THRESHOLDS), table.shape[1]
    free = np.ones((areas, thresholds, size), dtype=np.bool_)
    a, t = np.ogrid[:areas, :thresholds]
    least = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]
    near = table.max(axis=1) >= least[0]  # most detections match nothing
    for place, overlaps in zip(places[near], table[near], strict=True):
        able = (overlaps >= least) & free
        # Objects that count come first, whatever the others overlap; of equal overlaps the last one is taken.
        preferred = able & ~uncounted[:, None]
        able = np.where(preferred.any(axis=2, keepdims=True), preferred, able)
        best = size - 1 - np.where(able, overlaps, -1.0)[:, :, ::-1].argmax(axis=2)
        taken = able[a, t, best]
        uncounted_match = uncounted[a, best]
        hits[:, :, place] = taken & ~uncounted_match
        ignored[:, :, place] = np.where(taken, uncounted_match, ignored[:, :, place])
        free[a, t, best] &= ~taken | crowd[best]


def coco_overlap(truth: Truth, detections: Detections, rows: IntArray, objects: IntArray, kind: str) -> FloatArray:
    """Return the overlaps (d, g) of detections with objects, for crowds as shares of the detection."""
    # Of boundaries it is the smaller one of the overlap of the masks and that of their boundaries, but for crowds
    # (Cheng et al. 2021, section 5.1); where that of the masks is below every threshold it stands alone.
    from faster_coco_eval.core import mask

    if kind == "keypoints":
        if truth.keypoints is None or truth.skeleton is None or detections.keypoints is None:
            raise ValueError("keypoints are to be scored, but the objects or the detections have none")
        boxes, points = truth.boxes[objects].astype(np.float64), truth.keypoints[objects]
        return similarity(detections.keypoints[rows], points, boxes, truth.areas[objects], truth.skeleton.sigmas)
    crowd = truth.crowd[objects].tolist()
    if kind != "boxes" and truth.masks is not None and detections.masks is not None:
        found, there = [detections.masks[i] for i in rows], [truth.masks[i] for i in objects]
        table = np.asarray(mask.iou(found, there, crowd), dtype=np.float64).reshape(len(rows), len(objects))
        if kind == "boundaries":
            pairs = np.argwhere((table >= THRESHOLDS[0]) & ~truth.crowd[objects])
            of_found = {int(d): rle.boundary(found[d]) for d in np.unique(pairs[:, 0])}
            of_there = {int(g): rle.boundary(there[g]) for g in np.unique(pairs[:, 1])}
            for d, g in pairs.tolist():
                table[d, g] = min(table[d, g], rle.boundary_overlap(of_found[d], of_there[g]))
        return table
    return np.asarray(
        mask.iou(corner_and_size(detections.boxes[rows]), corner_and_size(truth.boxes[objects]), crowd),
        dtype=np.float64,
    ).reshape(len(rows), len(objects))


def corner_and_size(boxes: npt.NDArray[np.floating]) -> FloatArray:
    """Return boxes (n, 4) of x1, y1, x2, y2 as x, y, width, height, COCO's form."""
    wide = boxes.astype(np.float64)
    return np.concatenate([wide[:, :2], wide[:, 2:] - wide[:, :2]], axis=1)


def areas_of(detections: Detections, *, masks: bool) -> FloatArray:
    """Return the areas (n,) of the boxes or of the masks, in pixels."""
    if masks and detections.masks is not None:
        return rle.areas(detections.masks)
    return np.asarray(corner_and_size(detections.boxes)[:, 2:].prod(axis=1))


def _rows(detections: Detections, scores: FloatArray, label: int) -> IntArray:
    """Return the detections of a class in order of falling score; of equal ones, the earlier image first."""
    rows = np.flatnonzero(detections.labels == label)
    return rows[np.lexsort((detections.images[rows], -scores[rows]))]


def places_of(images: IntArray) -> IntArray:
    """Return for each value the number of equal ones before it, (D,)."""
    order = np.argsort(images, kind="stable")
    _, first, counts = np.unique(images[order], return_index=True, return_counts=True)
    places = np.empty(len(images), dtype=np.int64)
    places[order] = np.arange(len(images)) - np.repeat(first, counts)
    return places


def _by_image(found: IntArray, there: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the positions of detections and of objects, for each image that has both."""
    left, right = np.argsort(found, kind="stable"), np.argsort(there, kind="stable")
    a, b = found[left], there[right]
    for image in np.intersect1d(a, b):
        yield (
            left[np.searchsorted(a, image) : np.searchsorted(a, image, "right")],
            right[np.searchsorted(b, image) : np.searchsorted(b, image, "right")],
        )


def _inclusive(boxes: npt.NDArray[np.floating]) -> FloatArray:
    """Return corners as numbers of pixels inside, from 1 on, as VOC counts them; in the boxes' own precision."""
    shift = np.array([1, 1, 0, 0], dtype=boxes.dtype)
    return np.asarray(boxes + shift, dtype=np.float64)


def _rounded(values: FloatArray, digits: int) -> FloatArray:
    # Formatting rounds the exact binary value; np.round multiplies first and so rounds some values the other way.
    return np.array([float(f"{v:.{digits}f}") for v in values.ravel()], dtype=np.float64).reshape(values.shape)


def box_overlap(a: FloatArray, b: FloatArray, pixel: int) -> FloatArray:
    """Return intersection over union (n, m); sides are longer by `pixel` than the distance of the corners."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = np.prod(np.maximum(high - low + pixel, 0), axis=2)
    sizes = [np.prod(boxes[:, 2:] - boxes[:, :2] + pixel, axis=1) for boxes in (a, b)]
    return np.asarray(common / (sizes[0][:, None] + sizes[1][None] - common))
