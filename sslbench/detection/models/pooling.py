"""Features of regions: aligned RoIAlign, each region from the pyramid level for its size."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
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
    pooled: Tensor = roi_align(
        feature, regions.to(feature.dtype), (side, side), spatial_scale=1 / stride, sampling_ratio=0, aligned=True
    )
    return pooled


def assign_levels(boxes: Tensor, strides: Sequence[int]) -> Tensor:
    """Return each box's index into `strides`: stride 16 for 224 x 224 pixels (Lin et al. 2017, equation 1)."""
    sides = torch.sqrt((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
    levels = torch.floor(4 + torch.log2(sides / 224 + 1e-8))
    finest, coarsest = int(math.log2(strides[0])), int(math.log2(strides[-1]))
    return levels.clamp(finest, coarsest).to(torch.int64) - finest
