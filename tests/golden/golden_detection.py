"""Average precision of object detection as Detectron2 (Pascal VOC) and pycocotools (COCO) compute it."""

import json
import re

import numpy as np
import pytest
from golden_cases import Case

from sslbench.metrics.detection import Detections, Truth, coco_ap, voc_ap

METRIC_OF_YEAR = {"2007": "11-point", "2012": "area"}


def average_precision(case: Case) -> None:
    content = json.loads((case.topic / case.name).read_text(encoding="utf-8"))
    for year, wanted in content["expected_voc"].items():
        given = voc_ap(truth(content, difficult=True), detections(content), METRIC_OF_YEAR[year], resamples=0)
        for name, value in wanted.items():
            assert 100 * given.metrics[name][0] == pytest.approx(value, abs=5e-5), (year, name)
    # The COCO figures are recorded in a sentence, to two decimals, without the flags.
    coco = coco_ap(truth(content, difficult=False), detections(content), resamples=0).metrics
    recorded = re.search(r"(\d+\.\d+)/(\d+\.\d+)/(\d+\.\d+) by pycocotools", content.get("note", ""))
    if recorded is None:
        return
    for name, value in zip(("AP", "AP50", "AP75"), recorded.groups(), strict=True):
        assert 100 * coco[name][0] == pytest.approx(float(value), abs=5e-3), name


def truth(content: dict, *, difficult: bool) -> Truth:
    tables, marked = content["gt"], set(content["difficult_annotation_ids"])
    rows = tables["annotations"]
    images, classes = positions(tables["images"]), positions(tables["categories"])
    return Truth(
        n_images=len(images),
        classes=tuple(row["name"] for row in tables["categories"]),
        images=np.array([images[row["image_id"]] for row in rows]),
        boxes=corners(rows),
        labels=np.array([classes[row["category_id"]] for row in rows]),
        crowd=np.array([bool(row["iscrowd"]) for row in rows]),
        difficult=np.array([difficult and row["id"] in marked for row in rows]),
        areas=np.array([float(row["area"]) for row in rows]),
    )


def detections(content: dict) -> Detections:
    rows = content["detections"]
    images, classes = positions(content["gt"]["images"]), positions(content["gt"]["categories"])
    return Detections(
        images=np.array([images[row["image_id"]] for row in rows]),
        boxes=corners(rows),
        scores=np.array([row["score"] for row in rows]),
        labels=np.array([classes[row["category_id"]] for row in rows]),
    )


def positions(rows: list[dict]) -> dict[int, int]:
    return {row["id"]: i for i, row in enumerate(rows)}


def corners(rows: list[dict]) -> np.ndarray:
    boxes = np.array([row["bbox"] for row in rows], dtype=np.float64)
    boxes[:, 2:] += boxes[:, :2]
    return boxes


PATTERNS = {"12_voc_detection_ap/*": average_precision}
