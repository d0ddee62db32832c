"""DirectCLR: contrast of the first dimensions of the backbone's output, without a head (Jing et al., ICLR 2022).

Source: arXiv 2110.09348, section 6, and the authors' code. The other dimensions learn through the last residual block.
Departure: the authors' classifier on the fixed output, which they train beside it to watch the run, is left out.
"""

import dataclasses

from torch import Tensor, nn

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import cross_view_contrast, unit_length
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of DirectCLR."""

    dimensions: int = setting(360, "first dimensions of the backbone's output that are contrasted", within="[1, inf)")
    temperature: float = setting(0.1, "temperature of the similarities", within="(0, inf)")


def directclr_loss(first: Tensor, second: Tensor, dimensions: int, temperature: float) -> Tensor:
    """Return the mean of both directions of InfoNCE on the first dimensions (section 6).

    `first`, `second`: (B, D), outputs of the backbone for two views.

    >>> import torch
    >>> round(float(directclr_loss(torch.eye(2), 3 * torch.eye(2), 2, 1.0)), 4)  # log(1 + exp(-1))
    0.3133
    """
    a, b = unit_length(first[:, :dimensions]), unit_length(second[:, :dimensions])
    return (cross_view_contrast(a, b, temperature) + cross_view_contrast(b, a, temperature)) / 2


class Method(method.Method[Config]):
    """Contrast of two views without a trained head."""

    config_type = Config
    needs = Needs("barlow_twins", method="directclr", views=2, negatives=True)

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require as many dimensions as are contrasted."""
        if config.dimensions > setup.feature_dim:
            raise UsageError(
                f"directclr: dimensions={config.dimensions}, but the output of {setup.backbone} has "
                f"{setup.feature_dim}",
                f"Set method.dimensions to at most {setup.feature_dim}; 360 of 2,048 are published.",
            )

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of both directions."""
        first, second = (self.backbone(view) for view in batch.views)
        value = directclr_loss(first, second, self.config.dimensions, self.config.temperature)
        return Loss(value, unit_length(first.detach()))
