"""Detections in pixels of the image that the network got, as those of the image itself."""

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.ops import clip_boxes_to_image

from sslbench.detection.models.boxes import Detections


def rescale(found: Detections, *, seen: tuple[int, int], size: tuple[int, int], threshold: float = 0.5) -> Detections:
    """The detections of one image in its own pixels; those that lie outside are left out.

    Args:
        found: what the detector gave.
        seen: height and width that the network got.
        size: height and width of the image.
        threshold: probability from which a pixel belongs to a mask.

    Returns:
        Boxes clipped to the image; masks, if any, as bool (n, height, width).
    """
    y, x = size[0] / seen[0], size[1] / seen[1]
    boxes = clip_boxes_to_image(found.boxes * found.boxes.new_tensor((x, y, x, y)), size)
    keep = torch.where((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))[0]
    boxes = boxes[keep]
    masks = None
    if found.masks is not None:
        pasted = [_pasted(mask, box, size) >= threshold for mask, box in zip(found.masks[keep], boxes, strict=True)]
        masks = torch.stack(pasted) if pasted else found.masks.new_zeros((0, *size), dtype=torch.bool)
    return Detections(boxes, found.scores[keep], found.classes[keep], masks)


def _pasted(mask: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """A mask (side, side) put into its box, bilinear between the centres of its pixels: (height, width).

    Only what is inside the box, and a pixel around it, is computed.
    """
    x1, y1, x2, y2 = (float(v) for v in box)
    left, top = max(int(x1) - 1, 0), max(int(y1) - 1, 0)
    right, bottom = min(int(x2) + 2, size[1]), min(int(y2) + 2, size[0])
    ys = (torch.arange(top, bottom, device=mask.device) + 0.5 - y1) / (y2 - y1) * 2 - 1
    xs = (torch.arange(left, right, device=mask.device) + 0.5 - x1) / (x2 - x1) * 2 - 1
    grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij")[::-1], dim=-1).to(mask.dtype)
    whole = mask.new_zeros(size)
    whole[top:bottom, left:right] = functional.grid_sample(mask[None, None], grid[None], align_corners=False)[0, 0]
    return whole
