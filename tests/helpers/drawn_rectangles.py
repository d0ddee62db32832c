"""White rectangles on black, and a detector and a recipe small enough to train on them in a test."""

import dataclasses

import numpy as np

from sslbench.backbones.build import build
from sslbench.data.images import Arrays
from sslbench.data.objects import ObjectSource
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, DetectionSettings, resolved
from sslbench.evaluation import Task
from sslbench.targets.objects import NOTHING, Boxes, Objects

SMALL = {
    **{"architecture": "fpn", "freeze_at": 0, "norm": "batch", "pyramid_channels": 8, "box_channels": 8},
    **{"rpn_samples": 32, "roi_samples": 16, "rpn_post_nms_train": 30, "rpn_post_nms_test": 20},
    **{"anchor_sizes": ((8.0,), (16.0,), (32.0,), (64.0,), (128.0,))},
    **{"min_sizes_train": (64,), "max_size_train": 96, "min_size_test": 64, "max_size_test": 96},
    **{"batch_size": 2, "iterations": 4, "steps": (3,), "warmup_iterations": 2, "lr": 0.02},
}


def recipe(**changes):
    return resolved(DetectionRecipe(**{**SMALL, **changes}))


def task(**changes):
    return Task("detection", DetectionSettings(**dataclasses.asdict(recipe(**changes))), {})


def small_detector(**changes):
    return build_detector(build("resnet_basic_1-1-1-1w0.125"), recipe(**changes), 2)


def source(n=6, height=48, width=48, *, crowd=(), empty=()):
    """White rectangles on black: class 0 is wide, class 1 is tall; masks are the boxes."""
    pixels = np.zeros((n, height, width, 3), dtype=np.uint8)
    objects = []
    for i in range(n):
        boxes = np.array([[4 + i, 6, 20 + i, 14], [30 - i, 20, 36 - i, 40]], dtype=np.float32)
        for x1, y1, x2, y2 in boxes.astype(int):
            pixels[i, y1:y2, x1:x2] = 255
        polygons = tuple([[float(v) for v in (x1, y1, x2, y1, x2, y2, x1, y2)]] for x1, y1, x2, y2 in boxes)
        flags = np.array([i in crowd, i in crowd])
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1).astype(np.float64)
        whole = Objects(boxes, np.array([0, 1]), flags, np.zeros(2, np.bool_), areas, polygons)
        objects.append(NOTHING if i in empty else whole)
    ids = tuple(f"{i:03d}" for i in range(n))
    sizes = np.tile(np.array([[height, width]], dtype=np.int64), (n, 1))
    numbers = tuple(range(1, n + 1))
    boxes = Boxes(("wide", "tall"), tuple(objects), sizes, numbers, (1, 2))
    return ObjectSource("squares", ids, boxes, Arrays(pixels, "squares"))
