"""SMoG: groups of images that move with every update are contrasted (Pang et al., ECCV 2022, arXiv 2207.06167).

A view predicts the group of the other view by a momentum network. Groups follow the embeddings of each batch and pass
their gradient on. Every `reset_every` updates k-means of the newest embeddings replaces the groups, and the momentum
network becomes the trained one (table 7b). Views take turns, as in lightly's code. Departure: embeddings and groups
have length 1; lightly adds embeddings of any length to groups of length 1.
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import broadcast_, gather_with_gradient
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import cross_entropy, in_float32, unit_length
from sslbench.methods._parts.memory import need_whole_updates, random_rows, replace_oldest_, spherical_kmeans, sums_of
from sslbench.methods._parts.momentum import copy_of, update_copies
from sslbench.methods._parts.networks import mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of SMoG."""

    groups: int = setting(3000, "number of groups", within="[2, inf)")
    beta: float = setting(0.99, "decay of the groups", within="[0, 1]")
    temperature: float = setting(0.1, "temperature of the similarities with the groups", within="(0, inf)")
    reset_every: int = setting(300, "updates after which k-means replaces the groups", within="[1, inf)")
    queue: int = setting(
        65536, "newest embeddings that k-means clusters, a multiple of the images per update", within="[1, inf)"
    )
    projector: tuple[int, ...] = setting(
        (2048, 128), "widths of the projection head's layers, BN after each", within="[1, inf)"
    )
    predictor: tuple[int, ...] = setting((2048,), "widths of the prediction head's hidden layers", within="[1, inf)")
    momentum: float = setting(0.99, "decay of the momentum network", within="[0, 1]")


@torch.no_grad()
@in_float32
def group_of(embeddings: Tensor, groups: Tensor) -> Tensor:
    """Return the group of the largest product for each embedding (B, d), int64 (B,); `groups`: (K, d)."""
    return (embeddings @ groups.T).argmax(dim=1)


@in_float32
def moved_groups(groups: Tensor, embeddings: Tensor, beta: float) -> Tensor:
    """Return the groups moved towards the mean of their embeddings, of all processes, with the gradient of the latter.

    `groups`: (K, d), rows of length 1; `embeddings`: (B, d), rows of length 1; returns (K, d), rows of length 1.

    >>> moved_groups(torch.eye(2), torch.tensor([[0.0, 1.0]]), 0.5).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    rows = gather_with_gradient(embeddings)
    own = group_of(rows, groups)
    counts = sums_of(torch.ones_like(rows[:, :1]), own, len(groups))
    means = sums_of(rows, own, len(groups)) / counts.clamp(min=1)
    return torch.where(counts > 0, functional.normalize(beta * groups + (1 - beta) * means, dim=1), groups)


@in_float32
def group_loss(predictions: Tensor, groups: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the cross entropy of each image's group (eq. 4).

    `predictions`: (B, d), not necessarily normalised; `groups`: (K, d), rows of length 1; `labels`: int64 (B,).

    >>> round(float(group_loss(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), 1.0)), 4)  # log(1 + exp(-1))
    0.3133
    """
    return cross_entropy(functional.normalize(predictions, dim=1) @ groups.T / temperature, labels)


class Method(method.Method[Config]):
    """Prediction of the other view's group."""

    config_type = Config
    needs = Needs("smog", views=2, several_images=True)
    saved_head, saved_predictor = "projector", "predictor"
    copies = "target_"
    groups: Tensor
    queue: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a queue that whole updates fill before the first reset, and that has more rows than groups."""
        need_whole_updates(config.queue, setup.images_per_update, method="smog")
        filled = config.reset_every * setup.images_per_update
        if not config.groups <= config.queue <= filled:
            raise UsageError(
                f"smog: queue={config.queue} must be at least the {config.groups} groups and at most the {filled} "
                f"images of {config.reset_every} updates, after which it is clustered",
                "Set method.groups, method.queue or method.reset_every.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        dim = config.projector[-1]
        self.projector = mlp(
            [setup.feature_dim, *config.projector], norm=True, bias=False, last_bias=False, last_norm="plain"
        )
        self.predictor = mlp([dim, *config.predictor, dim], norm=True, bias=False)
        self.target_backbone = copy_of(backbone)
        self.target_projector = copy_of(self.projector)
        self.register_buffer("groups", random_rows(config.groups, dim))
        self.register_buffer("queue", random_rows(config.queue, dim))
        self._new: list[Tensor] = []

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of one view with the group of the other; they take turns."""
        here, there = batch.views if step.index % 2 == 0 else batch.views[::-1]
        projected = self.projector(self.backbone(here))
        embeddings = unit_length(projected)
        with torch.no_grad():
            other = unit_length(self.target_projector(self.target_backbone(there)))
            labels = group_of(other, self.groups)
        groups = moved_groups(self.groups, embeddings, self.config.beta)
        value = group_loss(self.predictor(projected), groups, labels, self.config.temperature)
        self.groups = groups.detach()
        self._new.append(embeddings.detach())
        return Loss(value, embeddings.detach())

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Update the momentum network and the queue; at a reset also cluster the latter."""
        replace_oldest_(self.queue, self._new, step)
        if (step.index + 1) % self.config.reset_every:
            update_copies(self, self.config.momentum)
            return
        update_copies(self, 0.0)
        first = broadcast_(torch.randperm(len(self.queue))[: self.config.groups].to(self.queue.device))
        self.groups = spherical_kmeans(self.queue, self.queue[first], 10)[0]
