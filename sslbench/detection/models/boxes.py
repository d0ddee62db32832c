"""Anchors, matching and sampling of boxes as in Detectron2. Boxes are (x1, y1, x2, y2) in pixels."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.ops import box_iou, clip_boxes_to_image

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
    """Return the anchors at every place of a feature map: (H * W * A, 4), row by row from the corner.

    torchvision's own generator uses image size / map size as the stride, which is wrong for indivisible sizes.
    """
    ys, xs = (torch.arange(n, device=cell.device, dtype=torch.float32) * stride for n in grid)
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    shifts = torch.stack((x, y, x, y), dim=-1).reshape(-1, 1, 4)
    return (shifts + cell).reshape(-1, 4)


def match(truth: Tensor, boxes: Tensor, *, low: float, high: float, keep_best: bool) -> Tensor:
    """Assign true boxes (m, 4) to boxes (n, 4): int64 (n,).

    Args:
        truth: true boxes; may be empty.
        boxes: anchors or regions.
        low: a box whose overlap with every true box is lower is BACKGROUND.
        high: minimum overlap of an assigned box; between the two a box is IGNORED.
        keep_best: assign the boxes with the largest overlap with a true box in any case (Ren et al. 2015, section
            3.1.2).
    """
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

    Args:
        found: result of `match`.
        number: maximum number of boxes to draw.
        positives: maximum share of objects.
        generator: on the CPU, whatever the device, so that the draw is the same everywhere; None: torch's own.

    Returns:
        Indices of the objects and of the background.
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


def rescale(
    found: InstancePredictions, *, seen: tuple[int, int], size: tuple[int, int], threshold: float = 0.5
) -> InstancePredictions:
    """Return the detections of one image in its own pixels, without those outside of it.

    Args:
        found: detections of the detector.
        seen: height and width of the network's input.
        size: height and width of the image.
        threshold: minimum probability of a mask's pixel.

    Returns:
        Boxes clipped to the image, and any masks as bool (n, height, width).
    """
    y, x = size[0] / seen[0], size[1] / seen[1]
    boxes = clip_boxes_to_image(found.boxes * found.boxes.new_tensor((x, y, x, y)), size)
    keep = torch.where((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))[0]
    boxes = boxes[keep]
    masks = None
    if found.masks is not None:
        pasted = [_pasted(mask, box, size) >= threshold for mask, box in zip(found.masks[keep], boxes, strict=True)]
        masks = torch.stack(pasted) if pasted else found.masks.new_zeros((0, *size), dtype=torch.bool)
    keypoints = None if found.keypoints is None else found.keypoints[keep] * boxes.new_tensor((x, y, 1))
    return InstancePredictions(boxes, found.scores[keep], found.classes[keep], masks, keypoints)


def _pasted(mask: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """Paste a mask (side, side) into its box, bilinear between pixel centres: (height, width).

    Only the box and one pixel around it are computed.
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
