"""Anchors, matching and sampling of boxes as in Detectron2. Boxes are (x1, y1, x2, y2) in pixels."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.ops import box_iou, clip_boxes_to_image, roi_align

BACKGROUND, IGNORED = -1, -2


@dataclasses.dataclass(frozen=True)
class Target:
    """Ground truth of one image, in pixels of the network's input.

    Attributes:
        boxes: float32 (n, 4).
        classes: int64 (n,), from 0.
        masks: bool (n, H, W); needed only if the recipe has masks.
        keypoints: float32 (n, K, 3), x, y and visibility, 0 where not labelled; needed only if the recipe has them. The
            first pixel reaches from 0 to 1, as for boxes.
    """

    boxes: Tensor
    classes: Tensor
    masks: Tensor | None = None
    keypoints: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class InstancePredictions:
    """Detections in one image, by descending score.

    Attributes:
        boxes: float32 (n, 4), in pixels of the network's input.
        scores: float32 (n,), 0 to 1.
        classes: int64 (n,), from 0.
        masks: probabilities inside each box, float32 (n, side, side); after `rescale` bool (n, height, width); None
            without a mask head.
        keypoints: float32 (n, K, 3), x, y and score; None without a keypoint head.
    """

    boxes: Tensor
    scores: Tensor
    classes: Tensor
    masks: Tensor | None = None
    keypoints: Tensor | None = None


Size = tuple[int, int]
"""Height and width."""
Sizes = Sequence[Size]
Maps = Sequence[Tensor]
"""Feature maps (B, C, H, W), finest first; or the boxes (n, 4) of each image."""
Targets = Sequence[Target]
Found = Sequence[InstancePredictions]
Generator = torch.Generator | None
"""Generator of random draws, on the CPU; None: torch's own."""


def cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Return anchors around the origin, (sizes x ratios, 4), size by size; not rounded, unlike torchvision's."""
    anchors = []
    for size in sizes:
        for ratio in ratios:
            width = (size**2.0 / ratio) ** 0.5
            height = ratio * width
            anchors.append([-width / 2, -height / 2, width / 2, height / 2])
    return torch.tensor(anchors)


def grid_anchors(cell: Tensor, grid: tuple[int, int], stride: int) -> Tensor:
    """Return the anchors at every place of a feature map: (H * W * A, 4), row by row from the corner."""
    # torchvision's own generator uses image size / map size as the stride, which is wrong for indivisible sizes.
    ys, xs = (torch.arange(n, device=cell.device, dtype=torch.float32) * stride for n in grid)
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    shifts = torch.stack((x, y, x, y), dim=-1).reshape(-1, 1, 4)
    return (shifts + cell).reshape(-1, 4)


def match(truth: Tensor, boxes: Tensor, *, low: float, high: float, keep_best: bool) -> Tensor:
    """Assign true boxes (m, 4) to boxes (n, 4): int64 (n,)."""
    if len(truth) == 0 or len(boxes) == 0:
        return torch.full((len(boxes),), BACKGROUND, dtype=torch.int64, device=boxes.device)
    overlaps = box_iou(truth, boxes).nan_to_num_(0)  # two boxes without area
    # The best overlap of a true box that no box overlaps is 0, as is that of nearly all boxes.
    rows = torch.where(overlaps.amax(dim=1) > 0)[0]
    if len(rows) == 0:
        return torch.full((len(boxes),), BACKGROUND, dtype=torch.int64, device=boxes.device)
    found: Tensor = Matcher(high, low, allow_low_quality_matches=keep_best)(overlaps[rows])
    return torch.where(found >= 0, rows[found.clamp(min=0)], found)


