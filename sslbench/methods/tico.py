"""TiCo (Zhu et al. 2022, arXiv 2206.10698): invariance to transformations and contrast with the covariance matrix.

Departures: the covariance is that of the batch of all processes. The contrast with it has no gradient through the
matrix, as in the paper's Algorithm 1.
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import sum_
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update_copies
from sslbench.methods._parts.networks import mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of TiCo."""

    beta: float = setting(0.9, "decay of the covariance matrix", within="[0, 1)")
    rho: float = setting(8.0, "weight of the contrast with the covariance", within="[0, inf)")
    projector: tuple[int, ...] = setting(
        (4096, 256), "widths of the projection head: hidden layers, output", within="[1, inf)"
    )
    momentum: float = setting(0.99, "decay of the momentum network at the start of training", within="[0, 1]")
    final_momentum: float = setting(1.0, "decay at the end; half a cosine in between", within="[0, 1]")


@torch.no_grad()
@in_float32
def next_covariance(covariance: Tensor, embeddings: Tensor, beta: float) -> Tensor:
    """Return the moving average (d, d) with the second moments of the unit embeddings (B, d) of all processes."""
    z = functional.normalize(embeddings, dim=1)
    images = sum_(z.new_full((), len(z)))
    return beta * covariance + (1 - beta) * sum_(z.T @ z) / images


@in_float32
def tico_loss(embeddings: Tensor, targets: Tensor, covariance: Tensor, rho: float) -> Tensor:
    """Return the loss of Algorithm 1: 1 - mean cosine with the target + rho * mean of z' C z.

    `embeddings`: (B, d), not necessarily normalised; `targets`: (B, d), of the other view by the momentum network;
    without gradient; `covariance`: (d, d), from `next_covariance`, this batch included; without gradient.

    >>> z = torch.eye(2)
    >>> round(float(tico_loss(z, z, next_covariance(torch.zeros(2, 2), z, 0.9), 8.0)), 4)  # 8 * 0.1 / 2
    0.4
    """
    z = functional.normalize(embeddings, dim=1)
    invariance = 1 - functional.cosine_similarity(z, targets.detach(), dim=1).mean()
    return invariance + rho * ((z @ covariance) * z).sum(dim=1).mean()


class Method(method.Method[Config]):
    """TiCo on two views; one of them goes through the momentum network."""

    config_type = Config
    needs = Needs("byol", method="tico", views=2, several_images=True)
    saved_head = "projector"
    copies = "target_"
    covariance: Tensor

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        dim = config.projector[-1]
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True, last_bias=False)
        self.target_backbone = copy_of(backbone)
        self.target_projector = copy_of(self.projector)
        self.register_buffer("covariance", torch.zeros(dim, dim))

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of the first view with the target of the second."""
        embeddings = self.projector(self.backbone(batch.views[0]))
        with torch.no_grad():
            targets = self.target_projector(self.target_backbone(batch.views[1]))
        self.covariance = next_covariance(self.covariance, embeddings.detach(), self.config.beta)
        value = tico_loss(embeddings, targets, self.covariance, self.config.rho)
        return Loss(value, functional.normalize(embeddings.detach().float(), dim=1))

    def after_update(self, step: Step) -> None:
        """Update the momentum network."""
        update_copies(self, cosine_momentum(self.config.momentum, self.config.final_momentum, step.where))
