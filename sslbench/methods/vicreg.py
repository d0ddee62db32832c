"""VICReg: equal views, spread-out and uncorrelated dimensions (Bardes et al., arXiv 2105.04906)."""

import dataclasses

from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import gather_with_gradient
from sslbench.methods._parts.checks import need_several_images, need_views
from sslbench.methods._parts.heads import mlp
from sslbench.methods._parts.precision import in_float32
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of VICReg. The variance term is the mean over both views; solo-learn adds them, so its 25 is 50 here."""

    projector: tuple[int, ...] = setting((8192, 8192, 8192), "widths of the expander: hidden layers, output")
    invariance: float = setting(25.0, "weight of the distance between the views (lambda)")
    variance: float = setting(25.0, "weight of the hinge on the standard deviations (mu)")
    covariance: float = setting(1.0, "weight of the off-diagonal covariances (nu)")


@in_float32
def vicreg_terms(za: Tensor, zb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Invariance (equation 5), variance (equations 1 and 2) and covariance (equations 3 and 4), unweighted.

    Variance and covariance are those of the whole batch, on every process. The invariance is this process's own. So the
    mean over processes is the value for the whole batch, and so is the mean of the gradients: what the other processes
    say about this one's rows is in them.

    Args:
        za: (B, d), embeddings of one view.
        zb: (B, d), of the other.
    """
    invariance = functional.mse_loss(za, zb)
    variances, covariances = zip(*(_spread(gather_with_gradient(z)) for z in (za, zb)), strict=True)
    return invariance, sum(variances) / 2, sum(covariances)


def _spread(z: Tensor, *, epsilon: float = 1e-4) -> tuple[Tensor, Tensor]:
    """(N, d) -> mean over dimensions of max(0, 1 - standard deviation), and squared covariances over d."""
    n, d = z.shape
    hinge = functional.relu(1 - (z.var(dim=0) + epsilon).sqrt()).mean()
    centred = z - z.mean(dim=0)
    covariance = centred.T @ centred / (n - 1)
    # All but the last entry as rows of d + 1: the diagonal is the first column.
    return hinge, covariance.flatten()[:-1].view(d - 1, d + 1)[:, 1:].square().sum() / d


def vicreg_loss(
    za: Tensor, zb: Tensor, *, invariance: float = 25, variance: float = 25, covariance: float = 1
) -> Tensor:
    """Equation 6, with the weights; see `vicreg_terms`."""
    terms = vicreg_terms(za, zb)
    return invariance * terms[0] + variance * terms[1] + covariance * terms[2]


class Method(method.Method[Config]):
    """VICReg on two views; each goes through the network by itself, as in the published code."""

    config_type = Config

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require two views of at least two images."""
        need_views(setup, 2, method="vicreg")
        need_several_images(setup, method="vicreg")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True, last_bias=False)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """The weighted sum of the three terms."""
        config = self.config
        za, zb = (self.projector(self.backbone(view)) for view in batch.views)
        invariance, variance, covariance = vicreg_terms(za, zb)
        value = config.invariance * invariance + config.variance * variance + config.covariance * covariance
        parts = {"invariance": invariance, "variance": variance, "covariance": covariance}
        return Loss(value, za.detach(), {name: term.detach() for name, term in parts.items()})
