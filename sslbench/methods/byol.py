"""BYOL: prediction of a momentum network's embedding of another view (Grill et al., arXiv 2006.07733).

Each view has its own forward pass, so that BatchNorm normalises one view at a time, as in DeepMind's code. With a queue
the target is the nearest neighbour of that embedding among earlier ones: NNBYOL, of solo-learn, after NNCLR (Dwibedi et
al., arXiv 2104.14548). Its embeddings of the first view enter the queue after the optimizer's step.
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.methods._parts.losses import in_float32, unit_length
from sslbench.methods._parts.memory import nearest, need_whole_updates, random_rows, replace_oldest_
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update_copies
from sslbench.methods._parts.networks import mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of BYOL."""

    projector: tuple[int, ...] = setting(
        (4096, 256), "widths of the projection head: hidden layers, output", within="[1, inf)"
    )
    predictor: tuple[int, ...] = setting((4096,), "widths of the prediction head's hidden layers", within="[1, inf)")
    momentum: float = setting(0.996, "decay of the target network at the start of training", within="[0, 1]")
    final_momentum: float = setting(1.0, "decay at the end; half a cosine in between", within="[0, 1]")
    queue: int = setting(
        0,
        "number of earlier targets, a multiple of the images per update, whose nearest is predicted (NNBYOL); 0: none",
        within="[0, inf)",
    )


@in_float32
def regression_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Return equation 2, the mean squared distance of the normalised vectors; the target gets no gradient.

    `prediction`: (B, d); `target`: (B, d), embedding of the other view by the target network.

    >>> float(regression_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])))
    2.0
    """
    return 2 - 2 * functional.cosine_similarity(prediction, target.detach(), dim=1).mean()


class Method(method.Method[Config]):
    """BYOL on two views."""

    config_type = Config
    needs = Needs("byol", views=2, several_images=True)
    saved_head, saved_predictor = "projector", "predictor"
    copies = "target_"
    queue: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a queue, if there is one, that whole updates fill."""
        if config.queue:
            need_whole_updates(config.queue, setup.images_per_update, method="byol")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        dim = config.projector[-1]
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True, last_bias=False)
        self.predictor = mlp([dim, *config.predictor, dim], norm=True, last_bias=False)
        self.target_backbone = copy_of(backbone)
        self.target_projector = copy_of(self.projector)
        if config.queue:
            self.register_buffer("queue", random_rows(config.queue, dim))
        self._new: list[Tensor] = []

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the sum of the losses of both directions (section 3.1)."""
        embeddings = [self.projector(self.backbone(view)) for view in batch.views]
        predictions = [self.predictor(embedding) for embedding in embeddings]
        with torch.no_grad():
            targets = [self.target_projector(self.target_backbone(view)) for view in batch.views]
        if self.config.queue:
            rows = [unit_length(target) for target in targets]
            self._new.append(rows[0])
            targets = [nearest(each, self.queue) for each in rows]
        value = regression_loss(predictions[0], targets[1]) + regression_loss(predictions[1], targets[0])
        return Loss(value, embeddings[0].detach())

    def after_update(self, step: Step) -> None:
        """Update the target network (equation 1), and replace the oldest embeddings of a queue."""
        update_copies(self, cosine_momentum(self.config.momentum, self.config.final_momentum, step.where))
        if self.config.queue:
            replace_oldest_(self.queue, self._new, step)
