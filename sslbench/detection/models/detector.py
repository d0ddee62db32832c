"""Detectors: images to maps, and two-stage detection by region proposals and region heads."""

import abc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.detection.models.boxes import Found, Generator, InstancePredictions, Maps, Size, Sizes, Targets
from sslbench.detection.models.heads import RegionHeads, Res5Heads
from sslbench.detection.models.rpn import RegionProposalNetwork
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import DataError

Statistics = tuple[Sequence[float], Sequence[float]]


class Detector(nn.Module, abc.ABC):
    """Detector of objects: a backbone, and what is computed from its maps.

    Its parameters have Detectron2's names, except those of the backbone, which keep their canonical names; `saved`
    translates.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self, recipe: DetectionRecipe, classes: int, *, backbone: nn.Module, statistics: Statistics, divisor: int
    ) -> None:
        """Set up a detector for a resolved recipe; images are padded to multiples of `divisor`.

        `statistics`: mean and standard deviation of the channels, for pixels of 0 to 1.
        """
        super().__init__()
        self.recipe, self.classes, self.divisor = recipe, classes, divisor
        self.backbone = backbone
        for name, values in zip(("pixel_mean", "pixel_std"), statistics, strict=True):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(
        self, images: Maps, targets: Targets | None = None, generator: Generator = None, *, with_masks: bool = True
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
    def losses(self, features: Maps, sizes: Sizes, targets: Targets, generator: Generator) -> dict[str, Tensor]:
        """Return the losses by name, of maps of a padded batch with images of `sizes`."""

    def denominator(self, sizes: Sizes, targets: Targets) -> int | None:
        """Return the number that the losses of these images are divided by, 0 counting as 1.

        None: the losses are means over the images, or of a number of draws that is the same for each.
        """
        return None

    @abc.abstractmethod
    def detections(self, features: Maps, sizes: Sizes) -> list[InstancePredictions]:
        """Return the detections of each image without masks, of maps of a padded batch with images of `sizes`."""

    def masks_of(self, features: Maps, found: Found) -> list[InstancePredictions]:
        """Return the detections of each image with their masks and keypoints, where the detector has such heads."""
        return list(found)

    def masks(self, images: Maps, found: Found) -> list[Tensor]:
        """Return the probabilities inside given boxes of each image, float32 (n, side, side)."""
        batch, _ = self.batched(images)
        return [one.masks for one in self.masks_of(self.backbone(batch), found) if one.masks is not None]

    def padded(self, sizes: Sizes) -> Size:
        """Return height and width of a batch of images of these sizes."""
        height, width = (-(-max(side) // self.divisor) * self.divisor for side in zip(*sizes, strict=True))
        return height, width

    def batched(self, images: Maps) -> tuple[Tensor, list[Size]]:
        """Return the images normalised and zero-padded at the right and bottom, (B, C, H, W), and their own sizes."""
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        height, width = self.padded(sizes)
        padded = []
        for image, size in zip(images, sizes, strict=True):
            if len(image) != len(self.pixel_mean):
                raise DataError(f"an image has {len(image)} channels; the backbone takes {len(self.pixel_mean)}")
            pixels = image.to(self.pixel_mean.device)
            pixels = pixels if pixels.is_floating_point() else pixels.float() / torch.iinfo(image.dtype).max
            # The mean and standard deviation are in the order of the channels that the network takes.
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
        proposal_generator: RegionProposalNetwork,
        roi_heads: RegionHeads | Res5Heads,
        **parts: Any,
    ) -> None:
        """Set up a detector; `parts` are the other arguments of `Detector`."""
        super().__init__(recipe, classes, **parts)
        self.proposal_generator, self.roi_heads = proposal_generator, roi_heads

    def losses(self, features: Maps, sizes: Sizes, targets: Targets, generator: Generator) -> dict[str, Tensor]:
        """Return the losses of the proposals and of the regions drawn from them."""
        proposals, losses = self.proposal_generator(features, sizes, targets, generator)
        return {**losses, **self.roi_heads.losses(features, proposals, targets, generator)}

    def detections(self, features: Maps, sizes: Sizes) -> list[InstancePredictions]:
        """Return the detections among the proposals of each image."""
        proposals, _ = self.proposal_generator(features, sizes)
        return self.roi_heads.detections(features, proposals, sizes)

    def masks_of(self, features: Maps, found: Found) -> list[InstancePredictions]:
        """Return the detections of each image with their masks and keypoints."""
        return self.roi_heads.masks(features, found)
