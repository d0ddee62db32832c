"""C4 (Ren et al. 2015 with He et al. 2016, appendix A): proposals from the fourth stage, the fifth on each region."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.detection.models.boxes import InstancePredictions, Target
from sslbench.detection.models.detector import Size
from sslbench.detection.models.heads import BoxPredictor, MaskHead, draw_regions
from sslbench.detection.models.layers import make_norm
from sslbench.detection.models.pooling import pool_regions
from sslbench.detection.models.resnets import Trunk, channels, prepared
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import UsageError

STRIDE = 16


class C4Trunk(Trunk):
    """Backbone of stem and three stages, which returns the last map."""

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return one map of stride 16 of images (B, channels, H, W)."""
        return super().forward(images)[-1:]


class Res5Heads(nn.Module):
    """Heads with the fifth stage on 14 x 14 features of each region: class and box from its mean, mask from its map."""

    def __init__(self, recipe: DetectionRecipe, res5: nn.Sequential, width: int, classes: int) -> None:
        """Set up the heads for a resolved recipe, the fifth stage, its output channels, and the number of classes."""
        super().__init__()
        self.recipe, self.classes = recipe, classes
        self.res5 = res5
        norm = make_norm(recipe.norm, width)
        if recipe.extra_norm and norm is not None:
            self.res5.add_module("norm", norm)
        self.box_predictor = BoxPredictor(recipe, width, classes)
        self.mask_head = MaskHead(recipe, width, classes, "none") if recipe.masks else None

    def region_features(self, features: Sequence[Tensor], boxes: Sequence[Tensor]) -> Tensor:
        """Return features (n, channels, 7, 7) of all regions."""
        pooled: Tensor = self.res5(pool_regions(features, boxes, (STRIDE,), side=self.recipe.box_pool or 1))
        return pooled

    def losses(
        self,
        features: Sequence[Tensor],
        proposals: Sequence[Tensor],
        targets: Sequence[Target],
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Return the losses of regions drawn from the proposals; see `Detector.forward`."""
        regions = [
            draw_regions(p, t, self.recipe, self.classes, generator) for p, t in zip(proposals, targets, strict=True)
        ]
        x = self.region_features(features, [r.boxes for r in regions])
        losses = self.box_predictor.losses(self.box_predictor(x.mean(dim=(2, 3))), regions)
        if self.mask_head is not None:
            objects = torch.cat([torch.arange(len(r.boxes), device=x.device) < len(r.source) for r in regions])
            losses |= self.mask_head.losses(x[objects], regions)
        return losses

    def detections(
        self, features: Sequence[Tensor], proposals: Sequence[Tensor], sizes: Sequence[Size]
    ) -> list[InstancePredictions]:
        """Return the detections among the proposals (n, 4) of each image, without masks."""
        x = self.region_features(features, proposals).mean(dim=(2, 3))
        return self.box_predictor.detections(self.box_predictor(x), proposals, sizes)

    def masks(self, features: Sequence[Tensor], found: Sequence[InstancePredictions]) -> list[InstancePredictions]:
        """Return the detections with their masks."""
        if self.mask_head is None:
            return list(found)
        return self.mask_head.detections(self.region_features(features, [f.boxes for f in found]), found)


def c4_parts(backbone: Backbone, recipe: DetectionRecipe, classes: int) -> tuple[nn.Module, nn.Module, int]:
    """Return the trunk, the heads, and the number of channels between them.

    Raises:
        UsageError: the blocks of the network are not bottlenecks.
    """
    network = prepared(backbone, recipe)
    if network.spec.block != "bottleneck":
        raise UsageError(
            f"architecture=c4 does not go with {backbone.name}: its fifth stage on every region "
            "needs bottleneck blocks (resnet50 and larger)",
            "Use architecture=fpn, or another backbone.",
        )
    res5 = nn.Sequential(*network.layer4)
    heads = Res5Heads(recipe, res5, channels(network.spec, 3), classes)
    return C4Trunk(network, 3), heads, channels(network.spec, 2)
