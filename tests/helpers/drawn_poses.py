"""Objects and detections with keypoints, drawn by a seed, and their values by pycocotools."""

import contextlib
import io

import numpy as np
import pytest

from sslbench.metrics.detection import Detections, Truth
from sslbench.metrics.detection.keypoints import COCO_SIGMAS, Skeleton

NAMES = ("AP", "AP50", "AP75", "APm", "APl", "AR", "AR50", "AR75", "ARm", "ARl")
PERSON = Skeleton(tuple(COCO_SIGMAS)).with_sigmas()


def drawn(seed, skeleton=PERSON, *, difficult=False):
    """Draw objects of every size, some crowds and some without labelled keypoints, and detections around them."""
    rng = np.random.default_rng(seed)
    n_images, n, k = int(rng.integers(3, 9)), int(rng.integers(6, 30)), len(skeleton)
    images, labels = rng.integers(0, n_images, n), rng.integers(0, 2, n)
    sides = rng.choice([20.0, 60.0, 150.0], (n, 1)) * rng.uniform(0.7, 1.3, (n, 2))
    corners = rng.uniform(0, 150, (n, 2))
    boxes = np.concatenate([corners, corners + sides], axis=1)
    points = np.concatenate([rng.random((n, k, 2)) * sides[:, None] + corners[:, None], np.zeros((n, k, 1))], axis=2)
    points[:, :, 2] = rng.choice([0, 1, 2], (n, k), p=[0.3, 0.2, 0.5])
    points[rng.random(n) < 0.2, :, 2] = 0
    points[points[:, :, 2] == 0] = 0
    crowd = rng.random(n) < 0.15
    points[crowd & (rng.random(n) < 0.5), :, 2] = 0
    hard = (rng.random(n) < 0.3) if difficult else np.zeros(n, np.bool_)
    areas = sides.prod(axis=1) * rng.uniform(0.4, 0.8, n)
    truth = Truth(n_images, ("a", "b"), images, boxes, labels, crowd, hard, areas, keypoints=points, skeleton=skeleton)
    near = np.concatenate([np.arange(n), rng.integers(0, n, 3 * n)])
    noise = rng.choice([0.02, 0.1, 0.4], (len(near), 1, 1)) * sides[near][:, None]
    found = points[near].copy()
    found[:, :, :2] += rng.normal(size=(len(near), k, 2)) * noise
    found[:, :, 2] = rng.random((len(near), k))
    moved = boxes[near] + rng.normal(size=(len(near), 4))
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    scores = rng.permutation(len(near)) / len(near)
    return truth, Detections(images[near], moved, scores, labels[near], keypoints=found)


def by_pycocotools(truth, found):
    """Return the ten values by pycocotools, NaN where it has -1."""
    coco_module, eval_module = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")

    def corner(boxes):
        return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).tolist()

    rows = zip(truth.images, truth.labels, truth.areas, truth.crowd, truth.keypoints, corner(truth.boxes), strict=True)
    annotations = [
        {
            **{"id": i + 1, "image_id": int(image), "category_id": int(label), "area": float(area)},
            **{"iscrowd": int(crowd), "keypoints": points.ravel().tolist(), "bbox": box},
            "num_keypoints": 0 if truth.difficult[i] else int((points[:, 2] > 0).sum()),
        }
        for i, (image, label, area, crowd, points, box) in enumerate(rows)
    ]
    rows = zip(found.images, found.labels, found.scores, found.keypoints, corner(found.boxes), strict=True)
    results = [
        {"image_id": int(i), "category_id": int(c), "score": float(s), "keypoints": p.ravel().tolist(), "bbox": b}
        for i, c, s, p, b in rows
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        coco = coco_module.COCO()
        coco.dataset = {
            "info": {},
            "images": [{"id": i, "height": 400, "width": 400} for i in range(truth.n_images)],
            "categories": [{"id": i, "name": name} for i, name in enumerate(truth.classes)],
            "annotations": annotations,
        }
        coco.createIndex()
        evaluation = eval_module.COCOeval(coco, coco.loadRes(results), "keypoints")
        evaluation.params.kpt_oks_sigmas = np.array(truth.skeleton.sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return np.where(evaluation.stats < 0, np.nan, evaluation.stats)
