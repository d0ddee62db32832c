"""Keypoint head of Mask R-CNN (He et al. 2017, section 5) by torchvision's parts, under Detectron2's names.

Eight convolutions on the pooled features of a region and a transposed one give a heat map of each keypoint, enlarged
twice: 56 x 56 places for pooled regions of 14 x 14. The loss is a softmax over these places. Keypoints here are in
continuous pixels of the network's input, in which the first pixel reaches from 0 to 1.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.roi_heads import heatmaps_to_keypoints, keypoints_to_heatmap

from sslbench.detection.models.boxes import InstancePredictions
from sslbench.detection.models.heads import Regions
from sslbench.detection.recipe import DetectionRecipe


class KeypointHead(nn.Sequential):
    """Keypoint head: a heat map of each keypoint from the pooled features of a region."""

    def __init__(self, recipe: DetectionRecipe, channels: int, keypoints: int) -> None:
        """Set up the head for a recipe, the channels of the pyramid, and the number of keypoints."""
        convs = list(KeypointRCNNHeads(channels, (recipe.keypoint_channels,) * recipe.keypoint_convs))
        width = recipe.keypoint_channels if recipe.keypoint_convs else channels
        predictor = KeypointRCNNPredictor(width, keypoints)
        names = [f"conv_fcn{kind}{i + 1}" for i in range(recipe.keypoint_convs) for kind in ("", "_relu")]
        layers = dict(zip(names, convs, strict=True)) | {"score_lowres": predictor.kps_score_lowres}
        super().__init__(collections.OrderedDict(layers))
        self.recipe, self.keypoints = recipe, keypoints

    def forward(self, x: Tensor) -> Tensor:
        """Return the heat maps (n, K, 4 side, 4 side) of pooled features (n, C, side, side)."""
        low: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return functional.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)

    def losses(self, x: Tensor, regions: Sequence[Regions]) -> dict[str, Tensor]:
        """Return the cross-entropy over the places of each labelled keypoint inside its region.

        Args:
            x: pooled features of the boxes of `with_visible` of every image.
            regions: boxes and keypoints of every image.
        """
        logits = self(x).float()
        boxes = torch.cat([r.boxes for r in regions])
        points = torch.cat([own_points(r) for r in regions])
        if not len(boxes):
            return {"loss_keypoint": logits.sum() * 0}
        places, valid = keypoints_to_heatmap(points, boxes, logits.shape[-1])
        at = torch.where(valid.flatten())[0]
        if not len(at):
            return {"loss_keypoint": logits.sum() * 0}
        total = functional.cross_entropy(logits.flatten(2).flatten(0, 1)[at], places.flatten()[at], reduction="sum")
        number = len(at) if self.recipe.keypoint_loss_over == "labelled" else self._all(len(regions))
        return {"loss_keypoint": self.recipe.keypoint_loss_weight * total / number}

    def _all(self, images: int) -> float:
        """Return the number of keypoints if every drawn region were an object with all of them."""
        return images * self.keypoints * self.recipe.roi_samples * self.recipe.roi_positives

    def detections(self, x: Tensor, found: Sequence[InstancePredictions]) -> list[InstancePredictions]:
        """Return the detections with their keypoints: x, y and the score of Detectron2.

        The score is the probability of the place, in units of the places of the heat map.
        """
        maps, counts = self(x).float(), [len(f.boxes) for f in found]
        results = []
        for one, own in zip(found, maps.split(counts), strict=True):
            places, logits = cast(tuple[Tensor, Tensor], heatmaps_to_keypoints(own, one.boxes))
            scores = (logits - own.flatten(2).logsumexp(dim=2)).exp()
            results.append(dataclasses.replace(one, keypoints=torch.cat((places[:, :, :2], scores[:, :, None]), dim=2)))
        return results


def own_points(regions: Regions) -> Tensor:
    """Return the true keypoints of the drawn objects, (objects, K, 3)."""
    if regions.keypoints is None:
        raise ValueError("the targets have no keypoints")
    return regions.keypoints[regions.source]


def with_visible(regions: Regions) -> Regions:
    """Return the drawn objects in whose region a labelled keypoint lies; background is left out."""
    points, boxes = own_points(regions), regions.object_boxes[:, None]
    inside = (points[:, :, :2] >= boxes[:, :, :2]) & (points[:, :, :2] <= boxes[:, :, 2:])
    kept = torch.where((inside.all(dim=2) & (points[:, :, 2] > 0)).any(dim=1))[0]
    return Regions(
        regions.boxes[kept],
        regions.classes[kept],
        regions.truth[kept],
        regions.source[kept],
        keypoints=regions.keypoints,
    )
