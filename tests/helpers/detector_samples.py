"""Small detectors with weights by a rule that nothing but their names decides, images, and what is in them."""

import zlib

import numpy as np
import torch
from torchvision.ops import box_iou

from sslbench.backbones.build import build
from sslbench.detection.models.boxes import Target
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe
from sslbench.detection.saved import canonical_name, from_detectron2
from sslbench.errors import WeightsError
from sslbench.metrics.detection.keypoints import Skeleton
from sslbench.weights.formats.tables import load_table

CLASSES = 3
SKELETON = Skeleton(("nose", "left_eye", "right_eye", "tail"), sigmas=(0.03, 0.02, 0.02, 0.1))
SIZES = ((88, 110), (70, 97))
# Every anchor and every region is in the losses: nothing is drawn, so they do not depend on torch's random numbers.
ALL = {"rpn_samples": 50_000, "roi_samples": 5_000}
NARROW = {
    **{"pyramid_channels": 16, "head_channels": 12, "box_channels": 24, "detections": 40},
    **{"rpn_post_nms_train": 80, "rpn_post_nms_test": 60},
}
CASES = {
    "c4": ("resnet50w0.125", {"architecture": "c4", **NARROW}),
    "c4_extra_norm": (
        "resnet50w0.125",
        {"architecture": "c4", "norm": "batch", "freeze_at": 0, "extra_norm": True, "masks": True, **NARROW},
    ),
    "c4_stride_in_1x1": (
        "resnet50w0.125",
        {"architecture": "c4", "stride_in_1x1": True, "channel_order": "BGR", "smooth_l1_beta": 0.1, **NARROW},
    ),
    "fpn": ("resnet50w0.125", {"architecture": "fpn", "masks": True, **NARROW}),
    "fpn_norms": (
        "resnext50_4x8dw0.25",
        {
            **{"architecture": "fpn", "norm": "batch", "freeze_at": 2, "pyramid_norm": "same", "head_norm": "layer"},
            **{"box_convs": 1, "box_fcs": 1, "rpn_convs": 2, "masks": True, "mask_convs": 1},
            **NARROW,
        },
    ),
    "fpn_keypoints": (
        "resnet50w0.125",
        {
            **{"architecture": "fpn", "keypoints": True, "keypoint_convs": 2, "keypoint_channels": 16, **NARROW},
            **{"smooth_l1_beta": 0.5, "rpn_smooth_l1_beta": 0.0, "keypoint_loss_weight": 0.7},
        },
    ),
    "fpn_resnet18": ("resnet18", {"architecture": "fpn", "norm": "batch", "freeze_at": 1, **NARROW}),
}


def by_rule(name, shape):
    """Values that keep activations near 1 through the network and spread scores and boxes.

    numpy's RandomState, because its numbers are frozen for all versions.
    """
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith("running_var"):
        values = 1 + 0.2 * np.abs(values)
    elif len(shape) == 1:
        values = (1.0 if name.endswith("norm.weight") else 0.0) + 0.1 * values
    else:
        values *= (2 / np.prod(shape[1:])) ** 0.5
        scale = {"cls_score": 0.9, "bbox_pred": 0.7, "anchor_deltas": 0.1, "objectness_logits": 2.0, "fpn_lateral": 0.3}
        values *= next((s for part, s in scale.items() if part in name), 1.0)
        # The last convolution of a residual block is small, or the sums grow from block to block.
        values *= 0.5 if ".conv3." in name or ".conv2." in name else 1.0
        # Features after a ReLU have a mean, which would decide for one class everywhere.
        values -= values.mean(axis=1, keepdims=True) if "cls_score" in name else 0
    return torch.tensor(values, dtype=torch.float32)


def small_detector(case, **changes):
    name, settings = CASES[case]
    return ruled(
        build_detector(build(name), DetectionRecipe(**{**settings, **changes}), CLASSES, keypoints=len(SKELETON))
    )


def ruled(detector):
    """The detector with weights by the rule, over its Detectron2 names."""
    tensors = {name: by_rule(name, tuple(t.shape)) for name, t in to_detectron2(detector.state_dict()).items()}
    own = from_detectron2(tensors)
    counters = {n: t for n, t in detector.state_dict().items() if n.endswith("num_batches_tracked")}
    detector.load_state_dict({**own, **counters})
    return detector


def images(sizes=SIZES):
    """Smooth, coloured pictures, different for each image; float32 of 0 to 1."""
    result = []
    for number, (height, width) in enumerate(sizes):
        y, x = np.mgrid[0:height, 0:width] / 20
        waves = [np.sin(x * (1 + c) + number) * np.cos(y * (2 - c / 2) + c) for c in range(3)]
        result.append(torch.tensor(0.5 + 0.5 * np.stack(waves), dtype=torch.float32))
    return result


