"""Anchors, matching and sampling of boxes as Detectron2 does them. Boxes are (x1, y1, x2, y2) in pixels."""

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
    """What is in one image, in pixels of the image that the network gets.

    Attributes:
        boxes: float32 (n, 4).
        classes: int64 (n,), from 0.
        masks: bool (n, H, W); only needed where the recipe has masks.
    """

    boxes: Tensor
    classes: Tensor
    masks: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Detections:
    """What was found in one image, best first.

    Attributes:
        boxes: float32 (n, 4), in pixels of the image that the network got.
        scores: float32 (n,), 0 to 1.
        classes: int64 (n,), from 0.
        masks: probabilities, float32 (n, side, side), of the inside of each box; None without a mask head. From
            `rescale` bool (n, height, width).
    """

    boxes: Tensor
    scores: Tensor
    classes: Tensor
    masks: Tensor | None = None


def cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Anchors around the origin, (sizes x ratios, 4), size by size; not rounded, unlike torchvision's."""
    anchors = []
    for size in sizes:
        for ratio in ratios:
            width = (size**2.0 / ratio) ** 0.5
            height = ratio * width
            anchors.append([-width / 2, -height / 2, width / 2, height / 2])
    return torch.tensor(anchors)


def grid_anchors(cell: Tensor, grid: tuple[int, int], stride: int) -> Tensor:
    """The anchors at every place of a feature map: (H * W * A, 4), places row by row; the first is at the corner.

    torchvision's own generator takes image size / map size for the stride, which is wrong at sizes that do not divide.
    """
    ys, xs = (torch.arange(n, device=cell.device, dtype=torch.float32) * stride for n in grid)
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    shifts = torch.stack((x, y, x, y), dim=-1).reshape(-1, 1, 4)
    return (shifts + cell).reshape(-1, 4)


def match(truth: Tensor, boxes: Tensor, *, low: float, high: float, keep_best: bool) -> Tensor:
    """For each of (n, 4) boxes the true box (m, 4) that it stands for: int64 (n,).

    Args:
        truth: true boxes; may be none.
        boxes: anchors or regions.
        low: below this overlap with all true boxes a box is BACKGROUND.
        high: from this overlap on it stands for the true box; between the two it is IGNORED.
        keep_best: the boxes that overlap a true box most stand for theirs even below (Ren et al. 2015, section 3.1.2).
    """
    if len(truth) == 0 or len(boxes) == 0:
        return torch.full((len(boxes),), BACKGROUND, dtype=torch.int64, device=boxes.device)
    overlaps = box_iou(truth, boxes).nan_to_num_(0)  # two boxes without area
    found: Tensor = Matcher(high, low, allow_low_quality_matches=keep_best)(overlaps)
    return found


def sample(found: Tensor, *, number: int, positives: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draws boxes for a loss: as many objects as there are up to `positives` of `number`, the rest background.

    Args:
        found: what `match` gives.
        number: of boxes to draw; fewer when there are fewer.
        positives: largest part of `number` that are objects.
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
    """The four numbers (n, 4) that turn (n, 4) boxes into the true ones (Girshick et al. 2014, appendix C)."""
    return BoxCoder(weights).encode_single(truth, boxes)  # type: ignore[no-any-return]


def decode(deltas: Tensor, boxes: Tensor, weights: tuple[float, float, float, float]) -> Tensor:
    """Boxes (n, 4k) from k predictions for each of (n, 4) boxes; sides grow at most by 1000 / 16."""
    return BoxCoder(weights).decode_single(deltas.float(), boxes)  # type: ignore[no-any-return]


def regression_loss(predicted: Tensor, truth: Tensor, beta: float) -> Tensor:
    """The sum of smooth L1 over (n, 4); plain L1 for beta 0, Detectron2's default."""
    return functional.smooth_l1_loss(predicted, truth, beta=beta, reduction="sum")


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
