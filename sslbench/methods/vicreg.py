"""VICReg: variance, invariance and covariance regularisation (Bardes et al., arXiv 2105.04906)."""

import dataclasses

from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import gather_with_gradient
from sslbench.methods._parts.losses import in_float32, variance_and_covariance
from sslbench.methods._parts.networks import mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of VICReg; the variance term is the mean over both views, so solo-learn's sum with 25 is 50 here."""

    projector: tuple[int, ...] = setting(
        (8192, 8192, 8192), "widths of the expander: hidden layers, output", within="[1, inf)"
    )
    invariance: float = setting(25.0, "weight of the distance between the views (lambda)", within="[0, inf)")
    variance: float = setting(25.0, "weight of the hinge on the standard deviations (mu)", within="[0, inf)")
    covariance: float = setting(1.0, "weight of the off-diagonal covariances (nu)", within="[0, inf)")


@in_float32
def vicreg_terms(za: Tensor, zb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return invariance (equation 5), variance (equations 1, 2) and covariance (equations 3, 4), unweighted.

    `za`: (B, d), embeddings of one view; `zb`: (B, d), embeddings of the other view.

    >>> import torch
    >>> z = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])
    >>> [round(float(term), 3) for term in vicreg_terms(z, z)]  # the second dimension has collapsed
    [0.0, 0.495, 0.0]
    """
    # Every process computes variance and covariance of the whole batch, and the invariance of its own rows. The means
    # of values and gradients over processes are therefore those of the whole batch.
    invariance = functional.mse_loss(za, zb)
    variances, covariances = zip(*(variance_and_covariance(gather_with_gradient(z)) for z in (za, zb)), strict=True)
    return invariance, sum(variances) / 2, sum(covariances)


def vicreg_loss(
    za: Tensor, zb: Tensor, *, invariance: float = 25, variance: float = 25, covariance: float = 1
) -> Tensor:
    """Return equation 6, the weighted sum of the terms; see `vicreg_terms`."""
    terms = vicreg_terms(za, zb)
    return invariance * terms[0] + variance * terms[1] + covariance * terms[2]


class Method(method.Method[Config]):
    """VICReg on two views, with one forward pass per view, as in the published code."""

    config_type = Config
    needs = Needs("vicreg", views=2, several_images=True)
    saved_head = "projector"

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True, last_bias=False)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the weighted sum of the three terms."""
        config = self.config
        za, zb = (self.projector(self.backbone(view)) for view in batch.views)
        invariance, variance, covariance = vicreg_terms(za, zb)
        value = config.invariance * invariance + config.variance * variance + config.covariance * covariance
        parts = {"invariance": invariance, "variance": variance, "covariance": covariance}
        return Loss(value, za.detach(), {name: term.detach() for name, term in parts.items()})
