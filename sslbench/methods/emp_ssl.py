"""EMP-SSL: many patches of an image agree, the coding rate of the images is large (Tong et al., arXiv 2304.03977).

The loss is that of the authors' code; lightly's EMPSSLLoss has the coding rate with the other sign. Departures: the
authors evaluate the first layer of the head, averaged over 128 random patches of each image; the backbone is exported
here, and seen by the evaluations on whole images.
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import mean_with_gradient
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.networks import embed_views, mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of EMP-SSL."""

    invariance_weight: float = setting(
        200.0, "weight of the similarity of the patches with their mean", within="[0, inf)"
    )
    epsilon: float = setting(0.2, "squared distortion of the coding rate", within="(0, inf)")
    projector: tuple[int, ...] = setting((4096, 4096, 1024), "widths of the projector's layers", within="[1, inf)")


@in_float32
def emp_ssl_loss(views: Tensor, *, invariance_weight: float = 200.0, epsilon: float = 0.2) -> Tensor:
    """Return the weighted similarity of views with their mean and the coding rate of images, both negative (eq. 3).

    `views`: (V, B, d), embeddings, not necessarily normalised.

    >>> views = torch.eye(2).expand(3, 2, 2)  # -200 - log(1 + 2 / (2 * 0.2)), the determinant of 6 times the identity
    >>> round(float(emp_ssl_loss(views)), 4)
    -201.7918
    """
    z = functional.normalize(views, dim=2)
    similarity = functional.cosine_similarity(z, z.mean(dim=0), dim=2).mean()
    # The coding rate is that of the images of all processes, 1/2 log det(I + d / (n epsilon) Z'Z), mean over the views.
    moments = mean_with_gradient(z.mT @ z / z.shape[1])
    identity = torch.eye(z.shape[2], device=z.device, dtype=z.dtype)
    rate = torch.logdet(identity + z.shape[2] / epsilon * moments).mean() / 2
    return -invariance_weight * similarity - rate


class Method(method.Method[Config]):
    """Agreement of many patches, and spread of the images."""

    config_type = Config
    needs = Needs("emp_ssl", pairs=True, negatives=True)
    saved_head = "projector"

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of all patches."""
        config = self.config
        embeddings = embed_views(self.backbone, self.projector, batch.views)
        value = emp_ssl_loss(embeddings, invariance_weight=config.invariance_weight, epsilon=config.epsilon)
        return Loss(value, functional.normalize(embeddings[0].detach().float(), dim=1))
