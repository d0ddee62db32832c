"""Checks of boxes, shared by the formats with objects, and notes on boxes that were left out or changed."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from sslbench.data.decode.pillow import orientation, upright_size
from sslbench.data.objects.types import Objects
from sslbench.data.regular import open_regular
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.metrics.detection.keypoints import labelled
from sslbench.metrics.detection.masks import is_empty

_SLACK = 1.0
"""Pixels by which a box may leave its image and stay as it is: annotations round, and pycocotools scores them so."""


@dataclasses.dataclass
class BoxIssues:
    """Names of the objects that were left out or changed on reading."""

    empty: list[str] = dataclasses.field(default_factory=list)
    outside: list[str] = dataclasses.field(default_factory=list)
    clipped: list[str] = dataclasses.field(default_factory=list)
    unmasked: list[str] = dataclasses.field(default_factory=list)
    shares: list[str] = dataclasses.field(default_factory=list)
    points_outside: list[str] = dataclasses.field(default_factory=list)
    miscounted: list[str] = dataclasses.field(default_factory=list)
    total: int = 0

    def refuse_shares(self, spec: str) -> None:
        """Refuse data whose boxes all lie between 0 and 1, with fractions: shares of the image, not pixels.

        Raises:
            DataError: they do.
        """
        if self.shares and len(self.shares) == self.total:
            raise DataError(
                f"{spec}: all {counted(self.total, 'box')} lie between 0 and 1 ({some(self.shares, 2)}): they seem to "
                "be shares of the image, and pixels are expected",
                "Multiply x by the width and y by the height of the image. Text files of YOLO hold shares and are "
                "read as such.",
            )

    def notes(self, spec: str) -> tuple[str, ...]:
        """Return one sentence for each kind of change."""
        found = []
        if self.empty:
            found.append(f"{counted(len(self.empty), 'object')} without width or height left out: {some(self.empty)}")
        if self.outside:
            found.append(f"{counted(len(self.outside), 'object')} outside of the image left out: {some(self.outside)}")
        if self.clipped:
            hint = ""
            if len(self.clipped) > self.total / 4:
                hint = " (check that boxes are x, y, width, height and that sizes are those of the images)"
            found.append(f"{counted(len(self.clipped), 'box')} clipped to the image: {some(self.clipped)}{hint}")
        if self.unmasked:
            many = counted(len(self.unmasked), "mask")
            found.append(
                f"{many} without area (fewer than three corners), which no prediction can match: {some(self.unmasked)}"
            )
        if self.points_outside:
            many = counted(len(self.points_outside), "object")
            found.append(f"{many} with labelled keypoints outside of the image: {some(self.points_outside)}")
        if self.miscounted:
            many = counted(len(self.miscounted), "object")
            found.append(
                f"{many} whose num_keypoints is not the number of labelled keypoints, which counts: "
                f"{some(self.miscounted)}"
            )
        return tuple(f"{spec}: {sentence}" for sentence in found)


def reports_changed_boxes(note: str) -> bool:
    """Return whether a note of a source is one of `BoxIssues.notes`: objects that were left out or changed."""
    return any(
        part in note
        for part in (" left out: ", " clipped to the image: ", " without area ", " keypoints outside ", "num_keypoints")
    )


def checked_objects(
    rows: list[dict[str, Any]], size: tuple[int, int], issues: BoxIssues, keypoints: int | None = None
) -> Objects:
    """Return one image's objects from dictionaries: name, box, label, crowd, difficult, area or None, mask or None.

    They may have a number, the id of the annotation, and as given the four numbers that stand in the file.

    Args:
        rows: boxes are x1, y1, x2, y2, finite.
        size: height and width of the image; zeros if not known, then nothing is clipped.
        issues: takes the names of the objects that were left out or clipped.
        keypoints: number of keypoints of each object, which then has them: K triples x, y, visibility.
    """
    kept, boxes = [], []
    issues.total += len(rows)
    for row in rows:
        x1, y1, x2, y2 = box = row["box"]
        height, width = size
        if _are_shares(row.get("given", box)):
            issues.shares.append(row["name"])
        if not (x2 > x1 and y2 > y1):
            issues.empty.append(row["name"])
            continue
        if height and (min(x1, y1) < -_SLACK or x2 > width + _SLACK or y2 > height + _SLACK):
            box = (max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height)))
            if not (box[2] > box[0] and box[3] > box[1]):
                issues.outside.append(row["name"])
                continue
            issues.clipped.append(row["name"])
        if row["mask"] is not None and is_empty(row["mask"]):
            issues.unmasked.append(row["name"])
        kept.append(row)
        boxes.append(box)
    array: npt.NDArray[np.float64] = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    of_boxes = (array[:, 2:] - array[:, :2]).prod(axis=1)
    areas = [of_box if row["area"] is None else row["area"] for row, of_box in zip(kept, of_boxes, strict=True)]
    masks = tuple(row["mask"] for row in kept)
    return Objects(
        boxes=array.astype(np.float32),
        classes=np.array([row["label"] for row in kept], dtype=np.int64),
        crowd=np.array([row["crowd"] for row in kept], dtype=np.bool_),
        difficult=np.array([row["difficult"] for row in kept], dtype=np.bool_),
        areas=np.array(areas, dtype=np.float64),
        masks=masks if any(mask is not None for mask in masks) else None,
        numbers=np.array([row["number"] for row in kept], dtype=np.int64) if rows and "number" in rows[0] else None,
        keypoints=None if keypoints is None else _checked_points(kept, size, keypoints, issues),
    )


def _checked_points(
    rows: list[dict[str, Any]], size: tuple[int, int], number: int, issues: BoxIssues
) -> npt.NDArray[np.float64]:
    """Return the keypoints of an image's objects, (n, K, 3); what is odd about them is noted."""
    points = np.array([row["keypoints"] for row in rows], dtype=np.float64).reshape(-1, number, 3)
    there = labelled(points)
    height, width = size
    at = points[:, :, :2]
    outside = there & ((at < -_SLACK) | (at > np.array([width, height]) - 1 + _SLACK)).any(axis=2)
    issues.points_outside += [row["name"] for row, out in zip(rows, outside, strict=True) if height and out.any()]
    counts = there.sum(axis=1).tolist()
    told = [row.get("num_keypoints") for row in rows]
    issues.miscounted += [row["name"] for row, n, said in zip(rows, counts, told, strict=True) if said not in (None, n)]
    return points


def _are_shares(box: tuple[float, float, float, float]) -> bool:
    """Return whether all numbers lie between 0 and 1, and one is no whole number (0, 0, 1, 1 may be a pixel)."""
    return all(0 <= value <= 1.001 for value in box) and any(value != int(value) for value in box)


def size_in_file(path: Path) -> tuple[int, int]:
    """Read height and width of the upright image from the head of its file; zeros if that fails."""
    try:
        with open_regular(str(path)) as file, Image.open(file) as image:
            return upright_size(image, orientation(image))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        logging.getLogger("sslbench").debug("%s: no size (%s)", path, error)
        return 0, 0
