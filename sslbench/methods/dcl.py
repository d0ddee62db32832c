"""Decoupled contrastive learning (Yeh et al., ECCV 2022, arXiv 2110.06848): DCL and DCLW.

SimCLR without the positive in the denominator, so that small batches learn as well as large ones. Departures: those
of SimCLR here: negatives are all views of all other images on all processes (the paper's eq. 6 has both views of the
process's images), and more than two views are averaged over all pairs.
"""

import dataclasses

from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import sum_
from sslbench.methods._parts.losses import in_float32, mean_over_pairs, similarities
from sslbench.methods._parts.networks import embed_views, mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of DCL."""

    temperature: float = setting(0.1, "temperature of the similarities", within="(0, inf)")
    sigma: float | None = setting(
        None, "DCLW: width of the weights that favour hard positives, 0.5; none: DCL", within="(0, inf)"
    )
    projector: tuple[int, ...] = setting(
        (2048, 128), "widths of the projection head's layers, the last is the output", within="[1, inf)"
    )
    projector_norm: bool = setting(True, "BatchNorm in the projection head")


@in_float32
def decoupled(views: Tensor, temperature: float, sigma: float | None = None) -> Tensor:
    """Return the decoupled loss (eq. 6), the mean over anchors and positives of -w * p + log(sum of e^n).

    p and n are cosines divided by the temperature, n runs over all views of all other images on all processes. w is 1,
    or with `sigma` the weight of eq. 7: 2 - e^(c / sigma) / mean of e^(c / sigma), c the cosine of the positive.

    `views`: (V, B, d), this process's embeddings of V >= 2 views, not necessarily normalised.

    >>> import torch
    >>> views = torch.eye(2).expand(2, 2, 2)  # two equal views of two orthogonal images: -1 + log(2)
    >>> round(float(decoupled(views, 1.0)), 4)
    -0.3069
    """
    positives, negatives = similarities(views, temperature)
    if sigma is not None:
        scaled = positives.detach() * temperature / sigma
        values = scaled.exp()
        images = sum_(scaled.new_full((), scaled.shape[2]))
        positives = positives * (2 - values * images / sum_(values.sum(dim=2))[:, :, None])
    return mean_over_pairs(negatives - positives)


class Method(method.Method[Config]):
    """Contrast of the views of an image with those of all other images, decoupled."""

    config_type = Config
    needs = Needs("simclr", method="dcl", pairs=True, negatives=True)
    saved_head = "head"

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = mlp([setup.feature_dim, *config.projector], norm=config.projector_norm)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the decoupled loss over all pairs of views."""
        embeddings = embed_views(self.backbone, self.head, batch.views)
        value = decoupled(embeddings, self.config.temperature, self.config.sigma)
        return Loss(value, functional.normalize(embeddings[0].detach().float(), dim=1))
