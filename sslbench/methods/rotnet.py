"""RotNet (Gidaris et al. 2018, arXiv 1803.07728): classification of four rotations of an image.

A batch holds all four rotations of every image, as in the paper (section 3.1); VISSL draws one. Images are rotated
after crop and flip. VISSL flips afterwards, which turns rotations by 90 degrees into rotations by 270 degrees of the
mirror image, so half of those labels are wrong.
"""

import dataclasses

import torch
from torch import Tensor, nn

from sslbench.methods._parts.losses import cross_entropy, top1
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step

ANGLES = 4


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of RotNet: none."""


def rotations(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return every image in four rotations, and their labels.

    `images`: (B, C, h, h); returns (4 * B, C, h, h): all images rotated counter-clockwise by 0, by 90, by 180 and by
    270 degrees; and int64 (4 * B,): label k for 90 * k degrees.

    >>> turned, labels = rotations(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
    >>> turned[1, 0].tolist(), labels.tolist()
    ([[2.0, 4.0], [1.0, 3.0]], [0, 1, 2, 3])
    """
    turned = torch.cat([torch.rot90(images, k, dims=(2, 3)) for k in range(ANGLES)])
    labels = torch.arange(ANGLES, device=images.device).repeat_interleave(len(images))
    return turned.contiguous(memory_format=torch.channels_last), labels


class Method(method.Method[Config]):
    """Linear classifier of the four rotations on the backbone."""

    config_type = Config
    needs = Needs("rotnet", views=1)
    saved_head = "head"

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = nn.Linear(setup.feature_dim, ANGLES)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the cross entropy over the rotations (eq. 2 and 3)."""
        images, labels = rotations(batch.views[0])
        features = self.backbone(images)
        logits = self.head(features)
        return Loss(
            cross_entropy(logits, labels),
            features[: len(batch.views[0])].detach().float(),
            {"accuracy": top1(logits, labels)},
        )
