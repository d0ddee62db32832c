"""PIRL (Misra and van der Maaten, CVPR 2020, arXiv 1912.01991): an image and its shuffled patches share a memory.

Both are contrasted with a memory bank of all images (eq. 5), which only the undivided image updates. Departures: the
memory is updated after the optimizer's step (the published code updates it within the forward pass, with the same
embeddings).
"""

import dataclasses

import torch
from torch import nn

from sslbench.config import setting
from sslbench.methods._parts.losses import unit_length
from sslbench.methods._parts.masks import image_generators
from sslbench.methods._parts.memory import ContrastSettings, MemoryBank
from sslbench.methods._parts.networks import mlp
from sslbench.methods._parts.patches import PIECES, concatenated, need_patches, reorder
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config(ContrastSettings):
    """Settings of PIRL."""

    patches_weight: float = setting(
        0.5, "weight of the patches' loss; the image has the rest (lambda of eq. 5)", within="(0, 1)"
    )
    projector: tuple[int, ...] = setting(
        (128,), "widths of both heads' layers, the last is the memory's; [2048, 128] is the MLP head", within="[1, inf)"
    )


class Method(method.Method[Config]):
    """Contrast of an image and of its shuffled patches with a memory of all images."""

    config_type = Config
    saved_head = "head"

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require one undivided view before nine patches."""
        need_patches(setup, 1, method="pirl")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        dim = config.projector[-1]
        self.head = mlp([setup.feature_dim, *config.projector])
        self.patch_head = mlp([setup.feature_dim, *config.projector])
        if len(config.projector) > 1:
            self.patch_head.append(nn.ReLU())  # the published MLP head ends in one, the linear head does not
        self.joint_head = nn.Linear(PIECES * dim, dim)
        self.memory = MemoryBank(setup.samples, dim)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the weighted contrasts of patches and image with the memory."""
        image = unit_length(self.head(self.backbone(batch.views[0])))
        generators = image_generators(self.seed, batch, step, image.device)
        order = torch.stack([torch.rand(PIECES, generator=each, device=image.device) for each in generators])
        patches = concatenated(
            lambda x: self.patch_head(self.backbone(x)), reorder(batch.views[1:], order.argsort(dim=1))
        )
        together = unit_length(self.joint_head(patches))
        images = batch.indices.to(image.device, non_blocking=True)
        # The memory changes after the update: all forward passes of one compare with the same bank.
        self.memory.note(images, image)
        from_patches, from_image = (
            self.memory.contrast(embeddings, images, generators, self.config) for embeddings in (together, image)
        )
        weight = self.config.patches_weight
        return Loss(
            weight * from_patches + (1 - weight) * from_image,
            image.detach().float(),
            {"patches": from_patches.detach(), "image": from_image.detach()},
        )

    def after_update(self, step: Step) -> None:
        """Update the memory by the undivided images of this update."""
        self.memory.store_(self.config.momentum)
