"""RetinaNet (Lin et al. 2017, arXiv 1708.02002) and FCOS (Tian et al. 2020, arXiv 2006.09214) by torchvision's heads.

The pyramid has strides 8 to 128: its two coarsest maps are convolutions, of the backbone's last map in RetinaNet and of
the pyramid's last map in FCOS. Heads, losses and the selection of detections are torchvision's. Anchors,
places and their assignment are ours: torchvision rounds anchors to pixels, has the places of FCOS at the corners of the
cells, and of two objects whose areas differ by less than 8 pixels may take the larger one.
"""

import functools
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.retinanet import RetinaNet, RetinaNetHead

from sslbench.detection.models.boxes import (
    Generator,
    InstancePredictions,
    Maps,
    Size,
    Sizes,
    Targets,
    cell_anchors,
    grid_anchors,
    match,
)
from sslbench.detection.models.detector import Detector, Statistics
from sslbench.detection.models.pyramids import make_norm, norm_of
from sslbench.detection.recipe import DetectionRecipe

STRIDES = (8, 16, 32, 64, 128)
_OVERLAPS = (0.4, 0.5)
"""IoU below which anchors of RetinaNet are background, and from which they are objects (section 4)."""
_LIMITS = (0.0, 64.0, 128.0, 256.0, 512.0, float("inf"))
"""Distances to the furthest edge of a box between which a level of FCOS is responsible (section 2.1)."""
_RADIUS = 1.5
"""Strides from the centre of a box, in each direction, within which places are positive (section 2.1)."""
_LEAST = 96
"""Smallest side of a batch, for 2 x 2 places in the second coarsest map. Of a single one, torch's gradient of a
convolution in bf16 on a processor is not initialised where the kernel sees padding only."""
_NAMES = {"classification": "loss_cls", "bbox_regression": "loss_box_reg", "bbox_ctrness": "loss_ctrness"}


