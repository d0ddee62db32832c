"""Self-distillation: head, targets and losses that DINO, iBOT and DINOv2 share."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import sum_
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.networks import initialise_linear, mlp
from sslbench.train.method import Setup


@dataclasses.dataclass(frozen=True)
class TeacherSettings:
    """Settings of the temperatures, and of the teacher, a moving average of the student."""

    hidden: tuple[int, ...] = setting((2048, 2048), "widths of the hidden layers of a head", within="[1, inf)")
    bottleneck: int = setting(256, "dimension of the unit vectors before the last layer", within="[1, inf)")
    frozen_epochs: float = setting(
        1.0, "the last layer of a head is frozen during the first epochs", unit="epochs", within="[0, inf)"
    )
    student_temperature: float = setting(0.1, "temperature of the student's softmax", within="(0, inf)")
    teacher_temperature: float = setting(
        0.07, "temperature of the teacher's softmax after the warm-up", within="(0, inf)"
    )
    first_teacher_temperature: float = setting(
        0.04, "temperature of the teacher's softmax at the start", within="(0, inf)"
    )
    temperature_epochs: float = setting(
        30.0, "length of the warm-up of the teacher's temperature", unit="epochs", within="[0, inf)"
    )
    momentum: float = setting(0.996, "decay of the teacher at the start of training", within="[0, 1]")
    final_momentum: float = setting(1.0, "decay at the end; half a cosine in between", within="[0, 1]")


@dataclasses.dataclass(frozen=True)
class MaskedTeacherSettings(TeacherSettings):
    """Settings of a teacher whose student sees large views with masked patches, and of the losses of both."""

    teacher_views: int = setting(
        2, "number of views of the teacher; they come first and are masked for the student", within="[1, inf)"
    )
    mask_ratio: tuple[float, float] = setting(
        (0.1, 0.5), "range of the share of masked patches in a masked view", within="[0, 1)"
    )
    class_weight: float = setting(1.0, "weight of the class tokens' loss", within="[0, inf)")
    patch_weight: float = setting(1.0, "weight of the masked patches' loss", within="[0, inf)")


@in_float32
def teacher_probabilities(logits: Tensor, center: Tensor, *, temperature: float) -> Tensor:
    """Return DINO's equation 1 with the centre of section 3.1: softmax of (logits - centre) / temperature."""
    return functional.softmax((logits - center) / temperature, dim=-1)


@in_float32
def dino_loss(student: Tensor, teacher: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Return DINO's equation 3: mean cross entropy over pairs of a student view and another teacher view, and images.

    `student`: (V, B, K), logits of all views; the first T are those of the teacher; `teacher`: (T, B, K),
    probabilities, without gradient.
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


@in_float32
def patch_loss(student: Tensor, teacher: Tensor, mask: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Return iBOT's loss of masked patches (eq. 2): mean over views of the mean cross entropy over a view's patches.

    A view without masked patches counts as 0.

    `student`: (M, K), logits of the M masked patches, in the order of `mask`; `teacher`: (M, K), probabilities of the
    same patches, without gradient; `mask`: (V, N) booleans, true for masked patches; on the CPU, so that no GPU has to
    count them.

    >>> mask = torch.tensor([[True, True, False], [False, False, False]])
    >>> round(float(patch_loss(torch.zeros(2, 4), torch.full((2, 4), 0.25), mask)), 4)  # log(4) / 2
    0.6931
    """
    scores = student / temperature
    cross_entropy = scores.logsumexp(-1) - (teacher * scores).sum(-1)
    patches_of_view = mask.sum(1, keepdim=True).expand_as(mask)[mask].to(student.device, non_blocking=True)
    return (cross_entropy / patches_of_view).sum() / len(mask)


@torch.no_grad()
def move_center(center: Tensor, total: Tensor, *, rows: int, momentum: float) -> None:
    """Update the centre in place by the mean of the teacher's logits over all processes (DINO, equation 4).

    `center`: (K,) or (1, K).
    """
    summed = sum_(torch.cat([total.to(center.dtype).flatten(), center.new_full((1,), rows)]))
    mean = (summed[:-1] / summed[-1]).view_as(center)
    center.mul_(momentum).add_(mean, alpha=1 - momentum)


class PendingLogits:
    """Sum and number of the teacher's logits since the last update, by which the centre moves after it."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._rows = 0

    def add(self, total: Tensor, rows: int) -> None:
        """Add the sum (K,) of a number of rows of logits."""
        self._total = total if self._total is None else self._total + total
        self._rows += rows

    def move(self, center: Tensor, momentum: float) -> None:
        """Update the centre in place; without a forward pass since the last update it stays."""
        if self._total is not None:
            move_center(center, self._total, rows=self._rows, momentum=momentum)
            self._total, self._rows = None, 0


def warmed_up(first: float, last: float, *, position: int, length: int) -> float:
    """Return a value that rises linearly from `first` at position 0 to `last` at `length` - 1, and stays.

    >>> [warmed_up(0.04, 0.07, position=p, length=4) for p in (0, 3, 9)]
    [0.04, 0.07, 0.07]
    """
    return last if position >= length else first + (last - first) * position / max(length - 1, 1)


class DinoHead(nn.Module):
    """Head of DINO's section 3.1 and appendix C: MLP with GELU, normalised bottleneck, prototypes.

    Args:
        dim: dimension of the features.
        hidden: widths of the hidden layers.
        bottleneck: dimension of the unit vectors before the last layer.
        prototypes: output dimension K.
        norm: BatchNorm in the MLP.
        fixed_length: fix the length of the last layer's rows at 1.
    """

    def __init__(
        self, dim: int, *, hidden: Sequence[int], bottleneck: int, prototypes: int, norm: bool, fixed_length: bool
    ) -> None:
        super().__init__()
        self.mlp = mlp([dim, *hidden, bottleneck], norm=norm, activation=nn.GELU)
        initialise_linear(self.mlp)
        self.last_layer = UnitLinear(bottleneck, prototypes, fixed_length=fixed_length)

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


def need_teacher_views(setup: Setup, count: int, *, method: str) -> None:
    """Require views of a teacher, which come first and have one size, and another view for each."""
    if not 1 <= count <= len(setup.sizes) or len(setup.sizes) < 2 or len(set(setup.sizes[:count])) > 1:
        raise UsageError(
            f"{method} compares {count} teacher views of one size with others, the augmentation makes views of "
            f"{', '.join(str(size) for size in setup.sizes)} pixels",
            f"Set augment={method} (published), or method.teacher_views.",
        )
