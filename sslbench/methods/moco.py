"""MoCo v1 (He et al. 2019, arXiv 1911.05722) and v2 (Chen et al. 2020, arXiv 2003.04297): head and recipe differ.

Departures: keys enter the queue after the optimizer's step (all passes of an accumulated update together); the loss
uses the queue before the update, as in the paper's Algorithm 1.
"""

import dataclasses
import logging

import torch
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.methods._parts.losses import info_nce, unit_length
from sslbench.methods._parts.memory import need_whole_updates, random_rows, replace_oldest_
from sslbench.methods._parts.momentum import copy_of, update_copies
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
    saved_head = "head"
    copies = "key_"
    queue: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require two views, and a queue that whole updates fill."""
        need_whole_updates(config.queue, setup.images_per_update, method="moco")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.world = setup.world
        self.head = mlp([setup.feature_dim, *config.projector])
        self.key_backbone = copy_of(backbone)
        self.key_head = copy_of(self.head)
        self.register_buffer("queue", random_rows(config.queue, config.projector[-1]))
        self._new_keys: list[Tensor] = []
        if config.shuffle_bn and setup.world == 1:
            log.info("moco: a single process, so images are not shuffled between processes before BatchNorm")

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return InfoNCE, with queries from the first view and keys from the second."""
        query = unit_length(self.head(self.backbone(batch.views[0])))
        shuffled = self.config.shuffle_bn and self.world > 1
        with torch.no_grad():
            (key,) = over_shuffled(self._keys, batch.views[1]) if shuffled else self._keys(batch.views[1])
        self._new_keys.append(key)
        return Loss(info_nce(query, key, self.queue, self.config.temperature), query.detach())

    def _keys(self, images: Tensor) -> tuple[Tensor]:
        """Return the normalised keys (B, d) of images."""
        return (unit_length(self.key_head(self.key_backbone(images))),)

    def after_update(self, step: Step) -> None:
        """Update the key network (eq. 2), and replace the oldest keys of the queue by those of this update."""
        update_copies(self, self.config.momentum)
        replace_oldest_(self.queue, self._new_keys, step)
