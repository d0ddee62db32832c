"""Stick figures in random poses, seen from the front: their left is on the right of the picture."""

import json

import numpy as np
from PIL import Image, ImageDraw

from sslbench.data.images import Arrays
from sslbench.data.objects import ObjectSource
from sslbench.detection.recipe import DetectionRecipe, resolved
from sslbench.metrics.detection.keypoints import Skeleton
from sslbench.targets.objects import Boxes, Objects

NAMES = ("head", "left_hand", "right_hand", "left_foot", "right_foot")
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4))
SIGMAS = (0.05, 0.08, 0.08, 0.09, 0.09)
SKELETON = Skeleton(NAMES, EDGES, sigmas=SIGMAS)
SIDE = 96


def figure(rng):
    """Return keypoints (5, 3) of a figure in a picture; one hand may be hidden, one foot not labelled."""
    size = rng.uniform(36, 60)
    x, y = rng.uniform(size / 2 + 4, SIDE - size / 2 - 4), rng.uniform(6, SIDE - size - 6)
    shares = np.array([[0, 0.05], [0.4, 0.45], [-0.4, 0.45], [0.25, 0.95], [-0.25, 0.95]])
    shares[1:, :] += rng.uniform(-0.08, 0.08, (4, 2))
    points = np.concatenate([np.array([x, y]) + size * shares, np.full((5, 1), 2.0)], axis=1)
    points[1, 2] = rng.choice([1, 2])
    if rng.random() < 0.2:
        points[4] = 0
    return points, size


def drawn(number):
    """Return a picture uint8 (96, 96, 3), keypoints (1, 5, 3) and box (1, 4) of its figure."""
    rng = np.random.default_rng(number)
    points, size = figure(rng)
    picture = Image.fromarray(rng.integers(90, 130, (SIDE, SIDE, 3), dtype=np.uint8))
    draw = ImageDraw.Draw(picture)
    x, y = points[0, :2]
    feet = points[[3, 4 if points[4, 2] else 3]]
    for end in [*points[1:3], *feet]:
        draw.line((x, y + size * 0.25, *end[:2]), fill=(250, 240, 60), width=4)
    draw.ellipse((x - size / 8, y - size / 8, x + size / 8, y + size / 8), fill=(250, 80, 60))
    there = points[points[:, 2] > 0]
    low, high = there[:, :2].min(axis=0) - size / 8, there[:, :2].max(axis=0) + 3
    box = np.clip(np.concatenate([low, high]), 0, SIDE)
    return np.array(picture), points[None], box[None]


def source(n=6, start=0):
    """Return n pictures of a figure each."""
    found = [drawn(start + i) for i in range(n)]
    no = np.zeros(1, np.bool_)
    objects = tuple(
        Objects(
            box.astype(np.float32),
            np.zeros(1, np.int64),
            no,
            no,
            (box[:, 2:] - box[:, :2]).prod(axis=1),
            keypoints=points,
        )
        for _, points, box in found
    )
    pictures = Arrays(np.stack([picture for picture, _, _ in found]), "figures")
    ids, numbers = tuple(f"{i:03d}" for i in range(n)), tuple(range(1, n + 1))
    sizes = np.full((n, 2), SIDE)
    boxes = Boxes(("figure",), objects, sizes, numbers, (1,), skeleton=SKELETON)
    return ObjectSource("figures", ids, boxes, pictures)


def write(folder, n, start=0, **category):
    """Write n pictures and their manifest in COCO's form, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for i in range(n):
        picture, points, box = drawn(start + i)
        Image.fromarray(picture).save(folder / f"{i:03d}.png")
        images.append({"id": i + 1, "file_name": f"{i:03d}.png", "height": SIDE, "width": SIDE})
        x1, y1, x2, y2 = box[0].tolist()
        annotations.append(
            {
                **{"id": i + 1, "image_id": i + 1, "category_id": 1, "iscrowd": 0, "area": (x2 - x1) * (y2 - y1)},
                **{"bbox": [x1, y1, x2 - x1, y2 - y1], "keypoints": points.ravel().tolist()},
                "num_keypoints": int((points[0, :, 2] > 0).sum()),
            }
        )
    edges = [[a + 1, b + 1] for a, b in EDGES]
    named = {"id": 1, "name": "figure", "keypoints": list(NAMES), "skeleton": edges, "sigmas": list(SIGMAS)}
    path = folder / "person_keypoints.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": [named | category]}))
    return path


SMALL = {
    **{"architecture": "fpn", "keypoints": True, "freeze_at": 0, "norm": "batch", "pyramid_channels": 16},
    **{"box_channels": 16, "keypoint_convs": 2, "keypoint_channels": 16, "rpn_samples": 32, "roi_samples": 16},
    **{"rpn_post_nms_train": 40, "rpn_post_nms_test": 20, "precise_bn": 2, "detections": 20},
    **{"anchor_sizes": ((16.0,), (32.0,), (64.0,), (96.0,), (128.0,))},
    **{"min_sizes_train": (96,), "max_size_train": 128, "min_size_test": 96, "max_size_test": 128},
    **{"batch_size": 2, "iterations": 4, "steps": (3,), "warmup_iterations": 2, "lr": 0.01},
}


def recipe(**changes):
    return resolved(DetectionRecipe(**{**SMALL, **changes}))
