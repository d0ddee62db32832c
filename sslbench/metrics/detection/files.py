"""Detections as COCO result files: a JSON list of image_id, category_id, bbox, score and, with masks, segmentation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sslbench.errors import ResultError
from sslbench.metrics.detection.masks import text
from sslbench.metrics.detection.matches import Detections, corner_and_size
from sslbench.paths import temporary_beside


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
    try:
        with temporary_beside(path) as temporary:
            temporary.write_text(json.dumps(rows, allow_nan=False), encoding="utf-8")
            temporary.replace(path)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from error
