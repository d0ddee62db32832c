"""Detections as COCO result files: a JSON list of image_id, category_id, bbox, score and, with masks, segmentation."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.errors import DataError, ResultError
from sslbench.metrics.detection.masks import Rle, text
from sslbench.metrics.detection.matches import Detections, corner_and_size


def write_results(
    path: Path, detections: Detections, image_numbers: Sequence[int], class_numbers: Sequence[int]
) -> None:
    """Write the file that pycocotools' `loadRes` reads; it appears when it is complete.

    Args:
        path: path of the file; its folder is created.
        detections: detected objects, in the order of the file.
        image_numbers: the manifest's id of each image.
        class_numbers: the manifest's id of each class.

    Raises:
        ResultError: the file cannot be written.
    """
    boxes = corner_and_size(detections.boxes).tolist()
    rows: list[dict[str, Any]] = [
        {
            "image_id": int(image_numbers[image]),
            "category_id": int(class_numbers[label]),
            "bbox": box,
            "score": float(score),
        }
        for image, label, box, score in zip(detections.images, detections.labels, boxes, detections.scores, strict=True)
    ]
    for row, mask in zip(rows, detections.masks or (), strict=False):
        row["segmentation"] = text(mask)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_text(json.dumps(rows, allow_nan=False), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_results(path: Path, image_numbers: Sequence[int], class_numbers: Sequence[int]) -> Detections:
    """Read a COCO result file.

    Args:
        path: path of the file.
        image_numbers: the manifest's id of each image.
        class_numbers: the manifest's id of each class.

    Raises:
        DataError: the file cannot be read, is no result file, or has an id that is not in the manifest.
    """
    rows = _load(path)
    images = {number: i for i, number in enumerate(image_numbers)}
    classes = {number: i for i, number in enumerate(class_numbers)}
    for i, row in enumerate(rows, start=1):
        if found := _problem(row, images, classes):
            raise DataError(f"{path}, result {i}: {found}")
    boxes = np.array([row["bbox"] for row in rows], dtype=np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    masks: tuple[Rle, ...] = tuple(row["segmentation"] for row in rows if "segmentation" in row)
    if masks and len(masks) < len(rows):
        raise DataError(f"{path}: {len(masks):,} of {len(rows):,} results have a segmentation; all or none should")
    return Detections(
        images=np.array([images[row["image_id"]] for row in rows], dtype=np.int64),
        boxes=boxes,
        scores=np.array([row["score"] for row in rows], dtype=np.float64),
        labels=np.array([classes[row["category_id"]] for row in rows], dtype=np.int64),
        masks=masks or None,
    )


def _load(path: Path) -> list[Any]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is no COCO result file: {error}") from error
    if not isinstance(rows, list):
        raise DataError(
            f"{path} is no COCO result file: it holds a {type(rows).__name__}, not a list",
            "A manifest holds a mapping; predictions are a list of image_id, category_id, bbox, score.",
        )
    return rows


def _problem(row: object, images: dict[int, int], classes: dict[int, int]) -> str | None:
    if not isinstance(row, dict):
        return f"it is {str(row)[:40]!r}, not a mapping"
    for key, known in (("image_id", images), ("category_id", classes)):
        if not isinstance(row.get(key), int) or row[key] not in known:
            return f"{key} {row.get(key)!r} is not in the manifest"
    box = row.get("bbox")
    numbers = [*box, row.get("score")] if isinstance(box, list) and len(box) == 4 else [None]
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in numbers):
        return f"bbox {str(box)[:80]} and score {row.get('score')!r} should be four numbers and one"
    mask = row.get("segmentation")
    if mask is not None and not (isinstance(mask, dict) and isinstance(mask.get("counts"), str) and mask.get("size")):
        return "its segmentation is no compressed run lengths"
    return None
