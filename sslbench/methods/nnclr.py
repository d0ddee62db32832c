"""NNCLR (Dwibedi et al., ICCV 2021, arXiv 2104.14548): the nearest neighbour of a view in a queue is its positive.

Departures: the queue holds random unit vectors at the start; embeddings of the first view enter it after the
optimizer's step. lightly's loss has the other rows of the same side as negatives too, the paper's
(eq. 3) and solo-learn's, and ours, have not.
"""

import dataclasses

from torch import Tensor, nn

from sslbench.config import setting
from sslbench.methods._parts.losses import cross_view_contrast, unit_length
from sslbench.methods._parts.memory import nearest, need_whole_updates, random_rows, replace_oldest_
from sslbench.methods._parts.networks import mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of NNCLR."""

    temperature: float = setting(0.1, "temperature of the similarities", within="(0, inf)")
    queue: int = setting(
        98304, "number of embeddings in the queue, a multiple of the images per update", within="[1, inf)"
    )
    projector: tuple[int, ...] = setting(
        (2048, 2048, 256), "widths of the projection head's layers, BN after each", within="[1, inf)"
    )
    predictor: tuple[int, ...] = setting((4096,), "widths of the prediction head's hidden layers", within="[1, inf)")


class Method(method.Method[Config]):
    """Contrast of predictions with the nearest neighbours of the other view."""

    config_type = Config
    needs = Needs("byol", method="nnclr", views=2, several_images=True)
    saved_head, saved_predictor = "projector", "predictor"
    queue: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require two views of at least two images, and a queue that whole updates fill."""
        need_whole_updates(config.queue, setup.images_per_update, method="nnclr")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        dim = config.projector[-1]
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True, last_norm="affine")
        self.predictor = mlp([dim, *config.predictor, dim], norm=True)
        self.register_buffer("queue", random_rows(config.queue, dim))
        self._new: list[Tensor] = []

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the mean of the losses of both directions (eq. 3)."""
        projected = [self.projector(self.backbone(view)) for view in batch.views]
        predictions = [unit_length(self.predictor(each)) for each in projected]
        embeddings = [unit_length(each.detach()) for each in projected]
        neighbours = [nearest(each, self.queue) for each in embeddings]
        self._new.append(embeddings[0])
        value = (
            cross_view_contrast(neighbours[0], predictions[1], self.config.temperature)
            + cross_view_contrast(neighbours[1], predictions[0], self.config.temperature)
        ) / 2
        return Loss(value, embeddings[0])

    def after_update(self, step: Step) -> None:
        """Replace the oldest embeddings of the queue by those of this update."""
        replace_oldest_(self.queue, self._new, step)
