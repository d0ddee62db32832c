"""DINO: a student matches the centred, sharpened output of its own moving average (Caron et al., arXiv 2104.14294).

The teacher receives the large views, the student all views. Any backbone that accepts views of several sizes can be
trained; timm's vision transformers interpolate their positions.
"""

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import sum_, world_size
from sslbench.errors import UsageError
from sslbench.methods._parts.checks import need_several_images
from sslbench.methods._parts.crops import encode
from sslbench.methods._parts.heads import mlp
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update
from sslbench.methods._parts.precision import in_float32
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of DINO."""

    teacher_views: int = setting(2, "number of views of the teacher; they come first")
    prototypes: int = setting(65536, "output dimension K")
    hidden: tuple[int, ...] = setting((2048, 2048), "widths of the head's hidden layers")
    bottleneck: int = setting(256, "dimension of the unit vectors before the last layer")
    head_norm: bool = setting(False, "BatchNorm in the head")
    normalize_last_layer: bool = setting(True, "fix the length of the last layer's rows at 1 (otherwise it is learnt)")
    frozen_epochs: float = setting(1.0, "the last layer is frozen during the first epochs", unit="epochs")
    student_temperature: float = setting(0.1, "temperature of the student's softmax")
    teacher_temperature: float = setting(0.07, "temperature of the teacher's softmax after the warm-up")
    first_teacher_temperature: float = setting(0.04, "temperature of the teacher's softmax at the start")
    temperature_epochs: float = setting(30.0, "length of the warm-up of the teacher's temperature", unit="epochs")
    temperature_steps: Literal["epoch", "update"] = setting(
        "epoch", "steps of that warm-up: every epoch (the published code) or every update (VISSL)"
    )
    center_momentum: float = setting(0.9, "decay of the centre")
    momentum: float = setting(0.996, "decay of the teacher at the start of training")
    final_momentum: float = setting(1.0, "decay at the end; half a cosine in between")


@in_float32
def teacher_probabilities(logits: Tensor, center: Tensor, *, temperature: float) -> Tensor:
    """Return equation 1 with the centre of section 3.1: softmax of (logits - centre) / temperature."""
    return functional.softmax((logits - center) / temperature, dim=-1)


@in_float32
def dino_loss(student: Tensor, teacher: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Return equation 3: mean cross entropy over pairs of a student view and a different teacher view, and images.

    Args:
        student: (V, B, K), logits of all views; the first T are those of the teacher.
        teacher: (T, B, K), probabilities, without gradient.
        temperature: temperature of the student.
    """
    teachers, views = len(teacher), len(student)
    everything = teacher.sum(0)
    total = student.new_zeros(())
    for view in range(views):
        others = [teacher[t] for t in range(teachers) if t != view]
        if not others:
            continue
        target = everything if view >= teachers else torch.stack(others).sum(0) if len(others) > 1 else others[0]
        scores = student[view] / temperature
        # Targets sum to 1 per teacher view, so only the normaliser of the log-softmax is needed.
        total = total + (len(others) * scores.logsumexp(-1) - (target * scores).sum(-1)).mean()
    return total / (views * teachers - min(views, teachers))


@torch.no_grad()
def move_center(center: Tensor, total: Tensor, *, rows: int, momentum: float) -> None:
    """Update the centre in place by the mean of the teacher's logits over views, images and processes (equation 4).

    Args:
        center: (K,) or (1, K).
        total: sum of this process's logits, of the same shape.
        rows: number of summed rows.
        momentum: decay of the centre.
    """
    mean = sum_(total.to(center.dtype, copy=True)) / (rows * world_size())
    center.mul_(momentum).add_(mean, alpha=1 - momentum)


