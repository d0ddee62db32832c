"""RetinaNet (Lin et al. 2017, arXiv 1708.02002) and FCOS (Tian et al. 2019, arXiv 1904.01355) by torchvision's heads.

The pyramid has strides 8 to 128: its two coarsest maps are convolutions, of the backbone's last map in RetinaNet and of
the pyramid's last map in FCOS. Heads, losses and the selection of detections are torchvision's. Batches are padded to
multiples of 128 pixels, so that every map has an exact stride.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.retinanet import RetinaNet, RetinaNetHead

from sslbench.detection.models.boxes import InstancePredictions, Target
from sslbench.detection.models.detector import Detector, Size
from sslbench.detection.models.layers import Norm, make_norm
from sslbench.detection.recipe import DetectionRecipe

STRIDES = (8, 16, 32, 64, 128)
_NAMES = {"classification": "loss_cls", "bbox_regression": "loss_box_reg", "bbox_ctrness": "loss_ctrness"}


class _NoBackbone(nn.Module):
    """Stand-in for the backbone of torchvision's detectors, which only ask for the channels of its maps."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels


class OneStageDetector(Detector):
    """RetinaNet or FCOS, by the recipe."""

    def __init__(
        self,
        recipe: DetectionRecipe,
        classes: int,
        *,
        backbone: nn.Module,
        statistics: tuple[Sequence[float], Sequence[float]],
    ) -> None:
        """Set up the head for a pyramid of maps of strides 8 to 128.

        Args:
            recipe: resolved.
            classes: number of classes without background.
            backbone: from images to five maps.
            statistics: mean and standard deviation of the channels, for pixels of 0 to 1.
        """
        super().__init__(recipe, classes, backbone=backbone, statistics=statistics, divisor=STRIDES[-1])
        self.network = _network(recipe, classes)

    def losses(
        self,
        features: Sequence[Tensor],
        sizes: Sequence[Size],
        targets: Sequence[Target],
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        """Return the losses of all anchors or places; nothing is drawn."""
        outputs, anchors = self._outputs(features, sizes)
        wanted = [{"boxes": target.boxes, "labels": target.classes} for target in targets]
        if isinstance(self.network, FCOS):
            losses = self.network.compute_loss(wanted, outputs, anchors, _places(features))
        else:
            losses = self.network.compute_loss(wanted, outputs, anchors)
        return {_NAMES[name]: loss for name, loss in losses.items()}

    def detections(self, features: Sequence[Tensor], sizes: Sequence[Size]) -> list[InstancePredictions]:
        """Return the detections of each image, by descending score."""
        outputs, anchors = self._outputs(features, sizes)
        places = _places(features)
        lengths = [number * (len(anchors[0]) // sum(places)) for number in places]
        found = self.network.postprocess_detections(
            {name: list(torch.split(values, lengths, dim=1)) for name, values in outputs.items()},
            [list(torch.split(one, lengths)) for one in anchors],
            list(sizes),
        )
        return [InstancePredictions(one["boxes"], one["scores"], one["labels"]) for one in found]

    def masks_of(self, features: Sequence[Tensor], found: Sequence[InstancePredictions]) -> list[InstancePredictions]:
        """Return the detections as they are: there is no mask head, and recipes with masks are refused."""
        return list(found)

    def _outputs(self, features: Sequence[Tensor], sizes: Sequence[Size]) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return the head's outputs, and the anchors of each image."""
        height, width = (side * STRIDES[0] for side in features[0].shape[-2:])
        # The anchors need the size of the padded batch, not its pixels.
        batch = torch.empty(len(sizes), 0, height, width, device=features[0].device)
        maps = list(features)
        outputs = {name: one.float() for name, one in self.network.head(maps).items()}  # also in half precision
        return outputs, self.network.anchor_generator(ImageList(batch, list(sizes)), maps)


def _places(features: Sequence[Tensor]) -> list[int]:
    return [feature.shape[-2] * feature.shape[-1] for feature in features]


def _network(recipe: DetectionRecipe, classes: int) -> RetinaNet | FCOS:
    """Return torchvision's detector without a backbone."""
    backbone = _NoBackbone(recipe.pyramid_channels)
    sizes = recipe.anchor_sizes or ()
    selection = {
        "score_thresh": recipe.score_threshold,
        "nms_thresh": recipe.nms,
        "detections_per_img": recipe.detections,
    }
    if recipe.architecture == "retinanet":
        anchors = AnchorGenerator(sizes, (recipe.anchor_ratios,) * len(sizes))
        norm: Norm = recipe.norm if recipe.head_norm == "same" else recipe.head_norm or "none"
        layer = None if norm == "none" else functools.partial(make_norm, norm)
        head = RetinaNetHead(recipe.pyramid_channels, anchors.num_anchors_per_location()[0], classes, norm_layer=layer)
        return RetinaNet(backbone, classes, anchor_generator=anchors, head=head, **selection)
    return FCOS(backbone, classes, **selection)