def targets(sizes=SIZES):
    """Three objects in the first image, one in each other; masks are ellipses inside the boxes.

    Keypoints lie inside of the boxes, on an edge and outside; the tail is hidden, and one nose is not labelled.
    """
    boxes = [[[10.0, 12.0, 50.0, 60.0], [40.0, 20.0, 105.0, 80.0], [70.0, 5.0, 100.0, 40.0]]]
    boxes += [[[20.0, 15.0, 80.0, 60.0]]] * (len(sizes) - 1)
    classes = [[0, 2, 1], *[[1]] * (len(sizes) - 1)]
    result = []
    for own, kinds, (height, width) in zip(boxes, classes, sizes, strict=True):
        y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        masks = [
            ((x - (a + c) / 2) / ((c - a) / 2)) ** 2 + ((y - (b + d) / 2) / ((d - b) / 2)) ** 2 <= 1
            for a, b, c, d in own
        ]
        corners, sides = torch.tensor(own)[:, None, :2], torch.tensor(own)[:, None, 2:] - torch.tensor(own)[:, None, :2]
        shares = torch.tensor([[0.3, 0.2], [1.0, 0.5], [0.77, 0.9], [1.2, 0.4]])
        seen = torch.tensor([2.0, 2.0, 2.0, 1.0]).repeat(len(own), 1)
        seen[0, 0] = 0
        points = torch.cat((corners + shares * sides, seen[:, :, None]), dim=2) * (seen[:, :, None] > 0)
        result.append(Target(torch.tensor(own), torch.tensor(kinds), torch.stack(masks), points))
    return result


# Detectors that learn rather than compute: of other widths, with random weights.
TINY = {"pyramid_channels": 8, "box_channels": 8, "head_channels": 8, "rpn_samples": 32, "roi_samples": 8}
TINY |= {"rpn_post_nms_train": 20, "rpn_post_nms_test": 10}
BOTTLENECK = "resnet_bottleneck_1-1-1-1w0.125"
BASIC = "resnet_basic_1-1-1-1w0.125"
VIT = "timm:vit_tiny_patch16_224,depth=1,img_size=32"


def detector(architecture, backbone=None, **changes):
    name = backbone or {"c4": BOTTLENECK, "fpn": BASIC, "vit_fpn": VIT}[architecture]
    recipe = DetectionRecipe(**{"architecture": architecture, "freeze_at": 0, "norm": "batch", **TINY, **changes})
    return build_detector(build(name) if isinstance(name, str) else name, recipe, 2)


def scene(number, *, noise=0.2):
    """A red square of class 0 and a blue one of class 1 on grey noise, 64 x 64."""
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(number)) * noise + 0.4
    found = torch.tensor([[4 + 4 * number, 6, 24 + 4 * number, 26], [30, 34 - 4 * number, 58, 62 - 4 * number]])
    for (x1, y1, x2, y2), colour in zip(found.tolist(), ([1.0, 0.1, 0.1], [0.1, 0.2, 1.0]), strict=True):
        image[:, y1:y2, x1:x2] = torch.tensor(colour)[:, None, None]
    masks = torch.zeros(2, 64, 64, dtype=torch.bool)
    for mask, (x1, y1, x2, y2) in zip(masks, found.tolist(), strict=True):
        mask[y1:y2, x1:x2] = True
    return image, Target(found.float(), torch.tensor([0, 1]), masks)


def losses_of(model, images, truth, seed=0):
    return model(images, truth, torch.Generator().manual_seed(seed))


def average_precision(found, truth, kind):
    """At an overlap of one half, over all images, without interpolation: precision at each hit, in order of score."""
    ranked = sorted(
        ((s.item(), i, j) for i, f in enumerate(found) for j, s in enumerate(f.scores) if f.classes[j] == kind),
        reverse=True,
    )
    hits, total, total_precision = set(), sum(int((t.classes == kind).sum()) for t in truth), 0.0
    for rank, (_, image, row) in enumerate(ranked, start=1):
        overlaps = box_iou(found[image].boxes[row][None], truth[image].boxes[truth[image].classes == kind])[0]
        hit = (image, int(overlaps.argmax()))
        if overlaps.max() > 0.5 and hit not in hits:
            hits.add(hit)
            total_precision += len(hits) / rank
    return total_precision / total


def to_detectron2(state):
    """Return a detector's state under Detectron2's names, as its own checkpointer loads it."""
    # Counters of BatchNorm are left out, as Detectron2's frozen norm has none.
    if any(name.startswith("backbone.net.") for name in state):
        raise WeightsError("Detectron2 cannot name the tensors of timm's vision transformers: its own differs")
    pyramid = any(name.startswith("backbone.bottom_up.") for name in state)
    canonical, heads = {}, {}
    for name, tensor in state.items():
        if name.endswith(".num_batches_tracked"):
            continue
        own = canonical_name(name, pyramid=pyramid)
        if own is None:
            heads[name] = tensor
        else:
            canonical[own] = tensor
    table = load_table("detectron2" if pyramid else "detectron2_c4")
    renamed = table.from_canonical(canonical, prefix="backbone.bottom_up." if pyramid else None)
    return {**renamed, **heads}
