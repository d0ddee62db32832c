"""RotNet (Gidaris et al. 2018, arXiv 1803.07728): which of four rotations was applied to an image?

All four copies of every image are in the batch, as in the paper (section 3.1); VISSL draws one of them. Rotation comes
after crop and flip: VISSL flips afterwards, and a mirror image turned by 90 degrees is the mirror image of one turned
by 270, so there half of those labels are wrong.
"""

import dataclasses

import torch
from torch import Tensor, nn

from sslbench.methods._parts.checks import need_views
from sslbench.methods._parts.classification import cross_entropy, top1
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step

ANGLES = 4


@dataclasses.dataclass(frozen=True)
class Config:
    """RotNet has no settings of its own."""


def rotations(images: Tensor) -> tuple[Tensor, Tensor]:
    """Every image in four rotations.

    Args:
        images: (B, C, h, h).

    Returns:
        (4 * B, C, h, h): all images turned by 0 degrees, by 90 counter-clockwise, by 180, by 270; and the int64 labels
        (4 * B,): label k for 90 * k degrees.
    """
    turned = torch.cat([torch.rot90(images, k, dims=(2, 3)) for k in range(ANGLES)])
    labels = torch.arange(ANGLES, device=images.device).repeat_interleave(len(images))
    return turned.contiguous(memory_format=torch.channels_last), labels


class Method(method.Method[Config]):
    """A linear classifier of the four rotations on top of the backbone."""

    config_type = Config

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a single view."""
        need_views(setup, 1, method="rotnet")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = nn.Linear(setup.feature_dim, ANGLES)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Cross entropy over the rotations (eq. 2 and 3)."""
        images, labels = rotations(batch.views[0])
        features = self.backbone(images)
        logits = self.head(features)
        return Loss(
            cross_entropy(logits, labels),
            features[: len(batch.views[0])].detach().float(),
            {"accuracy": top1(logits, labels)},
        )
