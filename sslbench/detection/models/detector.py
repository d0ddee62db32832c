"""Detectors: images to maps, and two-stage detection by region proposals and region heads."""

import abc
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.detection.models.boxes import InstancePredictions, Target, pool_regions
from sslbench.detection.models.heads import BoxHead, BoxPredictor, KeypointHead, MaskHead, draw_regions, with_visible
from sslbench.detection.models.pyramids import Norm
from sslbench.detection.models.rpn import RegionProposalNetwork
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import DataError

Size = tuple[int, int]


class RegionHeads(nn.Module):
    """Region heads on the four finer levels of a pyramid: boxes, and optionally masks and keypoints."""

    def __init__(
        self,
        recipe: DetectionRecipe,
        channels: int,
        strides: Sequence[int],
        classes: int,
        norm: Norm,
        keypoints: int = 0,
    ) -> None:
        """Set up the heads."""
        super().__init__()
        self.recipe, self.classes, self.strides = recipe, classes, tuple(strides[:4])
        self.box_head = BoxHead(recipe, channels, norm)
        self.box_predictor = BoxPredictor(recipe, self.box_head.out, classes)
        self.mask_head = MaskHead(recipe, channels, classes, norm) if recipe.masks else None
        self.keypoint_head = KeypointHead(recipe, channels, keypoints) if recipe.keypoints else None

    def pooled(self, features: Sequence[Tensor], boxes: Sequence[Tensor], side: int) -> Tensor:
        """Return the features of regions, (n, C, side, side)."""
        return pool_regions(features[: len(self.strides)], boxes, self.strides, side=side)

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

    def detections(
        self, features: Sequence[Tensor], proposals: Sequence[Tensor], sizes: Sequence[Size]
    ) -> list[InstancePredictions]:
        """Return the detections among the proposals (n, 4) of each image, without masks."""
        pooled = self.pooled(features, proposals, self.recipe.box_pool or 1)
        return self.box_predictor.detections(self.box_predictor(self.box_head(pooled)), proposals, sizes)

    def masks(self, features: Sequence[Tensor], found: Sequence[InstancePredictions]) -> list[InstancePredictions]:
        """Return the detections with their masks and keypoints."""
        boxes, found = [f.boxes for f in found], list(found)
        if self.mask_head is not None:
            found = self.mask_head.detections(self.pooled(features, boxes, self.recipe.mask_pool), found)
        if self.keypoint_head is not None:
            found = self.keypoint_head.detections(self.pooled(features, boxes, self.recipe.keypoint_pool), found)
        return found