class _NoBackbone(nn.Module):
    """Stand-in for the backbone of torchvision's detectors, which only ask for the channels of its maps."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels


class OneStageDetector(Detector):
    """RetinaNet or FCOS, by the recipe."""

    def __init__(self, recipe: DetectionRecipe, classes: int, *, backbone: nn.Module, statistics: Statistics) -> None:
        """Set up the head for a pyramid of maps of strides 8 to 128."""
        super().__init__(recipe, classes, backbone=backbone, statistics=statistics, divisor=32)
        self.network = _network(recipe, classes)
        for level, stride in enumerate(STRIDES):
            if recipe.architecture == "fcos":
                cell = torch.tensor([[0.0, 0.0, stride, stride]])
            else:
                cell = cell_anchors((recipe.anchor_sizes or ())[level], recipe.anchor_ratios)
            self.register_buffer(f"cell{level}", cell, persistent=False)

    def padded(self, sizes: Sizes) -> Size:
        """Return height and width of a batch, at least 96 pixels."""
        height, width = super().padded(sizes)
        return max(height, _LEAST), max(width, _LEAST)

    def losses(self, features: Maps, sizes: Sizes, targets: Targets, generator: Generator) -> dict[str, Tensor]:
        """Return the losses of all anchors or places; nothing is drawn."""
        outputs, anchors = self._outputs(features), self._anchors([feature.shape[-2:] for feature in features])
        wanted = [{"boxes": target.boxes, "labels": target.classes} for target in targets]
        every = [torch.cat(anchors)] * len(targets)
        if isinstance(self.network, FCOS):
            assigned = [assigned_boxes(target.boxes, anchors) for target in targets]
        else:
            low, high = _OVERLAPS
            assigned = [match(target.boxes, every[0], low=low, high=high, keep_best=True) for target in targets]
        losses = self.network.head.compute_loss(wanted, outputs, every, assigned)
        return {_NAMES[name]: loss for name, loss in losses.items()}

    def denominator(self, sizes: Sizes, targets: Targets) -> int | None:
        """Return the number of positive places of FCOS; each image of RetinaNet has its own number."""
        if not isinstance(self.network, FCOS):
            return None
        grid = [-(-side // STRIDES[0]) for side in self.padded(sizes)]
        grids = [(-(-grid[0] // (1 << level)), -(-grid[1] // (1 << level))) for level in range(len(STRIDES))]
        places = self._anchors(grids)
        return sum(int((assigned_boxes(target.boxes.to(places[0].device), places) >= 0).sum()) for target in targets)

    def detections(self, features: Maps, sizes: Sizes) -> list[InstancePredictions]:
        """Return the detections of each image, by descending score."""
        outputs, anchors = self._outputs(features), self._anchors([feature.shape[-2:] for feature in features])
        lengths = [len(level) for level in anchors]
        found = self.network.postprocess_detections(
            {name: list(torch.split(values, lengths, dim=1)) for name, values in outputs.items()},
            [anchors] * len(sizes),
            list(sizes),
        )
        return [InstancePredictions(one["boxes"], one["scores"], one["labels"]) for one in found]

    def _outputs(self, features: Maps) -> dict[str, Tensor]:
        """Return the head's outputs for all anchors or places, level by level, (B, n, values)."""
        return {name: one.float() for name, one in self.network.head(list(features)).items()}  # also in half precision

    def _anchors(self, grids: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the anchors of RetinaNet, or the cells around the places of FCOS, (n_level, 4) for each level."""
        return [
            grid_anchors(self.get_buffer(f"cell{level}"), (grid[0], grid[1]), stride)
            for level, (grid, stride) in enumerate(zip(grids, STRIDES, strict=True))
        ]


@torch.no_grad()
def assigned_boxes(boxes: Tensor, cells: Sequence[Tensor]) -> Tensor:
    """Assign the boxes (m, 4) of an image to the places of FCOS: int64 (n,) over all levels, -1 for none.

    A place belongs to a box if it lies inside of it and less than 1.5 strides from its centre, and if the distance to
    the furthest edge is in the range of its level; of several boxes, to the smallest (section 2.1 of the paper).

    `cells`: squares of the stride's side around the places, (n_level, 4) for each level.
    """
    if len(boxes) == 0:
        return torch.cat([torch.full((len(level),), -1, dtype=torch.int64, device=level.device) for level in cells])
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assigned = []
    for level, (low, high) in zip(cells, itertools.pairwise(_LIMITS), strict=True):
        places, side = (level[:, None, :2] + level[:, None, 2:]) / 2, level[:, None, 2] - level[:, None, 0]
        distances = torch.cat((places - boxes[None, :, :2], boxes[None, :, 2:] - places), dim=2)
        from_centre = (places - (boxes[None, :, :2] + boxes[None, :, 2:]) / 2).abs().amax(dim=2)
        furthest = distances.amax(dim=2)
        inside = (distances.amin(dim=2) > 0) & (from_centre < _RADIUS * side)
        positive = inside & (furthest >= low) & (furthest <= high)
        smallest, box = torch.where(positive, areas, torch.inf).min(dim=1)
        assigned.append(torch.where(torch.isinf(smallest), -1, box))
    return torch.cat(assigned)


def _network(recipe: DetectionRecipe, classes: int) -> RetinaNet | FCOS:
    """Return torchvision's detector without a backbone."""
    # torchvision's classes have heads, losses and selection; their backbone and transform are replaced.
    backbone = _NoBackbone(recipe.pyramid_channels)
    selection = {
        "score_thresh": recipe.score_threshold,
        "nms_thresh": recipe.nms,
        "detections_per_img": recipe.detections,
    }
    if recipe.architecture == "retinanet":
        anchors = len((recipe.anchor_sizes or ((),))[0]) * len(recipe.anchor_ratios)
        norm = norm_of(recipe, recipe.head_norm)
        layer = None if norm == "none" else functools.partial(make_norm, norm)
        head = RetinaNetHead(recipe.pyramid_channels, anchors, classes, norm_layer=layer)
        return RetinaNet(backbone, classes, head=head, **selection)
    return FCOS(backbone, classes, **selection)
