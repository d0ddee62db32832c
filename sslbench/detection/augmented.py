"""Detection in one image, seen once or in several sizes and mirrored (test-time augmentation)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import batched_nms, clip_boxes_to_image

from sslbench.detection.models.boxes import InstancePredictions, rescale
from sslbench.detection.models.detector import Detector, Size


def detect_views(detector: Detector, views: Sequence[Tensor], size: Size) -> InstancePredictions:
    """Return the detections in one image, in pixels of the image.

    With several views, or `tta_flip`, the detections of all views are joined by non-maximum suppression per class, and
    the mask of a joined detection is the mean of its probabilities in every view: Detectron2's GeneralizedRCNNWithTTA.

    Args:
        detector: in evaluation mode.
        views: uint8 (3, h, w), the image in each size.
        size: height and width of the image.
    """
    device = next(detector.parameters()).device
    flips = (False, True) if detector.recipe.tta_flip else (False,)
    if len(views) * len(flips) == 1:
        seen = views[0].shape[1], views[0].shape[2]
        return rescale(detector([views[0].to(device)])[0], seen=seen, size=size)
    every = [(view.flip(2) if flip else view, flip) for view in views for flip in flips]
    merged = _merged([_found(detector, view, flip, size) for view, flip in every], detector, size)
    if not detector.recipe.masks:
        return rescale(merged, seen=size, size=size)
    if not len(merged.boxes):  # with masks, none of them: the detections of all images are joined
        none = torch.zeros((0, *size), dtype=torch.bool, device=device)
        return InstancePredictions(merged.boxes, merged.scores, merged.classes, none)
    total: Tensor | int = 0
    for view, flip in every:
        masks = detector.masks([view.to(device)], [_seen(merged, view, flip, size)])[0]
        total = total + (masks.flip(2) if flip else masks)
    merged = InstancePredictions(merged.boxes, merged.scores, merged.classes, torch.as_tensor(total) / len(every))
    return rescale(merged, seen=size, size=size)


def _found(detector: Detector, view: Tensor, flip: bool, size: Size) -> InstancePredictions:
    """Return the detections in one view, with boxes in pixels of the upright image and without masks."""
    found = detector([view.to(next(detector.parameters()).device)], with_masks=False)[0]
    boxes = _mirrored(found.boxes, view.shape[2]) if flip else found.boxes
    return InstancePredictions(boxes * _factors(view, size).to(boxes), found.scores, found.classes)


def _seen(found: InstancePredictions, view: Tensor, flip: bool, size: Size) -> InstancePredictions:
    """Return detections with their boxes in pixels of a view."""
    boxes = found.boxes / _factors(view, size).to(found.boxes)
    return InstancePredictions(_mirrored(boxes, view.shape[2]) if flip else boxes, found.scores, found.classes)


def _factors(view: Tensor, size: Size) -> Tensor:
    y, x = size[0] / view.shape[1], size[1] / view.shape[2]
    return torch.tensor([x, y, x, y])


def _mirrored(boxes: Tensor, width: int) -> Tensor:
    x1, y1, x2, y2 = boxes.unbind(1)
    return torch.stack((width - x2, y1, width - x1, y2), dim=1)


def _merged(parts: Sequence[InstancePredictions], detector: Detector, size: Size) -> InstancePredictions:
    boxes = clip_boxes_to_image(torch.cat([part.boxes for part in parts]), size)
    scores, classes = torch.cat([part.scores for part in parts]), torch.cat([part.classes for part in parts])
    keep = batched_nms(boxes, scores, classes, detector.recipe.nms)[: detector.recipe.detections]
    return InstancePredictions(boxes[keep], scores[keep], classes[keep])