class DinoHead(nn.Module):
    """Head of section 3.1 and appendix C: MLP with GELU, normalised bottleneck, prototypes."""

    def __init__(self, dim: int, config: Config) -> None:
        super().__init__()
        widths = [dim, *config.hidden, config.bottleneck]
        self.mlp = mlp(widths, norm=config.head_norm, activation=nn.GELU)
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.last_layer = UnitLinear(config.bottleneck, config.prototypes, fixed_length=config.normalize_last_layer)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (n, K) of features (n, D), and the normalised bottleneck (n, bottleneck)."""
        embeddings = functional.normalize(self.mlp(features), dim=-1)
        return self.last_layer(embeddings), embeddings


class UnitLinear(nn.Module):
    """Linear layer without bias and with weight normalisation: rows have length 1, or a learnt length."""

    def __init__(self, inputs: int, outputs: int, *, fixed_length: bool) -> None:
        super().__init__()
        self.direction = nn.Parameter(nn.Linear(inputs, outputs, bias=False).weight.detach().clone())
        self.length = nn.Parameter(torch.ones(outputs, 1), requires_grad=not fixed_length)

    def forward(self, x: Tensor) -> Tensor:
        """Return the products with the rows: (n, inputs) -> (n, outputs)."""
        return functional.linear(x, functional.normalize(self.direction, dim=1) * self.length)


class Method(method.Method[Config]):
    """DINO on any number of views, large ones first."""

    config_type = Config
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
        self.head = DinoHead(setup.feature_dim, config)
        self.teacher_backbone = copy_of(backbone)
        self.teacher_head = copy_of(self.head)
        self.register_buffer("center", torch.zeros(config.prototypes))
        self._logits: tuple[Tensor, int] | None = None  # sum and number of the teacher's rows since the last update

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss, with the centre before this update."""
        config = self.config
        student, _ = self.head(torch.cat(encode(self.backbone, batch.views)))
        with torch.no_grad():
            features = torch.cat(encode(self.teacher_backbone, batch.views[: config.teacher_views]))
            logits, embeddings = self.teacher_head(features)
            logits = logits.float()
            self._add_logits(logits)
            teacher = teacher_probabilities(logits, self.center, temperature=teacher_temperature(config, step))
        shape = (len(batch.views[0]), config.prototypes)
        value = dino_loss(student.view(-1, *shape), teacher.view(-1, *shape), temperature=config.student_temperature)
        return Loss(value, embeddings[: shape[0]])

    def _add_logits(self, logits: Tensor) -> None:
        total, rows = self._logits or (torch.zeros_like(self.center), 0)
        self._logits = total + logits.sum(0), rows + len(logits)

    def before_update(self, step: Step) -> None:
        """Drop the gradient of the last layer while it is frozen (appendix C)."""
        if step.index < round(self.config.frozen_epochs * step.per_epoch):
            for parameter in self.head.last_layer.parameters():
                parameter.grad = None

    def after_update(self, step: Step) -> None:
        """Update the centre by the logits of this update, and the teacher by the student."""
        if self._logits is not None:
            total, rows = self._logits
            move_center(self.center, total, rows=rows, momentum=self.config.center_momentum)
            self._logits = None
        momentum = cosine_momentum(self.config.momentum, self.config.final_momentum, step.where)
        update(self.teacher_backbone, self.backbone, momentum)
        update(self.teacher_head, self.head, momentum)

    def exports(self) -> dict[str, nn.Module]:
        """Return the teacher, which is better (section 5.2) and evaluated by the published code, and the student."""
        return {"teacher": self.teacher_backbone, "student": self.backbone}


def teacher_temperature(config: Config, step: Step) -> float:
    """Return the teacher's temperature: linear over the warm-up, including its last epoch or update, then constant."""
    per_epoch = config.temperature_steps == "epoch"
    position = step.epoch if per_epoch else step.index
    length = round(config.temperature_epochs * (1 if per_epoch else step.per_epoch))
    if position >= length:
        return config.teacher_temperature
    rise = config.teacher_temperature - config.first_teacher_temperature
    return config.first_teacher_temperature + rise * position / max(length - 1, 1)
