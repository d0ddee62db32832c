"""Per-region heads: class, box and mask. Names and numbers are Detectron2's."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.roi_heads import heatmaps_to_keypoints, keypoints_to_heatmap
from torchvision.ops import batched_nms, clip_boxes_to_image, roi_align

from sslbench.backbones.backbone import Backbone
from sslbench.detection.models import boxes as b
from sslbench.detection.models.boxes import (
    Found,
    Generator,
    InstancePredictions,
    Maps,
    Sizes,
    Target,
    Targets,
    pool_regions,
)
from sslbench.detection.models.pyramids import Conv, Norm, Trunk, channels, make_norm, msra, norm_of, prepared, xavier
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import UsageError


class BoxHead(nn.Sequential):
    """Box head: convolutions, then fully connected layers, over the pooled features of a region."""

    def __init__(self, recipe: DetectionRecipe, channels: int, norm: Norm) -> None:
        layers: dict[str, nn.Module] = {}
        for i in range(recipe.box_convs or 0):
            conv = Conv(channels, recipe.head_channels, 3, norm=norm, relu=True)
            msra(conv)
            layers[f"conv{i + 1}"], channels = conv, recipe.head_channels
        width = channels * (recipe.box_pool or 1) ** 2
        layers["flatten"] = nn.Flatten()
        for i in range(recipe.box_fcs or 0):
            fc = nn.Linear(width, recipe.box_channels)
            xavier(fc)
            layers[f"fc{i + 1}"], layers[f"fc_relu{i + 1}"], width = fc, nn.ReLU(), recipe.box_channels
        super().__init__(collections.OrderedDict(layers))
        self.out = width


@dataclasses.dataclass(frozen=True)
class Regions:
    """Regions of one image drawn for a loss, objects first.

    Attributes:
        boxes: (n, 4).
        classes: int64 (n,); the number of classes means background.
        truth: (n, 4), true box of each object; the region itself for background.
        source: int64 (objects,), positions of the objects in the target.
        masks: of the target.
        keypoints: of the target.
    """

    boxes: Tensor
    classes: Tensor
    truth: Tensor
    source: Tensor
    masks: Tensor | None = None
    keypoints: Tensor | None = None

    @property
    def object_boxes(self) -> Tensor:
        """Boxes of the objects."""
        return self.boxes[: len(self.source)]


class BoxPredictor(nn.Module):
    """Predictor of class scores (background last) and of one box per class."""

    def __init__(self, recipe: DetectionRecipe, channels: int, classes: int) -> None:
        super().__init__()
        self.recipe, self.classes = recipe, classes
        self.cls_score = nn.Linear(channels, classes + 1)
        self.bbox_pred = nn.Linear(channels, classes * 4)
        for layer, std in ((self.cls_score, 0.01), (self.bbox_pred, 0.001)):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (n, classes + 1) and deltas (n, classes * 4) of features (n, channels)."""
        return self.cls_score(x), self.bbox_pred(x)

    def losses(self, predicted: tuple[Tensor, Tensor], regions: Sequence[Regions]) -> dict[str, Tensor]:
        """Return cross-entropy over all regions, and L1 of the objects' boxes divided by the number of all regions."""
        scores, deltas = predicted[0].float(), predicted[1].float()
        classes = torch.cat([r.classes for r in regions])
        objects = torch.where(classes < self.classes)[0]
        boxes, truth = torch.cat([r.boxes for r in regions]), torch.cat([r.truth for r in regions])
        own = deltas.reshape(len(deltas), self.classes, 4)[objects, classes[objects]]
        wanted = b.encode(truth[objects], boxes[objects], self.recipe.box_weights)
        location = b.regression_loss(own, wanted, self.recipe.smooth_l1_beta) / max(len(classes), 1)
        # The mean over no region at all would be NaN.
        classification = functional.cross_entropy(scores, classes) if len(classes) else scores.sum() * 0
        return {"loss_cls": classification, "loss_box_reg": location}

    def detections(
        self, predicted: tuple[Tensor, Tensor], regions: Sequence[Tensor], sizes: Sizes
    ) -> list[InstancePredictions]:
        """Return the detections of each image from predictions for all regions of all images."""
        scores, deltas = predicted
        boxes = b.decode(deltas, torch.cat(list(regions)), self.recipe.box_weights)
        counts = [len(r) for r in regions]
        probabilities = functional.softmax(scores.float(), dim=1)
        found = []
        for own, scores, size in zip(
            torch.split(boxes, counts), torch.split(probabilities, counts), sizes, strict=True
        ):
            finite = torch.isfinite(own).all(dim=1) & torch.isfinite(scores).all(dim=1)
            own, scores = own[finite].reshape(-1, self.classes, 4), scores[finite, :-1]
            rows, classes = torch.where(scores > self.recipe.score_threshold)
            own, scores = clip_boxes_to_image(own[rows, classes], size), scores[rows, classes]
            keep = batched_nms(own, scores, classes, self.recipe.nms)[: self.recipe.detections]
            found.append(InstancePredictions(own[keep], scores[keep], classes[keep]))
        return found


