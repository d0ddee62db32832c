"""ReSSL (Zheng et al., NeurIPS 2021, arXiv 2107.09282): relations to earlier images, equal for two views of an image.

The teacher's view is augmented weakly; its similarities to a queue are the target of the student's. Departures: keys
enter the queue after the optimizer's step.
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.methods._parts.losses import in_float32, unit_length
from sslbench.methods._parts.memory import need_whole_updates, random_rows, replace_oldest_
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update_copies
from sslbench.methods._parts.networks import mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of ReSSL."""

    student_temperature: float = setting(0.1, "temperature of the student's relations", within="(0, inf)")
    teacher_temperature: float = setting(
        0.04, "temperature of the teacher's relations; lower makes them sharper", within="(0, inf)"
    )
    momentum: float = setting(0.999, "decay of the teacher at the start of training", within="[0, 1]")
    final_momentum: float = setting(0.999, "decay at the end; half a cosine in between", within="[0, 1]")
    queue: int = setting(
        131072, "number of earlier embeddings in the queue, a multiple of the images per update", within="[1, inf)"
    )
    projector: tuple[int, ...] = setting(
        (4096, 512), "widths of the projection head's layers, the last is the output", within="[1, inf)"
    )


@in_float32
def relation_loss(
    query: Tensor, key: Tensor, queue: Tensor, *, student_temperature: float, teacher_temperature: float
) -> Tensor:
    """Return eq. 5: cross entropy of the teacher's and the student's distribution over the queue.

    `query`: (B, d), rows of length 1, of the student; `key`: (B, d), rows of length 1, of the teacher; without
    gradient; `queue`: (K, d), rows of length 1.

    >>> q = torch.tensor([[1.0, 0.0]])
    >>> round(float(relation_loss(q, q, torch.eye(2), student_temperature=1.0, teacher_temperature=1.0)), 4)
    0.5822
    """
    target = (key.detach() @ queue.T / teacher_temperature).softmax(dim=1)
    return functional.cross_entropy(query @ queue.T / student_temperature, target)


class Method(method.Method[Config]):
    """Student on the first view (strong), teacher on the second (weak)."""

    config_type = Config
    needs = Needs("ressl", views=2)
    saved_head = "projector"
    copies = "teacher_"
    queue: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require two views, and a queue that whole updates fill."""
        need_whole_updates(config.queue, setup.images_per_update, method="ressl")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.projector = mlp([setup.feature_dim, *config.projector])
        self.teacher_backbone = copy_of(backbone)
        self.teacher_projector = copy_of(self.projector)
        self.register_buffer("queue", random_rows(config.queue, config.projector[-1]))
        self._new: list[Tensor] = []

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of the student's relations."""
        query = unit_length(self.projector(self.backbone(batch.views[0])))
        with torch.no_grad():
            key = unit_length(self.teacher_projector(self.teacher_backbone(batch.views[1])))
        # The queue changes after the update: all forward passes of one compare with the same keys.
        self._new.append(key)
        value = relation_loss(
            query,
            key,
            self.queue,
            student_temperature=self.config.student_temperature,
            teacher_temperature=self.config.teacher_temperature,
        )
        return Loss(value, query.detach())

    def after_update(self, step: Step) -> None:
        """Update the teacher, and replace the oldest keys of the queue."""
        update_copies(self, cosine_momentum(self.config.momentum, self.config.final_momentum, step.where))
        replace_oldest_(self.queue, self._new, step)
