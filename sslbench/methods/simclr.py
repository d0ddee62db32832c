"""SimCLR (Chen et al. 2020, arXiv 2002.05709), with two views or more.

Departures: negatives are the images of one forward pass, so accumulated passes do not share negatives. With more than
two views the loss is the mean over all pairs of views, as in VISSL's multi-crop SimCLR; unlike there, images of other
processes are negatives too.
"""

import dataclasses

from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.methods._parts.losses import in_float32, mean_over_pairs, similarities
from sslbench.methods._parts.networks import embed_views, mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of SimCLR."""

    temperature: float = setting(0.1, "temperature of the similarities", within="(0, inf)")
    projector: tuple[int, ...] = setting(
        (2048, 128), "widths of the projection head's layers, the last is the output", within="[1, inf)"
    )
    projector_norm: bool = setting(False, "BatchNorm in the projection head")


@in_float32
def nt_xent(views: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent, the normalised temperature-scaled cross entropy (eq. 1), averaged over anchors and positives.

    For an anchor and one of its positives it is -log(e^p / (e^p + sum of e^n)), where p and n are cosines divided by
    the temperature, and n runs over all views of all other images on all processes. Further positives of the anchor
    are not in the sum. Log-sum-exp is shifted, so small temperatures do not overflow.

    `views`: (V, B, d), this process's embeddings of V >= 2 views, not necessarily normalised.

    >>> import torch
    >>> views = torch.eye(2).expand(2, 2, 2)  # two equal views of two orthogonal images: log(1 + 2 / e)
    >>> round(float(nt_xent(views, 1.0)), 4)
    0.5514
    """
    positives, negatives = similarities(views, temperature)
    return mean_over_pairs(functional.softplus(negatives - positives))


class Method(method.Method[Config]):
    """Contrast of the views of an image with those of all other images."""

    config_type = Config
    needs = Needs("simclr", pairs=True, negatives=True)
    saved_head = "head"

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = mlp([setup.feature_dim, *config.projector], norm=config.projector_norm)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return NT-Xent over all pairs of views."""
        embeddings = embed_views(self.backbone, self.head, batch.views)
        value = nt_xent(embeddings, self.config.temperature)
        return Loss(value, functional.normalize(embeddings[0].detach().float(), dim=1))