def sample(found: Tensor, *, number: int, positives: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw boxes for a loss: objects up to the share `positives` of `number`, the rest background.

    `generator`: on the CPU, whatever the device, so that the draw is the same everywhere; None: torch's own.
    """
    objects, background = torch.where(found >= 0)[0], torch.where(found == BACKGROUND)[0]
    wanted = min(len(objects), int(number * positives))
    drawn = torch.randperm(len(objects), generator=generator)[:wanted]
    others = torch.randperm(len(background), generator=generator)[: number - wanted]
    return objects[drawn.to(found.device)], background[others.to(found.device)]


def encode(truth: Tensor, boxes: Tensor, weights: tuple[float, float, float, float]) -> Tensor:
    """Return the deltas (n, 4) from boxes (n, 4) to the true ones (Girshick et al. 2014, appendix C)."""
    return BoxCoder(weights).encode_single(truth, boxes)  # type: ignore[no-any-return]


def decode(deltas: Tensor, boxes: Tensor, weights: tuple[float, float, float, float]) -> Tensor:
    """Apply k deltas to each of (n, 4) boxes and return (n, 4k) boxes; sides grow by at most 1000 / 16."""
    return BoxCoder(weights).decode_single(deltas.float(), boxes)  # type: ignore[no-any-return]


def regression_loss(predicted: Tensor, truth: Tensor, beta: float) -> Tensor:
    """Return the sum of the smooth L1 loss over (n, 4); plain L1 for beta 0, Detectron2's default."""
    return functional.smooth_l1_loss(predicted, truth, beta=beta, reduction="sum")


def rescale(found: InstancePredictions, *, seen: tuple[int, int], size: tuple[int, int]) -> InstancePredictions:
    """Return the detections of one image in its own pixels, without those outside of it.

    Returns boxes clipped to the image, and any masks as bool (n, height, width).
    """
    y, x = size[0] / seen[0], size[1] / seen[1]
    boxes = clip_boxes_to_image(found.boxes * found.boxes.new_tensor((x, y, x, y)), size)
    keep = torch.where((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))[0]
    boxes = boxes[keep]
    masks = None
    if found.masks is not None:
        pasted = [_pasted(mask, box, size) >= 0.5 for mask, box in zip(found.masks[keep], boxes, strict=True)]
        masks = torch.stack(pasted) if pasted else found.masks.new_zeros((0, *size), dtype=torch.bool)
    keypoints = None if found.keypoints is None else found.keypoints[keep] * boxes.new_tensor((x, y, 1))
    return InstancePredictions(boxes, found.scores[keep], found.classes[keep], masks, keypoints)


def _pasted(mask: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """Paste a mask (side, side) into its box, bilinear between pixel centres: (height, width)."""
    # Only the box and one pixel around it are computed.
    x1, y1, x2, y2 = (float(v) for v in box)
    left, top = max(int(x1) - 1, 0), max(int(y1) - 1, 0)
    right, bottom = min(int(x2) + 2, size[1]), min(int(y2) + 2, size[0])
    ys = (torch.arange(top, bottom, device=mask.device) + 0.5 - y1) / (y2 - y1) * 2 - 1
    xs = (torch.arange(left, right, device=mask.device) + 0.5 - x1) / (x2 - x1) * 2 - 1
    grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij")[::-1], dim=-1).to(mask.dtype)
    whole = mask.new_zeros(size)
    whole[top:bottom, left:right] = functional.grid_sample(mask[None, None], grid[None], align_corners=False)[0, 0]
    return whole


def pool_regions(features: Sequence[Tensor], boxes: Sequence[Tensor], strides: Sequence[int], *, side: int) -> Tensor:
    """Return the features of all regions of all images, (sum of boxes, C, side, side).

    `features`: one (B, C, H, W) for each level, finest first; `boxes`: (n, 4) for each image.
    """
    # Half-pixel aligned, as many samples as fit (Detectron2's ROIAlignV2). torchvision's MultiScaleRoIAlign is not
    # aligned and takes two samples a bin: weights trained with the one are worthless with the other.
    image = torch.cat([b.new_full((len(b), 1), i) for i, b in enumerate(boxes)])
    regions = torch.cat((image, torch.cat(list(boxes))), dim=1)
    if len(features) == 1:
        return _align(features[0], regions, side, strides[0])
    levels = assign_levels(regions[:, 1:], strides)
    pooled = features[0].new_zeros((len(regions), features[0].shape[1], side, side))
    for level, (feature, stride) in enumerate(zip(features, strides, strict=True)):
        rows = torch.where(levels == level)[0]
        # index_put keeps the gradient; in-place, as every row is written once.
        pooled.index_put_((rows,), _align(feature, regions[rows], side, stride))
    return pooled


def _align(feature: Tensor, regions: Tensor, side: int, stride: int) -> Tensor:
    if feature.device.type == "cpu":
        return cast(Tensor, _OnProcessor.apply(feature, regions, side, stride))
    return _torchvision(feature, regions, side, stride)


def _torchvision(feature: Tensor, regions: Tensor, side: int, stride: int) -> Tensor:
    pooled: Tensor = roi_align(
        feature, regions.to(feature.dtype), (side, side), spatial_scale=1 / stride, sampling_ratio=0, aligned=True
    )
    return pooled


class _OnProcessor(torch.autograd.Function):
    """torchvision's RoIAlign with a gradient by matrix products.

    A region's pooled values are Y F X' for weights Y of rows and X of columns, so their gradient is Y' G X. torchvision
    adds every channel of every sample alone, which on a processor takes a sixth of an update.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, feature: Tensor, regions: Tensor, side: int, stride: int) -> Tensor:
        """Return (n, C, side, side) of a map (B, C, H, W) and regions (n, 5): image and box in pixels."""
        ctx.save_for_backward(regions)
        ctx.feature, ctx.stride = (feature.shape, feature.dtype), stride  # type: ignore[attr-defined]
        return _torchvision(feature, regions, side, stride)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the map."""
        ((images, channels, height, width), dtype), side = ctx.feature, gradient.shape[2]
        (regions,) = ctx.saved_tensors
        boxes = regions[:, 1:].float() / ctx.stride - 0.5
        columns, left, right = _weights(boxes[:, 0], boxes[:, 2], side, width)
        rows, top, bottom = _weights(boxes[:, 1], boxes[:, 3], side, height)
        whole = torch.zeros(images, height, width, channels)
        values = gradient.float().permute(0, 2, 3, 1).contiguous()
        places = zip(regions[:, 0].int().tolist(), top, bottom, left, right, strict=True)
        for value, row, column, (image, y1, y2, x1, x2) in zip(values, rows, columns, places, strict=True):
            wide = torch.matmul(column[:, x1:x2].T, value)  # (side, x2 - x1, C)
            part = torch.mm(row[:, y1:y2].T, wide.view(side, -1))
            whole[image, y1:y2, x1:x2] += part.view(y2 - y1, x2 - x1, channels)
        return whole.permute(0, 3, 1, 2).to(dtype), None, None, None


def _weights(start: Tensor, end: Tensor, side: int, size: int) -> tuple[Tensor, list[int], list[int]]:
    """Return the weights of places in the bins along one axis, (n, side, size), and the first and last place + 1."""
    # A bin is the mean of samples at equal distances of at most one place, each linear between two places. Samples up
    # to one place outside of the map take its border, others are 0.
    each = ((end - start) / side)[:, None, None]
    number = each.ceil()
    samples = torch.arange(max(int(number.max()), 1) if len(start) else 1)
    at = start[:, None, None] + (torch.arange(side)[:, None] + (samples + 0.5) / number.clamp(min=1)) * each
    # Samples more than a pixel outside count as 0, as in Detectron2.
    share = ((samples < number) & (at >= -1) & (at <= size)) / number.clamp(min=1)
    at = at.clamp(0, size - 1)
    low = at.long()
    # Bilinear interpolation is linear in each direction: two matrix products with these weights pool a region.
    weights = torch.zeros(len(start), side, size)
    weights.scatter_add_(2, low, share * (1 - (at - low)))
    weights.scatter_add_(2, (low + 1).clamp(max=size - 1), share * (at - low))
    first = start.floor().clamp(0, size - 1).int()
    last = (end.floor() + 2).clamp(max=size).int().maximum(first + 1)
    return weights, first.tolist(), last.tolist()


def assign_levels(boxes: Tensor, strides: Sequence[int]) -> Tensor:
    """Return each box's index into `strides`: stride 16 for 224 x 224 pixels (Lin et al. 2017, equation 1)."""
    sides = torch.sqrt((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
    levels = torch.floor(4 + torch.log2(sides / 224 + 1e-8))
    finest, coarsest = int(math.log2(strides[0])), int(math.log2(strides[-1]))
    return levels.clamp(finest, coarsest).to(torch.int64) - finest
