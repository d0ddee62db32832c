"""A small recipe, pictures and objects for the detectron2 backend, and a training by it."""

import importlib.util

import numpy as np
import pytest
import torch

from sslbench.backbones.build import build
from sslbench.data.images import Arrays
from sslbench.data.objects import ObjectSource
from sslbench.data.splits import Parts
from sslbench.detection.detectron2 import backend
from sslbench.detection.recipe import DetectionRecipe, resolved
from sslbench.detection.train import TrainingRun
from sslbench.targets.objects import Boxes, Objects

CPU = torch.device("cpu")
THERE = importlib.util.find_spec("detectron2") is not None
REAL = pytest.mark.skipif(not THERE, reason="detectron2 is not importable (it is on no package index)")
SMALL = {
    **{"architecture": "fpn", "freeze_at": 0, "norm": "batch", "pyramid_channels": 8, "box_channels": 8},
    **{"rpn_samples": 32, "roi_samples": 16, "rpn_post_nms_train": 30, "rpn_post_nms_test": 20, "precise_bn": 1},
    **{"anchor_sizes": ((8.0,), (16.0,), (32.0,), (64.0,), (128.0,)), "detections": 20, "score_threshold": 0.0},
    **{"min_sizes_train": (64,), "max_size_train": 96, "min_size_test": 64, "max_size_test": 96},
    **{"batch_size": 2, "iterations": 4, "steps": (3,), "warmup_iterations": 2, "lr": 0.02},
}
NET = "resnet50w0.125"


def recipe(**changes):
    return resolved(DetectionRecipe(**{**SMALL, **changes}))


def squares(n=6, name="squares", height=48, width=56):
    """White rectangles on dark red: class 0 is wide, class 1 is tall; masks are the boxes."""
    pixels = np.zeros((n, height, width, 3), dtype=np.uint8) + np.array([60, 0, 0], dtype=np.uint8)
    objects = []
    for i in range(n):
        boxes = np.array([[4 + i, 6, 20 + i, 14], [30 - i, 20, 36 - i, 40]], dtype=np.float32)
        for x1, y1, x2, y2 in boxes.astype(int):
            pixels[i, y1:y2, x1:x2] = 255
        polygons = tuple([[float(v) for v in (x1, y1, x2, y1, x2, y2, x1, y2)]] for x1, y1, x2, y2 in boxes)
        none = np.zeros(2, dtype=np.bool_)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1).astype(np.float64)
        objects.append(Objects(boxes, np.array([0, 1]), none, none, areas, polygons))
    sizes = np.tile(np.array([[height, width]], dtype=np.int64), (n, 1))
    ids, numbers = tuple(f"{name}{i:03d}" for i in range(n)), tuple(range(11, 11 + n))
    boxes = Boxes(("wide", "tall"), tuple(objects), sizes, numbers, (7, 3))
    return ObjectSource(name, ids, boxes, Arrays(pixels, name))


def parts():
    return Parts(squares(6, "train"), squares(3, "test"), "two lists")


def trained(folder, *, given=None, net=NET, watch=None, seed=0, data=None, **changes):
    run = TrainingRun(seed, CPU, 0, folder / "r.checkpoints", 2, metrics=folder / "r.metrics.jsonl", watch=watch)
    data, used = data or parts(), recipe(**changes)
    return backend.run(build(net), used, given or {}, data, run, stem=folder / "r")