def draw_regions(
    proposals: Tensor, target: Target, recipe: DetectionRecipe, classes: int, generator: Generator
) -> Regions:
    """Draw regions of one image for the losses from the proposals (n, 4) and the true boxes."""
    every = torch.cat((proposals, target.boxes))
    found = b.match(target.boxes, every, low=recipe.roi_overlap, high=recipe.roi_overlap, keep_best=False)
    objects, background = b.sample(
        found, number=recipe.roi_samples, positives=recipe.roi_positives, generator=generator
    )
    rows, source = torch.cat((objects, background)), found[objects]
    truth = torch.cat((target.boxes[source], every[background]))
    labels = torch.cat((target.classes[source], torch.full_like(background, classes)))
    return Regions(every[rows], labels, truth, source, target.masks, target.keypoints)


class MaskHead(nn.Sequential):
    """Mask head: one mask per class from the pooled features of a region, at twice their resolution."""

    def __init__(self, recipe: DetectionRecipe, channels: int, classes: int, norm: Norm) -> None:
        layers: dict[str, nn.Module] = {}
        for i in range(recipe.mask_convs or 0):
            conv = Conv(channels, recipe.head_channels, 3, norm=norm, relu=True)
            msra(conv)
            layers[f"mask_fcn{i + 1}"], channels = conv, recipe.head_channels
        deconv = nn.ConvTranspose2d(channels, recipe.head_channels, 2, stride=2)
        msra(deconv)
        layers["deconv"], layers["deconv_relu"] = deconv, nn.ReLU()
        predictor = nn.Conv2d(recipe.head_channels, classes, 1)
        nn.init.normal_(predictor.weight, std=0.001)
        nn.init.zeros_(predictor.bias)  # type: ignore[arg-type]
        layers["predictor"] = predictor
        super().__init__(collections.OrderedDict(layers))

    def losses(self, x: Tensor, regions: Sequence[Regions]) -> dict[str, Tensor]:
        """Return the binary cross-entropy of the true class's mask, over the pooled features of the objects."""
        # The truth is the true mask, pooled to the resolution of the prediction and cut at one half (Detectron2's
        # INPUT.MASK_FORMAT bitmask; its other way draws polygons at that resolution).
        logits = self(x).float()
        classes = torch.cat([r.classes[: len(r.source)] for r in regions])
        if len(classes) == 0:
            return {"loss_mask": logits.sum() * 0}
        truth = torch.cat([_pooled_masks(r, logits.shape[-1]) for r in regions])
        own = logits[torch.arange(len(classes), device=classes.device), classes]
        return {"loss_mask": functional.binary_cross_entropy_with_logits(own, truth.to(own.dtype))}

    def detections(self, x: Tensor, found: Found) -> list[InstancePredictions]:
        """Return the detections with the mask of their class."""
        classes = torch.cat([f.classes for f in found])
        masks = self(x).float()[torch.arange(len(classes), device=classes.device), classes].sigmoid()
        counts = [len(f.classes) for f in found]
        return [dataclasses.replace(f, masks=m) for f, m in zip(found, masks.split(counts), strict=True)]


def _pooled_masks(regions: Regions, side: int) -> Tensor:
    """Return the true masks inside the regions, bool (objects, side, side)."""
    if regions.masks is None or len(regions.source) == 0:
        return regions.boxes.new_zeros((len(regions.source), side, side), dtype=torch.bool)
    masks = regions.masks[regions.source].to(regions.boxes.dtype)[:, None]
    number = torch.arange(len(masks), device=masks.device, dtype=masks.dtype)[:, None]
    pooled: Tensor = roi_align(
        masks, torch.cat((number, regions.object_boxes), dim=1), (side, side), sampling_ratio=0, aligned=True
    )
    return pooled[:, 0] >= 0.5


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
        """Return the cross-entropy over the places of each labelled keypoint inside its region."""
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
        number: float = len(at)
        if self.recipe.keypoint_loss_over == "all":  # as if every drawn region were an object with all of them
            number = len(regions) * self.keypoints * self.recipe.roi_samples * self.recipe.roi_positives
        return {"loss_keypoint": self.recipe.keypoint_loss_weight * total / number}

    def detections(self, x: Tensor, found: Found) -> list[InstancePredictions]:
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


