"""LeJEPA: views predict the mean of the large views, and embeddings follow a normal distribution (Balestriero, LeCun).

Source: arXiv 2511.08544 (2025) and the authors' code. There is no teacher and no stop-gradient; SIGReg keeps the
embeddings from collapsing.

Departures: the projector takes the backbone's vector (in the authors' minimal example a linear layer of 512 lies in
between). Random directions are drawn from torch's generator and shared by all processes.
"""

import dataclasses

import torch
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.distributed.collectives import broadcast_, mean_with_gradient, world_size
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.networks import embed_views, mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of LeJEPA."""

    large_views: int = setting(2, "number of views whose mean is predicted; they come first", within="[1, inf)")
    weight: float = setting(
        0.02, "weight lambda of SIGReg, from 0 to 1; the prediction has 1 - lambda", within="(0, 1)"
    )
    directions: int = setting(1024, "random directions of SIGReg in each update", within="[1, inf)")
    knots: int = setting(17, "points at which characteristic functions are compared", within="[2, inf)")
    largest: float = setting(3.0, "largest of these points; the first is 0", within="(0, inf)")
    projector: tuple[int, ...] = setting((2048, 2048, 128), "widths of the projector's layers", within="[1, inf)")


@in_float32
def prediction_loss(embeddings: Tensor, large: int) -> Tensor:
    """Return the mean squared distance of all views from the mean of the large views (section 5).

    `embeddings`: (V, B, d), of views; the first `large` are the large ones.

    >>> float(prediction_loss(torch.tensor([[[0.0]], [[2.0]], [[4.0]]]), 2))  # (1 + 1 + 9) / 3
    3.6666667461395264
    """
    return (embeddings - embeddings[:large].mean(0)).square().mean()


@in_float32
def sigreg(embeddings: Tensor, directions: Tensor, *, knots: int = 17, largest: float = 3.0) -> Tensor:
    """Return SIGReg (section 4.3): mean of Epps and Pulley's statistic for normality over directions and views.

    The statistic is the number of images, of all processes, times the integral over t of the squared distance between
    the empirical characteristic function at t and exp(-t^2 / 2), weighted by the latter, from -largest to largest.

    `embeddings`: (V, B, d), of the views of this process's images; `directions`: (d, S), columns of length 1, the same
    on all processes.
    """
    t = torch.linspace(0, largest, knots, device=embeddings.device, dtype=embeddings.dtype)
    normal = (-t.square() / 2).exp()
    weights = torch.full_like(t, 2 * largest / (knots - 1))  # both halves of the integral
    weights[0] /= 2
    weights[-1] /= 2
    angles = (embeddings @ directions)[..., None] * t  # (V, B, S, knots)
    real, imaginary = (mean_with_gradient(part.mean(1)) for part in (angles.cos(), angles.sin()))
    distances = (real - normal).square() + imaginary.square()
    images = embeddings.shape[1] * world_size()
    return images * (distances @ (weights * normal)).mean()


class Method(method.Method[Config]):
    """LeJEPA on any number of views, large ones first."""

    config_type = Config
    needs = Needs("lejepa", several_images=True)
    saved_head = "projector"

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require several views of several images."""
        if not 1 <= config.large_views <= len(setup.sizes) or len(setup.sizes) < 2:
            raise UsageError(
                f"lejepa compares views with the mean of {config.large_views}, the augmentation makes "
                f"{len(setup.sizes)} in all",
                "Set augment=lejepa (published), or method.large_views.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the weighted sum of prediction and SIGReg."""
        config = self.config
        embeddings = embed_views(self.backbone, self.projector, batch.views)
        dtype = torch.float64 if embeddings.dtype == torch.float64 else torch.float32
        directions = torch.randn(embeddings.shape[-1], config.directions, device=embeddings.device, dtype=dtype)
        # All processes test the same directions: their statistics are averaged.
        directions = broadcast_(directions / directions.norm(dim=0))
        prediction = prediction_loss(embeddings, config.large_views)
        normality = sigreg(embeddings, directions, knots=config.knots, largest=config.largest)
        value = (1 - config.weight) * prediction + config.weight * normality
        parts = {"prediction": prediction.detach(), "sigreg": normality.detach()}
        return Loss(value, embeddings[0].detach(), parts)
