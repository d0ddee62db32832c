"""The objects that are there and the objects that were found, as arrays over all images of a test set."""

import dataclasses

import numpy as np
import numpy.typing as npt

from sslbench.metrics.masks import Rle


@dataclasses.dataclass(frozen=True, eq=False)
class Truth:
    """The m labelled objects of N images.

    Attributes:
        n_images: N; an image without objects counts, since whatever is found on it is wrong.
        classes: the C names.
        images: int64 (m,), position of the image, 0 .. N - 1.
        boxes: float (m, 4), x1, y1, x2, y2 in pixels; the first pixel of an image reaches from 0 to 1.
        labels: int64 (m,), position in `classes`.
        crowd: bool (m,): a region with many objects, matched by any number of detections and never counted.
        difficult: bool (m,): not counted, and neither is what finds it.
        areas: float64 (m,), pixels, by which COCO calls an object small, medium or large (of the mask if there is one).
        masks: m run lengths, or None.
        groups: int64 (N,), the group of each image (a video), which intervals keep together; None: each for itself.
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

    def __post_init__(self) -> None:
        lengths = [len(self.labels), len(self.crowd), len(self.difficult), len(self.areas)]
        lengths += [len(self.masks)] if self.masks is not None else []
        _check(self.n_images, len(self.classes), self.images, self.boxes, self.labels, lengths)

    def __len__(self) -> int:
        return len(self.images)


@dataclasses.dataclass(frozen=True, eq=False)
class Detections:
    """The n objects that a detector found on N images.

    Attributes:
        images: int64 (n,), position of the image, 0 .. N - 1.
        boxes: float (n, 4), x1, y1, x2, y2 as in `Truth`.
        scores: float (n,), higher means surer.
        labels: int64 (n,), position in the truth's classes.
        masks: n run lengths, or None.
    """

    images: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.floating]
    scores: npt.NDArray[np.floating]
    labels: npt.NDArray[np.int64]
    masks: tuple[Rle, ...] | None = None

    def __post_init__(self) -> None:
        lengths = [len(self.scores), len(self.labels), *([len(self.masks)] if self.masks is not None else [])]
        _check(None, None, self.images, self.boxes, self.labels, lengths)
        if not np.isfinite(self.scores).all():
            raise ValueError("a score of a detection is not a finite number")

    def __len__(self) -> int:
        return len(self.images)

    def select(self, chosen: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> "Detections":
        """Some of them."""
        rows = np.arange(len(self))[chosen]
        masks = None if self.masks is None else tuple(self.masks[i] for i in rows)
        return Detections(self.images[rows], self.boxes[rows], self.scores[rows], self.labels[rows], masks)


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
