"""Average precision of object detection as Detectron2 (Pascal VOC) and pycocotools (COCO) compute it."""

import dataclasses
import json
import re

import numpy as np
import pytest
from golden_cases import Case

from sslbench.metrics.detection import Detections, Truth, coco_ap, voc_ap

METRIC_OF_YEAR = {"2007": "11-point", "2012": "area"}


def average_precision(case: Case) -> None:
    """Compare VOC's figures, and COCO's where they are recorded, in a sentence, to two decimals and without flags.

    Detectron2 counts a class without a counted object as 0 or, by area, as no number; ours leaves it out.
    """
    content = json.loads((case.topic / case.name).read_text(encoding="utf-8"))
    there = truth(content, difficult=True)
    counted = len(np.unique(there.labels[~there.difficult])) / len(there.classes)
    for year, wanted in content.get("expected_voc", {}).items():
        metric = METRIC_OF_YEAR[str(year)]
        given = voc_ap(there, detections(content), metric, resamples=0)
        for name, value in wanted.items():
            if np.isnan(value):
                assert counted < 1, (year, name)
                continue
            if 100 * counted * given.metrics[name][0] != pytest.approx(value, abs=5e-5):
                lowest, highest = _in_any_order(content, metric, name)
                assert 2 * lowest - highest <= value / 100 / counted <= 2 * highest - lowest, (year, name)
                assert highest > lowest, (year, name)
    coco = coco_ap(truth(content, difficult=False), detections(content), resamples=0).metrics
    recorded = re.search(r"(\d+\.\d+)/(\d+\.\d+)/(\d+\.\d+) by pycocotools", content.get("note", ""))
    said = dict(zip(("AP", "AP50", "AP75"), recorded.groups(), strict=True)) if recorded else {}
    said |= content.get("expected_coco", {})
    assert said or content.get("expected_voc")
    for name, value in said.items():
        assert 100 * coco[name][0] == pytest.approx(float(value), abs=5e-3 + 1e-9), name


def _in_any_order(content: dict, metric: str, name: str) -> tuple[float, float]:
    """Return the lowest and highest figure over orders of images and detections, which decide between equal scores."""
    random, there, rows = np.random.default_rng(0), truth(content, difficult=True), content["detections"]
    values = []
    for _ in range(30):
        order = random.permutation(there.n_images)
        found = detections({**content, "detections": [rows[i] for i in random.permutation(len(rows))]})
        mixed = (dataclasses.replace(each, images=order[each.images]) for each in (there, found))
        values.append(voc_ap(*mixed, metric, resamples=0).metrics[name][0])
    return min(values), max(values)


def truth(content: dict, *, difficult: bool) -> Truth:
    tables, marked = content["gt"], set(content.get("difficult_annotation_ids", ()))
    rows = tables["annotations"]
    images, classes = positions(tables["images"]), positions(tables["categories"])
    return Truth(
        n_images=len(images),
        classes=tuple(row["name"] for row in tables["categories"]),
        images=np.array([images[row["image_id"]] for row in rows], dtype=np.int64),
        boxes=corners(rows),
        labels=np.array([classes[row["category_id"]] for row in rows], dtype=np.int64),
        crowd=np.array([bool(row.get("iscrowd", 0)) for row in rows], dtype=bool),
        difficult=np.array([difficult and row["id"] in marked for row in rows], dtype=bool),
        areas=np.array([float(row.get("area", row["bbox"][2] * row["bbox"][3])) for row in rows]),
    )


def detections(content: dict) -> Detections:
    rows = content["detections"]
    images, classes = positions(content["gt"]["images"]), positions(content["gt"]["categories"])
    return Detections(
        images=np.array([images[row["image_id"]] for row in rows], dtype=np.int64),
        boxes=corners(rows),
        scores=np.array([row["score"] for row in rows], dtype=np.float64),
        labels=np.array([classes[row["category_id"]] for row in rows], dtype=np.int64),
    )


def positions(rows: list[dict]) -> dict[int, int]:
    return {row["id"]: i for i, row in enumerate(rows)}


def corners(rows: list[dict]) -> np.ndarray:
    boxes = np.array([row["bbox"] for row in rows], dtype=np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    return boxes


PATTERNS = {"12_voc_detection_ap/*": average_precision}
