"""MMCR: maximum manifold capacity representations (Yerxa et al., NeurIPS 2023, arXiv 2303.03307).

The nuclear norm of the images' centroids grows: views of an image gather, images spread over all dimensions. The
centroid is the mean of the embeddings by the network and by its momentum copy, as in the authors' code for ImageNet.
Departure: centroids of other processes get their gradient (the authors' code gathers them as constants).
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import gather_with_gradient
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.momentum import copy_of, update_copies
from sslbench.methods._parts.networks import embed_views, mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of MMCR."""

    projector: tuple[int, ...] = setting((8192, 8192, 512), "widths of the projector's layers", within="[1, inf)")
    spread_weight: float = setting(
        0.0, "weight lambda of the nuclear norm of each image's views, which is minimised", within="[0, inf)"
    )
    momentum: float = setting(0.99, "decay of the momentum network", within="[0, 1]")


@in_float32
def mmcr_loss(views: Tensor, targets: Tensor, spread_weight: float = 0.0) -> Tensor:
    """Return minus the nuclear norm of the centroids of all processes, plus the weighted mean norm of an image's views.

    `views`: (V, B, d), embeddings, not necessarily normalised; `targets`: (V, B, d), those of the momentum network,
    without gradient.

    >>> views = torch.eye(2).expand(2, 2, 2)  # two images with equal views, at right angles
    >>> round(float(mmcr_loss(views, views)), 4)
    -2.0
    """
    z, fixed = functional.normalize(views, dim=2), functional.normalize(targets.detach(), dim=2)
    centroids = gather_with_gradient((z.mean(dim=0) + fixed.mean(dim=0)) / 2)
    loss: Tensor = -torch.linalg.matrix_norm(centroids, "nuc")
    if spread_weight > 0:
        loss = loss + spread_weight * torch.linalg.matrix_norm(z.transpose(0, 1), "nuc").mean()
    return loss


class Method(method.Method[Config]):
    """Manifold capacity of the views of each image."""

    config_type = Config
    needs = Needs("barlow_twins", method="mmcr", pairs=True, negatives=True)
    saved_head = "projector"
    copies = "target_"

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True, bias=False, last_bias=False)
        self.target_backbone = copy_of(backbone)
        self.target_projector = copy_of(self.projector)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of all views."""
        embeddings = embed_views(self.backbone, self.projector, batch.views)
        with torch.no_grad():
            targets = embed_views(self.target_backbone, self.target_projector, batch.views)
        value = mmcr_loss(embeddings, targets, self.config.spread_weight)
        return Loss(value, functional.normalize(embeddings[0].detach().float(), dim=1))

    def after_update(self, step: Step) -> None:
        """Update the momentum network."""
        update_copies(self, self.config.momentum)
