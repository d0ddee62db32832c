"""Construction of a detector from a backbone and a recipe."""

import torch

from sslbench.backbones.backbone import Backbone
from sslbench.detection.models import deformable_detr, heads, pyramids
from sslbench.detection.models.detector import Detector, TwoStageDetector
from sslbench.detection.models.one_stage import OneStageDetector
from sslbench.detection.models.pyramids import synchronised
from sslbench.detection.models.rpn import RegionProposalNetwork
from sslbench.detection.recipe import DETR, ONE_STAGE, DetectionRecipe, check, resolved
from sslbench.errors import UsageError
from sslbench.runtime.seeds import seeded


def build_detector(
    backbone: Backbone,
    recipe: DetectionRecipe,
    n_classes: int,
    *,
    keypoints: int = 0,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> Detector:
    """Build a detector around a copy of the backbone, in training mode; frozen parameters have no gradient.

    Args:
        backbone: a ResNet (of bottleneck blocks for c4), or a vision transformer of timm for vit_fpn and
            vit_deformable_detr.
        recipe: its settings.
        n_classes: number of classes without background.
        keypoints: number of keypoints, where the recipe has them.
        device: of the detector; on the CPU norm=sync means plain BatchNorm, with a warning.
        seed: of the random weights of the heads; the global random state is unchanged.

    Raises:
        UsageError: the recipe does not fit the backbone, or contradicts itself.
    """
    check(recipe)
    if n_classes < 1:
        raise UsageError(f"a detector of {n_classes} classes")
    if recipe.keypoints and keypoints < 1:
        raise UsageError(f"a detector of {keypoints} keypoints")
    full = resolved(recipe)
    # The caller draws the same numbers with and without a detector built before.
    with seeded(seed):
        detector = _build(backbone, full, n_classes, keypoints)
    target = torch.device(device)
    if full.norm == "sync":
        synchronised(detector, target)
    return detector.to(target).train()


def _build(backbone: Backbone, recipe: DetectionRecipe, classes: int, keypoints: int) -> Detector:
    given = backbone.preprocessing
    # The weights give mean and std in the order RGB, whatever the network's channel order.
    step = -1 if recipe.channel_order == "BGR" else 1
    statistics = given.mean[::step], given.std[::step]
    if recipe.pixel_mean:
        statistics = recipe.pixel_mean, recipe.pixel_std
        if len(recipe.pixel_mean) != given.channels:
            raise UsageError(
                f"pixel_mean has {len(recipe.pixel_mean)} values, and {backbone.name} takes {given.channels} channels"
            )
    if recipe.architecture in ONE_STAGE:
        return OneStageDetector(recipe, classes, backbone=pyramids.pyramid(backbone, recipe), statistics=statistics)
    if recipe.architecture in DETR:
        return deformable_detr.deformable_detr(backbone, recipe, classes, statistics)
    strides: tuple[int, ...]
    roi_heads: heads.RegionHeads | heads.Res5Heads
    if recipe.architecture == "c4":
        trunk, roi_heads, width = heads.c4_parts(backbone, recipe, classes)
        strides, divisor = (heads.STRIDE,), 1
    else:
        make = pyramids.pyramid if recipe.architecture == "fpn" else pyramids.simple_pyramid
        trunk = make(backbone, recipe)
        width, strides, divisor = recipe.pyramid_channels, pyramids.STRIDES, 32
        roi_heads = heads.RegionHeads(recipe, width, strides, classes, keypoints)
    return TwoStageDetector(
        recipe,
        classes,
        backbone=trunk,
        proposal_generator=RegionProposalNetwork(recipe, width, strides),
        roi_heads=roi_heads,
        statistics=statistics,
        divisor=divisor,
    )