class RegionHeads(nn.Module):
    """Region heads on the four finer levels of a pyramid: boxes, and optionally masks and keypoints."""

    def __init__(
        self, recipe: DetectionRecipe, channels: int, strides: Sequence[int], classes: int, keypoints: int
    ) -> None:
        super().__init__()
        norm = norm_of(recipe, recipe.head_norm)
        self.recipe, self.classes, self.strides = recipe, classes, tuple(strides[:4])
        self.box_head = BoxHead(recipe, channels, norm)
        self.box_predictor = BoxPredictor(recipe, self.box_head.out, classes)
        self.mask_head = MaskHead(recipe, channels, classes, norm) if recipe.masks else None
        self.keypoint_head = KeypointHead(recipe, channels, keypoints) if recipe.keypoints else None

    def pooled(self, features: Maps, boxes: Maps, side: int) -> Tensor:
        """Return the features of regions, (n, C, side, side)."""
        return pool_regions(features[: len(self.strides)], boxes, self.strides, side=side)

    def losses(self, features: Maps, proposals: Maps, targets: Targets, generator: Generator) -> dict[str, Tensor]:
        """Return the losses of regions drawn from the proposals; see `Detector.forward`."""
        regions = [
            draw_regions(p, t, self.recipe, self.classes, generator) for p, t in zip(proposals, targets, strict=True)
        ]
        pooled = self.pooled(features, [r.boxes for r in regions], self.recipe.box_pool or 1)
        losses = self.box_predictor.losses(self.box_predictor(self.box_head(pooled)), regions)
        if self.mask_head is not None:
            pooled = self.pooled(features, [r.object_boxes for r in regions], self.recipe.mask_pool)
            losses |= self.mask_head.losses(pooled, regions)
        if self.keypoint_head is not None:
            chosen = [with_visible(r) for r in regions]
            pooled = self.pooled(features, [r.boxes for r in chosen], self.recipe.keypoint_pool)
            losses |= self.keypoint_head.losses(pooled, chosen)
        return losses

    def detections(self, features: Maps, proposals: Maps, sizes: Sizes) -> list[InstancePredictions]:
        """Return the detections among the proposals (n, 4) of each image, without masks."""
        pooled = self.pooled(features, proposals, self.recipe.box_pool or 1)
        return self.box_predictor.detections(self.box_predictor(self.box_head(pooled)), proposals, sizes)

    def masks(self, features: Maps, found: Found) -> list[InstancePredictions]:
        """Return the detections with their masks and keypoints."""
        boxes, found = [f.boxes for f in found], list(found)
        if self.mask_head is not None:
            found = self.mask_head.detections(self.pooled(features, boxes, self.recipe.mask_pool), found)
        if self.keypoint_head is not None:
            found = self.keypoint_head.detections(self.pooled(features, boxes, self.recipe.keypoint_pool), found)
        return found


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

    def region_features(self, features: Maps, boxes: Maps) -> Tensor:
        """Return features (n, channels, 7, 7) of all regions."""
        pooled: Tensor = self.res5(pool_regions(features, boxes, (STRIDE,), side=self.recipe.box_pool or 1))
        return pooled

    def losses(self, features: Maps, proposals: Maps, targets: Targets, generator: Generator) -> dict[str, Tensor]:
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

    def detections(self, features: Maps, proposals: Maps, sizes: Sizes) -> list[InstancePredictions]:
        """Return the detections among the proposals (n, 4) of each image, without masks."""
        x = self.region_features(features, proposals).mean(dim=(2, 3))
        return self.box_predictor.detections(self.box_predictor(x), proposals, sizes)

    def masks(self, features: Maps, found: Found) -> list[InstancePredictions]:
        """Return the detections with their masks."""
        if self.mask_head is None:
            return list(found)
        return self.mask_head.detections(self.region_features(features, [f.boxes for f in found]), found)


def c4_parts(backbone: Backbone, recipe: DetectionRecipe, classes: int) -> tuple[nn.Module, Res5Heads, int]:
    """Return the trunk, the heads, and the number of channels between them."""
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
