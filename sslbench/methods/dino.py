"""DINO: a student matches the centred, sharpened output of its own moving average (Caron et al., arXiv 2104.14294).

The teacher receives the large views, the student all views. Any backbone that accepts views of several sizes can be
trained; timm's vision transformers interpolate their positions.
"""

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update_copies
from sslbench.methods._parts.networks import encode
from sslbench.methods._parts.self_distillation import (
    DinoHead,
    PendingLogits,
    TeacherSettings,
    dino_loss,
    teacher_probabilities,
    warmed_up,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step, need_several_images


@dataclasses.dataclass(frozen=True)
class Config(TeacherSettings):
    """Settings of DINO."""

    teacher_views: int = setting(2, "number of views of the teacher; they come first", within="[1, inf)")
    prototypes: int = setting(65536, "output dimension K", within="[1, inf)")
    head_norm: bool = setting(False, "BatchNorm in the head")
    normalize_last_layer: bool = setting(True, "fix the length of the last layer's rows at 1 (otherwise it is learnt)")
    temperature_steps: Literal["epoch", "update"] = setting(
        "epoch", "steps of that warm-up: every epoch (the published code) or every update (VISSL)"
    )
    center_momentum: float = setting(0.9, "decay of the centre", within="[0, 1]")


class Method(method.Method[Config]):
    """DINO on any number of views, large ones first."""

    config_type = Config
    saved_head = "head.mlp"  # without the prototypes
    copies = "teacher_"
    default_export = "teacher"  # better (section 5.2), and evaluated by the published code
    center: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require at least one pair of a teacher view and another view."""
        if not 1 <= config.teacher_views <= len(setup.sizes) or len(setup.sizes) < 2:
            raise UsageError(
                f"dino compares {config.teacher_views} teacher views with others, the augmentation makes "
                f"{len(setup.sizes)} in all",
                "Set augment=dino (published), or method.teacher_views.",
            )
        if config.head_norm:
            need_several_images(setup, method="dino with method.head_norm=true")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = DinoHead(
            setup.feature_dim,
            hidden=config.hidden,
            bottleneck=config.bottleneck,
            prototypes=config.prototypes,
            norm=config.head_norm,
            fixed_length=config.normalize_last_layer,
        )
        self.teacher_backbone = copy_of(backbone)
        self.teacher_head = copy_of(self.head)
        self.register_buffer("center", torch.zeros(config.prototypes))
        self._logits = PendingLogits()

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss, with the centre before this update."""
        config = self.config
        student, _ = self.head(torch.cat(encode(self.backbone, batch.views)))
        with torch.no_grad():
            features = torch.cat(encode(self.teacher_backbone, batch.views[: config.teacher_views]))
            logits, embeddings = self.teacher_head(features)
            logits = logits.float()
            # The centre moves after the update, by the logits of all its passes and processes.
            self._logits.add(logits.sum(0), len(logits))
            teacher = teacher_probabilities(logits, self.center, temperature=teacher_temperature(config, step))
        shape = (len(batch.views[0]), config.prototypes)
        value = dino_loss(student.view(-1, *shape), teacher.view(-1, *shape), temperature=config.student_temperature)
        return Loss(value, embeddings[: shape[0]])

    def before_update(self, step: Step) -> None:
        """Drop the gradient of the last layer while it is frozen (appendix C)."""
        if step.index < round(self.config.frozen_epochs * step.per_epoch):
            self.head.last_layer.zero_grad()

    def after_update(self, step: Step) -> None:
        """Update the centre by the logits of this update, and the teacher by the student."""
        self._logits.move(self.center, self.config.center_momentum)
        update_copies(self, cosine_momentum(self.config.momentum, self.config.final_momentum, step.where))


def teacher_temperature(config: Config, step: Step) -> float:
    """Return the teacher's temperature: linear over the warm-up, including its last epoch or update, then constant."""
    per_epoch = config.temperature_steps == "epoch"
    position = step.epoch if per_epoch else step.index
    length = round(config.temperature_epochs * (1 if per_epoch else step.per_epoch))
    return warmed_up(config.first_teacher_temperature, config.teacher_temperature, position=position, length=length)
