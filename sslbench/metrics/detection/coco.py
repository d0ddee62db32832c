"""COCO evaluation by faster-coco-eval, whose numbers are those of pycocotools."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.metrics.detection.keypoints import labelled
from sslbench.metrics.detection.matches import Detections, Truth, corner_and_size

_OUT_OF_RANGE = 1e11  # pixels, above every area range: COCO leaves such an object and its detections out


_TYPES: dict[str, Literal["bbox", "segm", "keypoints"]] = {"boxes": "bbox", "masks": "segm", "keypoints": "keypoints"}


def evaluate(truth: Truth, detections: Detections, areas: FloatArray, *, kind: str) -> tuple[FloatArray, FloatArray]:
    """Return precision (T, 101, C, A, M) and recall (T, C, A, M) of pycocotools, NaN where it has none.

    The last axis is the number of detections per image, 1, 10 and 100; areas are all, small, medium and large. Of
    keypoints it is 20 alone, and areas are all, medium and large.

    `areas`: (n,), area of each detection in pixels.
    """
    from faster_coco_eval.core.coco import COCO
    from faster_coco_eval.core.faster_eval_api import COCOeval_faster

    evaluation = COCOeval_faster(
        COCO(_truth(truth, kind)),
        COCO(_detections(truth, detections, areas, kind)),
        iouType=_TYPES[kind],
        print_function=lambda *_: None,
        kpt_oks_sigmas=list(truth.skeleton.sigmas) if kind == "keypoints" and truth.skeleton is not None else None,
    )
    evaluation.evaluate()
    evaluation.accumulate()
    precision, recall = (np.asarray(evaluation.eval[name], dtype=np.float64) for name in ("precision", "recall"))
    return np.where(precision < 0, np.nan, precision), np.where(recall < 0, np.nan, recall)


def means(parts: Sequence[FloatArray]) -> list[float]:
    """Return the mean of each part over all that have a value, as pycocotools summarises its tables."""
    return [float(np.nanmean(part)) if not np.isnan(part).all() else float("nan") for part in parts]


def _tables(truth: Truth, annotations: list[dict[str, Any]], sizes: dict[int, tuple[int, int]]) -> dict[str, Any]:
    images = [
        {"id": i + 1, "height": sizes.get(i, (0, 0))[0], "width": sizes.get(i, (0, 0))[1]}
        for i in range(truth.n_images)
    ]
    categories = [{"id": c + 1, "name": name} for c, name in enumerate(truth.classes)]
    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}


def _truth(truth: Truth, kind: str) -> dict[str, Any]:
    boxes = corner_and_size(truth.boxes).tolist()
    rows: list[dict[str, Any]] = [
        {
            "id": i + 1,  # pycocotools takes 0 for "not matched"
            "image_id": int(truth.images[i]) + 1,
            "category_id": int(truth.labels[i]) + 1,
            "bbox": boxes[i],
            "area": _OUT_OF_RANGE if truth.difficult[i] else float(truth.areas[i]),
            "iscrowd": int(truth.crowd[i]),
        }
        for i in range(len(truth))
    ]
    sizes: dict[int, tuple[int, int]] = {}
    if kind == "keypoints" and truth.keypoints is not None:
        counts = np.where(truth.difficult, 0, labelled(truth.keypoints).sum(axis=1)).tolist()
        for row, points, number, area in zip(rows, truth.keypoints, counts, truth.areas.tolist(), strict=True):
            # Without labelled keypoints it is left out; OKS needs the area of a difficult object too.
            row |= {"keypoints": points.ravel().tolist(), "num_keypoints": number, "area": area}
    if kind == "masks" and truth.masks is not None:
        for i, (row, mask) in enumerate(zip(rows, truth.masks, strict=True)):
            row["segmentation"] = mask
            sizes[int(truth.images[i])] = (mask["size"][0], mask["size"][1])
    return _tables(truth, rows, sizes)


def _detections(truth: Truth, detections: Detections, areas: FloatArray, kind: str) -> dict[str, Any]:
    boxes = corner_and_size(detections.boxes).tolist()
    rows: list[dict[str, Any]] = [
        {
            "id": i + 1,
            "image_id": int(detections.images[i]) + 1,
            "category_id": int(detections.labels[i]) + 1,
            "bbox": boxes[i],
            "score": float(detections.scores[i]),
            "area": float(areas[i]),
            "iscrowd": 0,
        }
        for i in range(len(detections))
    ]
    sizes: dict[int, tuple[int, int]] = {}
    if kind == "keypoints" and detections.keypoints is not None:
        for row, points in zip(rows, detections.keypoints, strict=True):
            row["keypoints"] = points.ravel().tolist()
    if kind == "masks" and detections.masks is not None:
        for i, (row, mask) in enumerate(zip(rows, detections.masks, strict=True)):
            row["segmentation"] = mask
            sizes[int(detections.images[i])] = (mask["size"][0], mask["size"][1])
    return _tables(truth, rows, sizes)
