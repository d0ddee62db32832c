"""Barlow Twins: cross-correlation of two views' embeddings close to the identity (Zbontar et al., 2103.03230).

Mean, variance and correlation are those of the whole batch: they are summed over the processes.
"""

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.distributed.collectives import gather_with_gradient, sum_with_gradient, world_size
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.networks import mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step

Normalisation = Literal["paper", "vissl"]


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of Barlow Twins."""

    projector: tuple[int, ...] = setting(
        (8192, 8192, 8192), "widths of the projection head: hidden layers, output", within="[1, inf)"
    )
    off_diagonal: float = setting(0.0051, "weight of the redundancy term (lambda in equation 1)", within="[0, inf)")
    scale: float = setting(
        0.024,
        "factor of the whole loss; 1 in the paper's equation, 0.024 in its first code and VISSL",
        within="(0, inf)",
    )
    normalisation: Normalisation = setting(
        "paper", "paper: each view by its own mean and variance; vissl: by common ones"
    )


@in_float32
def correlation_terms(za: Tensor, zb: Tensor, *, normalisation: Normalisation = "paper") -> tuple[Tensor, Tensor]:
    """Return the two sums of equation 1, of (C_ii - 1)^2 and of C_ij^2 for i != j, over the batch of all processes.

    `za`: (B, d), embeddings of one view; `zb`: (B, d), embeddings of the other view.

    >>> z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> invariance, redundancy = correlation_terms(z, z.flip(1))  # C = [[0, 1], [1, 0]]
    >>> round(float(invariance), 3), round(float(redundancy), 3)
    (2.0, 2.0)
    """
    # All processes get the same values. The gradient of this process's rows counts these values once, so its mean over
    # processes, as DistributedDataParallel takes it, is too small by the number of processes.
    # Mean 0 and biased variance 1, over the rows of each view or of both together.
    z, together = torch.stack([za, zb]), normalisation == "vissl"
    axes = (0, 1) if together else (1,)
    count = z.shape[1] * world_size() * (2 if together else 1)
    centred = z - _over_processes(z.sum(axes, keepdim=True)) / count
    variance = _over_processes(centred.square().sum(axes, keepdim=True)) / count
    a, b = centred * (variance + 1e-5).rsqrt()
    correlation = sum_with_gradient(a.T @ b) / (len(a) * world_size())  # equation 2
    d = len(correlation)
    invariance = (correlation.diagonal() - 1).square().sum()
    # All but the last entry as rows of d + 1: the diagonal is the first column.
    redundancy = correlation.flatten()[:-1].view(d - 1, d + 1)[:, 1:].square().sum()
    return invariance, redundancy


def _over_processes(x: Tensor) -> Tensor:
    """Return the sum over processes; its gradient includes the other processes, which normalise their rows by it."""
    return gather_with_gradient(x[None]).sum(0)


def barlow_twins_loss(
    za: Tensor, zb: Tensor, *, off_diagonal: float = 0.0051, scale: float = 1, normalisation: Normalisation = "paper"
) -> Tensor:
    """Return equation 1 for the batch of all processes; see `correlation_terms`."""
    invariance, redundancy = correlation_terms(za, zb, normalisation=normalisation)
    return scale * (invariance + off_diagonal * redundancy)


class Method(method.Method[Config]):
    """Barlow Twins on two views, with one forward pass per view, as in the published code."""

    config_type = Config
    needs = Needs("barlow_twins", views=2, several_images=True)
    saved_head = "projector"

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True, bias=False, last_bias=False)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of the whole batch, with a gradient that is correct after averaging over processes."""
        # The gradient of a process is its part of the joint loss, so the parts have to be summed; since they will be
        # averaged, the gradient is multiplied by the number of processes. The value is unchanged.
        config = self.config
        za, zb = (self.projector(self.backbone(view)) for view in batch.views)
        invariance, redundancy = correlation_terms(za, zb, normalisation=config.normalisation)
        value = config.scale * (invariance + config.off_diagonal * redundancy)
        value = value + (world_size() - 1) * (value - value.detach())
        parts = {"invariance": invariance.detach(), "redundancy": redundancy.detach()}
        return Loss(value, za.detach(), parts)
