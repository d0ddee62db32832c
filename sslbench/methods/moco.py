"""MoCo v1 (He et al. 2019, arXiv 1911.05722) and v2 (Chen et al. 2020, arXiv 2003.04297): head and recipe differ.

Departures: keys enter the queue after the optimizer's step (all passes of an accumulated update together); the loss
uses the queue before the update, as in the paper's Algorithm 1.
"""

import dataclasses
import logging

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import gather
from sslbench.methods._parts import momentum as momentum_copies
from sslbench.methods._parts.losses import info_nce, unit_length
from sslbench.methods._parts.memory import enqueue_, need_whole_updates
from sslbench.methods._parts.networks import mlp, over_shuffled
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of MoCo."""

    queue: int = setting(
        65536, "number of negative keys in the queue, a multiple of the images per update", within="[1, inf)"
    )
    momentum: float = setting(0.999, "decay of the key network, a moving average of the query network", within="[0, 1]")
    temperature: float = setting(0.2, "temperature of the similarities; 0.07 in v1", within="(0, inf)")
    projector: tuple[int, ...] = setting(
        (2048, 128), "widths of the head's layers, the last is the output; 128 in v1", within="[1, inf)"
    )
    shuffle_bn: bool = setting(True, "shuffle the images over all processes for the key network's BatchNorm")


class Method(method.Method[Config]):
    """Contrast of queries with keys of a momentum network, of this batch and of earlier ones in a queue."""

    config_type = Config
    needs = Needs("moco_v2", views=2)
    queue: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require two views, and a queue that whole updates fill."""
        need_whole_updates(config.queue, setup.images_per_update, method="moco")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.world = setup.world
        self.head = mlp([setup.feature_dim, *config.projector])
        self.key_backbone = momentum_copies.copy_of(backbone)
        self.key_head = momentum_copies.copy_of(self.head)
        self.register_buffer("queue", functional.normalize(torch.randn(config.queue, config.projector[-1]), dim=1))
        self._new_keys: list[Tensor] = []
        if config.shuffle_bn and setup.world == 1:
            log.info("moco: a single process, so images are not shuffled between processes before BatchNorm")

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return InfoNCE, with queries from the first view and keys from the second."""
        query = unit_length(self.head(self.backbone(batch.views[0])))
        key = self._keys(batch.views[1])
        self._new_keys.append(key)
        return Loss(info_nce(query, key, self.queue, self.config.temperature), query.detach())

    @torch.no_grad()
    def _keys(self, images: Tensor) -> Tensor:
        """Return the normalised keys (B, d) of this process's images."""
        if self.world == 1 or not self.config.shuffle_bn:
            return self._key_network(images)
        (keys,) = over_shuffled(lambda views: (self._key_network(views),), images)
        return keys

    def _key_network(self, images: Tensor) -> Tensor:
        return unit_length(self.key_head(self.key_backbone(images)))

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Update the key network (eq. 2), and replace the oldest keys of the queue by those of this update."""
        momentum_copies.update(self.key_backbone, self.backbone, self.config.momentum)
        momentum_copies.update(self.key_head, self.head, self.config.momentum)
        keys = gather(torch.cat(self._new_keys))
        self._new_keys.clear()
        # The pointer follows from the step, so it is neither read back from the GPU nor part of a checkpoint.
        enqueue_(self.queue, keys, step.index * len(keys) % len(self.queue))

    def exports(self) -> dict[str, nn.Module]:
        """Return the backbones of the query network and of the key network."""
        return {"student": self.backbone, "teacher": self.key_backbone}

    def heads(self, exported: str) -> dict[str, nn.Module]:
        """Return the projection head of the query or the key network."""
        return {"head": self.head if exported == "student" else self.key_head}
