"""Features of regions: aligned RoIAlign, each region from the pyramid level for its size."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torchvision.ops import roi_align


def pool_regions(features: Sequence[Tensor], boxes: Sequence[Tensor], strides: Sequence[int], *, side: int) -> Tensor:
    """Return the features of all regions of all images, (sum of boxes, C, side, side).

    Half-pixel aligned, as many samples as fit (Detectron2's ROIAlignV2). torchvision's MultiScaleRoIAlign is not
    aligned and takes two samples a bin: weights trained with the one are worthless with the other.

    Args:
        features: one (B, C, H, W) for each level, finest first.
        boxes: (n, 4) for each image.
        strides: of the levels, powers of two, each twice the one before.
        side: of the pooled regions.
    """
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
    """Return the weights of places in the bins along one axis, (n, side, size), and the first and last place + 1.

    A bin is the mean of samples at equal distances of at most one place, each linear between two places. Samples up to
    one place outside of the map take its border, others are 0.

    Args:
        start: of each region, in places.
        end: likewise.
        side: number of bins.
        size: number of places.
    """
    each = ((end - start) / side)[:, None, None]
    number = each.ceil()
    samples = torch.arange(max(int(number.max()), 1) if len(start) else 1)
    at = start[:, None, None] + (torch.arange(side)[:, None] + (samples + 0.5) / number.clamp(min=1)) * each
    share = ((samples < number) & (at >= -1) & (at <= size)) / number.clamp(min=1)
    at = at.clamp(0, size - 1)
    low = at.long()
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
