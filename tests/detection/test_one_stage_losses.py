"""Targets and losses of RetinaNet and FCOS beside loops over anchors, boxes and classes, written from the papers."""

import math

import numpy as np
import pytest
import torch
from helpers.detector_samples import BASIC

from sslbench.backbones.build import build
from sslbench.detection.models.boxes import BACKGROUND, Target, match
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe

CLASSES = 3
STRIDES = (8, 16, 32, 64, 128)
SIZE = (128, 160)  # of the padded batch, in pixels
SIZES = [[(128, 160)], [(120, 150), (128, 160)]]


def outputs_of(kind, images, seed):
    """A detector, random maps, and its head's outputs of wide spread: logits, boxes and any centreness."""
    changes = {"anchor_sizes": tuple((3.0 * s, 4.4 * s) for s in STRIDES)} if kind == "retinanet" else {}
    recipe = DetectionRecipe(architecture=kind, freeze_at=0, norm="batch", pyramid_channels=64, **changes)
    model = build_detector(build(BASIC), recipe, CLASSES)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.network.head.named_parameters():
            if name.endswith("weight"):
                weight.copy_(torch.randn_like(weight) * math.prod(weight.shape[1:]) ** -0.5)
    maps = [torch.randn(images, 64, -(-SIZE[0] // s), -(-SIZE[1] // s)) for s in STRIDES]
    with torch.no_grad():
        outputs = {name: tensor.double().numpy() for name, tensor in model.network.head(maps).items()}
    return model, maps, outputs


def drawn(rng, number):
    """Draw boxes of all sizes, and odd ones.

    Two are equal, one is tiny, one larger than the image, one at the limit of two levels, and two nearly of one area.
    """
    corner = rng.uniform(0, 100, (number, 2))
    boxes = np.concatenate((corner, corner + 2 ** rng.uniform(1, 7, (number, 2))), axis=1)
    odd = [
        boxes[0],
        [30, 30, 30.01, 30.02],
        [-40, -30, 260, 190],
        [4, 20, 124, 80],
        [20, 20, 60, 80],
        [21, 21, 60, 82.5],
    ]
    return np.concatenate((boxes, odd)).astype(np.float32), rng.integers(0, CLASSES, number + len(odd))


def focal(logit, positive):
    """Focal loss of one logit (Lin et al. 2017, section 3.2; alpha .25, gamma 2)."""
    p = 1 / (1 + math.exp(-logit))
    p, alpha = (p, 0.25) if positive else (1 - p, 0.75)
    return -alpha * (1 - p) ** 2 * math.log(p)


def overlap(a, b):
    """Intersection over union, and the share of the enclosing box that neither covers."""
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(wide, 0) * max(high, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    around = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return common / union, (around - union) / around


def retinanet_anchors():
    """Section 4: at each place, each size in ratios 1:2, 1:1 and 2:1, in the order of the head's channels."""
    for stride in STRIDES:
        for y in range(-(-SIZE[0] // stride)):
            for x in range(-(-SIZE[1] // stride)):
                for size in (3.0 * stride, 4.4 * stride):
                    for ratio in (0.5, 1, 2):
                        w, h = size / ratio**0.5, size * ratio**0.5
                        yield np.float32([-w / 2, -h / 2, w / 2, h / 2]) + np.float32([x * stride, y * stride] * 2)


def retinanet_losses(logits, deltas, boxes, classes):
    """Section 4: focal loss of all anchors but those between .4 and .5, and L1 loss, by the number of positive ones."""
    anchors = list(retinanet_anchors())
    # In float32: all anchors around a tiny box are equally good, but for rounding.
    overlaps = np.array([[overlap(box, anchor)[0] for box in boxes] for anchor in anchors]).reshape(len(anchors), -1)
    best_of_box = overlaps.max(axis=0)
    classification = location = positive = 0.0
    for anchor, row, logit, delta in zip(anchors, overlaps, logits, deltas, strict=True):
        best = int(row.argmax()) if len(row) else -1
        # As the authors' code: also the anchors with the largest overlap with a box.
        is_object = len(row) > 0 and (row[best] >= 0.5 or bool((row == best_of_box)[row > 0].any()))
        if not is_object and len(row) and row[best] >= 0.4:
            continue
        classification += sum(focal(v, is_object and classes[best] == c) for c, v in enumerate(logit))
        if is_object:
            positive += 1
            (x1, y1, x2, y2), (a1, b1, a2, b2) = boxes[best].astype(float), anchor.astype(float)
            wide, high = a2 - a1, b2 - b1
            wanted = ((x1 + x2 - a1 - a2) / 2 / wide, (y1 + y2 - b1 - b2) / 2 / high)
            wanted = (*wanted, math.log((x2 - x1) / wide), math.log((y2 - y1) / high))
            location += sum(abs(a - b) for a, b in zip(delta, wanted, strict=True))
    return classification / max(positive, 1), location / max(positive, 1)


def fcos_places():
    """Section 2.1: the centre of each cell, its stride, and the range of distances of its level."""
    limits = (0, 64, 128, 256, 512, math.inf)
    for level, stride in enumerate(STRIDES):
        for y in range(-(-SIZE[0] // stride)):
            for x in range(-(-SIZE[1] // stride)):
                yield x * stride + stride // 2, y * stride + stride // 2, stride, limits[level], limits[level + 1]


def fcos_box(place, boxes):
    """Return the box of a place: the smallest that has it inside, near its centre, in the range of its level."""
    x, y, stride, low, high = place
    found, smallest = None, math.inf
    for i, (x1, y1, x2, y2) in enumerate(boxes):
        distances = (x - x1, y - y1, x2 - x, y2 - y)
        near = max(abs(x - (x1 + x2) / 2), abs(y - (y1 + y2) / 2)) < 1.5 * stride
        if min(distances) > 0 and near and low <= max(distances) <= high and (x2 - x1) * (y2 - y1) < smallest:
            found, smallest = i, (x2 - x1) * (y2 - y1)
    return found


def fcos_losses(images):
    """Section 2: sums of focal, GIoU and centreness losses over all images, and the number of positive places."""
    classification = location = centreness = positive = 0.0
    for logits, shares, centres, boxes, classes in images:
        for place, logit, share, centre in zip(fcos_places(), logits, shares, centres, strict=True):
            best = fcos_box(place, boxes)
            classification += sum(focal(v, best is not None and classes[best] == c) for c, v in enumerate(logit))
            if best is None:
                continue
            positive += 1
            x, y, stride = place[:3]
            left, top, right, bottom = np.maximum(share, 0) * stride
            iou, empty = overlap((x - left, y - top, x + right, y + bottom), boxes[best])
            location += 1 - (iou - empty)
            x1, y1, x2, y2 = boxes[best]
            wide, high = (x - x1, x2 - x), (y - y1, y2 - y)
            wanted = math.sqrt(min(wide) / max(wide) * min(high) / max(high))
            p = 1 / (1 + math.exp(-centre[0]))
            centreness -= wanted * math.log(p) + (1 - wanted) * math.log(1 - p)
    return np.array([classification, location, centreness]), positive


def targets_of(images, seed):
    rng = np.random.default_rng(seed)
    pairs = [drawn(rng, 5) for _ in images]
    if seed % 2:  # the last image has no object
        pairs[-1] = (np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    return pairs, [Target(torch.from_numpy(boxes), torch.from_numpy(classes)) for boxes, classes in pairs]


@pytest.mark.parametrize(("images", "seed"), [(SIZES[0], 0), (SIZES[1], 1), (SIZES[1], 2)])
def test_retinanet(images, seed):
    pairs, targets = targets_of(images, seed)
    model, maps, outputs = outputs_of("retinanet", len(images), seed)
    losses = model.losses(maps, images, targets, None)
    wanted = [
        retinanet_losses(logits, deltas, boxes, classes)
        for logits, deltas, (boxes, classes) in zip(
            outputs["cls_logits"], outputs["bbox_regression"], pairs, strict=True
        )
    ]
    assert [losses[name].item() for name in ("loss_cls", "loss_box_reg")] == pytest.approx(
        np.mean(wanted, axis=0).tolist(), rel=1e-4
    )
    assert model.denominator(images, targets) is None


@pytest.mark.parametrize(("images", "seed"), [(SIZES[0], 0), (SIZES[0], 1), (SIZES[1], 1), (SIZES[1], 2)])
def test_fcos(images, seed):
    pairs, targets = targets_of(images, seed)
    model, maps, outputs = outputs_of("fcos", len(images), seed)
    losses = model.losses(maps, images, targets, None)
    names = ("cls_logits", "bbox_regression", "bbox_ctrness")
    rows = [
        (*(outputs[name][i] for name in names), boxes.astype(float), classes)
        for i, (boxes, classes) in enumerate(pairs)
    ]
    sums, positive = fcos_losses(rows)
    assert [losses[name].item() for name in ("loss_cls", "loss_box_reg", "loss_ctrness")] == pytest.approx(
        (sums / max(positive, 1)).tolist(), rel=1e-4
    )
    assert model.denominator(images, targets) == positive
    assert positive or len(images) == 1


def test_a_box_that_no_anchor_overlaps_makes_no_anchor_an_object():
    anchors = torch.tensor([[0.0, 0, 4, 4], [8, 0, 12, 4], [16, 0, 20, 4]])
    found = match(
        torch.tensor([[5.0, 1, 7, 3], [8, 0, 12, 3], [15, 0, 17, 4]]), anchors, low=0.4, high=0.5, keep_best=True
    )
    assert found.tolist() == [BACKGROUND, 1, 2]
    found = match(
        torch.tensor([[5.0, 1, 7, 3], [8, 0, 12, 3], [11, 0, 17, 1]]), anchors, low=0.4, high=0.5, keep_best=True
    )
    assert found.tolist() == [BACKGROUND, 1, 2], "the third overlaps two anchors a little"
    assert (
        match(torch.tensor([[5.0, 1, 7, 3]]), anchors, low=0.4, high=0.5, keep_best=True).tolist() == [BACKGROUND] * 3
    )