class Detector(nn.Module, abc.ABC):
    """Detector of objects: a backbone, and what is computed from its maps.

    Its parameters have Detectron2's names, except those of the backbone, which keep their canonical names; `names`
    translates.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self,
        recipe: DetectionRecipe,
        classes: int,
        *,
        backbone: nn.Module,
        statistics: tuple[Sequence[float], Sequence[float]],
        divisor: int,
    ) -> None:
        """Assemble the parts that `build_detector` makes."""
        super().__init__()
        self.recipe, self.classes, self.divisor = recipe, classes, divisor
        self.backbone = backbone
        for name, values in zip(("pixel_mean", "pixel_std"), statistics, strict=True):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(
        self,
        images: Sequence[Tensor],
        targets: Sequence[Target] | None = None,
        generator: torch.Generator | None = None,
        *,
        with_masks: bool = True,
    ) -> dict[str, Tensor] | list[InstancePredictions]:
        """Return the losses in training mode, the detections in evaluation mode.

        `images`: (C, H, W) each, RGB, resized (`recipe.resized`); integers from 0 to the maximum of their dtype, or
        floats from 0 to 1.
        """
        batch, sizes = self.batched(images)
        features = self.backbone(batch)
        if not self.training:
            found = self.detections(features, sizes)
            further = self.recipe.masks or self.recipe.keypoints
            return self.masks_of(features, found) if further and with_masks else found
        if targets is None or len(targets) != len(images):
            raise DataError(f"{len(images)} images for training with {len(targets or ())} targets")
        if self.recipe.masks and any(t.masks is None for t in targets):
            raise DataError("masks=true, but an image has none", "Give data with masks, or masks=false.")
        if self.recipe.keypoints and any(t.keypoints is None for t in targets):
            raise DataError("keypoints=true, but an image has none", "Give data with keypoints, or keypoints=false.")
        return self.losses(features, sizes, targets, generator)

    @abc.abstractmethod
    def losses(
        self,
        features: Sequence[Tensor],
        sizes: Sequence[Size],
        targets: Sequence[Target],
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        """Return the losses by name, of maps of a padded batch with images of `sizes`."""

    def denominator(self, sizes: Sequence[Size], targets: Sequence[Target]) -> int | None:
        """Return the number that the losses of these images are divided by, 0 counting as 1.

        None: the losses are means over the images, or of a number of draws that is the same for each.
        """
        return None

    @abc.abstractmethod
    def detections(self, features: Sequence[Tensor], sizes: Sequence[Size]) -> list[InstancePredictions]:
        """Return the detections of each image without masks, of maps of a padded batch with images of `sizes`."""

    @abc.abstractmethod
    def masks_of(self, features: Sequence[Tensor], found: Sequence[InstancePredictions]) -> list[InstancePredictions]:
        """Return the detections of each image with their masks and keypoints."""

    def masks(self, images: Sequence[Tensor], found: Sequence[InstancePredictions]) -> list[Tensor]:
        """Return the probabilities inside given boxes of each image, float32 (n, side, side)."""
        batch, _ = self.batched(images)
        return [one.masks for one in self.masks_of(self.backbone(batch), found) if one.masks is not None]

    def padded(self, sizes: Sequence[Size]) -> Size:
        """Return height and width of a batch of images of these sizes."""
        height, width = (-(-max(side) // self.divisor) * self.divisor for side in zip(*sizes, strict=True))
        return height, width

    def batched(self, images: Sequence[Tensor]) -> tuple[Tensor, list[Size]]:
        """Return the images normalised and zero-padded at the right and bottom, (B, C, H, W), and their own sizes."""
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        height, width = self.padded(sizes)
        padded = []
        for image, size in zip(images, sizes, strict=True):
            if len(image) != len(self.pixel_mean):
                raise DataError(f"an image has {len(image)} channels; the backbone takes {len(self.pixel_mean)}")
            pixels = image.to(self.pixel_mean.device)
            pixels = pixels if pixels.is_floating_point() else pixels.float() / torch.iinfo(image.dtype).max
            pixels = pixels.flip(0) if self.recipe.channel_order == "BGR" else pixels
            padded.append(
                functional.pad((pixels - self.pixel_mean) / self.pixel_std, (0, width - size[1], 0, height - size[0]))
            )
        return torch.stack(padded), sizes


class TwoStageDetector(Detector):
    """Faster, Mask or Keypoint R-CNN (Ren et al. 2015, He et al. 2017): region proposals, then heads on the regions."""

    def __init__(
        self,
        recipe: DetectionRecipe,
        classes: int,
        *,
        backbone: nn.Module,
        proposal_generator: RegionProposalNetwork,
        roi_heads: nn.Module,
        statistics: tuple[Sequence[float], Sequence[float]],
        divisor: int,
    ) -> None:
        """Assemble the parts that `build_detector` makes."""
        super().__init__(recipe, classes, backbone=backbone, statistics=statistics, divisor=divisor)
        self.proposal_generator, self.roi_heads = proposal_generator, roi_heads

    def losses(
        self,
        features: Sequence[Tensor],
        sizes: Sequence[Size],
        targets: Sequence[Target],
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        """Return the losses of the proposals and of the regions drawn from them."""
        proposals, losses = self.proposal_generator(features, sizes, targets, generator)
        return losses | self.roi_heads.losses(features, proposals, targets, generator)  # type: ignore[no-any-return, operator]

    def detections(self, features: Sequence[Tensor], sizes: Sequence[Size]) -> list[InstancePredictions]:
        """Return the detections among the proposals of each image."""
        proposals, _ = self.proposal_generator(features, sizes)
        return self.roi_heads.detections(features, proposals, sizes)  # type: ignore[no-any-return, operator]

    def masks_of(self, features: Sequence[Tensor], found: Sequence[InstancePredictions]) -> list[InstancePredictions]:
        """Return the detections of each image with their masks and keypoints."""
        return self.roi_heads.masks(features, found)  # type: ignore[no-any-return, operator]
