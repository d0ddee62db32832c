"""DenseCL: MoCo v2 on whole images and on the places of their feature maps (Wang et al., CVPR 2021, arXiv 2011.09157).

The positive of a place is the projection of the place of the other view whose features are most similar.

Departures: keys enter the queues after the optimizer's step. With a single process images are not shuffled before
BatchNorm of the key network; the authors' code requires several processes.
"""

import dataclasses
import logging

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.resnet import ResNet
from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32, info_nce, unit_length
from sslbench.methods._parts.memory import need_whole_updates, random_rows, replace_oldest_
from sslbench.methods._parts.momentum import copy_of, update_copies
from sslbench.methods._parts.networks import feature_map, mlp, over_shuffled
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of DenseCL."""

    queue: int = setting(
        65536, "number of negative keys in each queue, a multiple of the images per update", within="[1, inf)"
    )
    momentum: float = setting(0.999, "decay of the key network, a moving average of the query network", within="[0, 1]")
    temperature: float = setting(0.2, "temperature of the similarities", within="(0, inf)")
    projector: tuple[int, ...] = setting(
        (2048, 128), "widths of the layers of both heads, the last is the output", within="[1, inf)"
    )
    dense_weight: float = setting(
        0.5, "weight lambda of the places' loss; the images' loss has 1 - lambda", within="(0, 1)"
    )
    shuffle_bn: bool = setting(True, "shuffle the images over all processes for the key network's BatchNorm")


@torch.no_grad()
def best_matches(queries: Tensor, keys: Tensor) -> Tensor:
    """Return for each place of the queries' maps the most similar place of the keys' maps (eq. 3), (B, S).

    `queries`: (B, S, D), features of the backbone at S places; they are compared by their cosine; `keys`: (B, S', D).

    >>> best_matches(torch.eye(2)[None], torch.eye(2).flip(0)[None]).tolist()
    [[1, 0]]
    """
    similarities = functional.normalize(queries, dim=2) @ functional.normalize(keys, dim=2).mT
    return similarities.argmax(dim=2)


@in_float32
def dense_loss(queries: Tensor, keys: Tensor, matches: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """Return equation 2: InfoNCE of every place's query with its match, among the keys of other images.

    `queries`: (B, S, d), not necessarily normalised; `keys`: (B, S', d), not necessarily normalised, without gradient;
    `matches`: (B, S), the place of the key of each query; `queue`: (K, d), rows of length 1.
    """
    positives = keys.gather(1, matches[..., None].expand(-1, -1, keys.shape[2]))
    query, key = (functional.normalize(rows.flatten(0, 1), dim=1) for rows in (queries, positives))
    return info_nce(query, key, queue, temperature)


class Method(method.Method[Config]):
    """Contrast of images and of their places with keys of a momentum network, of this batch and of earlier ones."""

    config_type = Config
    needs = Needs("densecl", views=2)
    compiled_methods = ("_places",)
    saved_head = "head"
    copies = "key_"
    backbone: ResNet
    queue: Tensor
    dense_queue: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a ResNet, two views, and queues that whole updates fill."""
        if not isinstance(backbone, ResNet):
            raise UsageError(
                f"densecl needs a ResNet, which {setup.backbone} is not", "For instance --backbone resnet50."
            )
        need_whole_updates(config.queue, setup.images_per_update, method="densecl")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.world = setup.world
        widths = [setup.feature_dim, *config.projector]
        self.head, self.dense_head = mlp(widths), mlp(widths)
        self.key_backbone = copy_of(self.backbone)
        self.key_head, self.key_dense_head = copy_of(self.head), copy_of(self.dense_head)
        for name in ("queue", "dense_queue"):
            self.register_buffer(name, random_rows(config.queue, config.projector[-1]))
        self._new_keys: list[Tensor] = []
        self._new_dense_keys: list[Tensor] = []
        if config.shuffle_bn and setup.world == 1:
            log.info("densecl: a single process, so images are not shuffled between processes before BatchNorm")

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the weighted sum of both losses, with queries from the first view and keys from the second."""
        config = self.config
        places = self._places(self.backbone, batch.views[0])
        query = unit_length(self.head(places.mean(1)))
        shuffled = config.shuffle_bn and self.world > 1
        with torch.no_grad():
            keys = over_shuffled(self._keys, batch.views[1]) if shuffled else self._keys(batch.views[1])
        key, dense_key, dense_keys, key_places = keys
        self._new_keys.append(key)
        self._new_dense_keys.append(dense_key)
        of_images = info_nce(query, key, self.queue, config.temperature)
        # Places correspond by the backbone's features, as published, not by those of the head.
        matches = in_float32(best_matches)(places, key_places)
        of_places = dense_loss(self.dense_head(places), dense_keys, matches, self.dense_queue, config.temperature)
        value = (1 - config.dense_weight) * of_images + config.dense_weight * of_places
        parts = {"image_loss": of_images.detach(), "dense_loss": of_places.detach()}
        return Loss(value, query.detach(), parts)

    def _keys(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return keys (B, d), mean dense keys (B, d), dense keys (B, S, d) and features of the places (B, S, D)."""
        places = self._places(self.key_backbone, images)
        dense = self.key_dense_head(places)
        return unit_length(self.key_head(places.mean(1))), unit_length(dense.mean(1)), dense, places

    def _places(self, resnet: ResNet, images: Tensor) -> Tensor:
        """Return the last feature map as rows: (B, C, H, W) -> (B, S, D)."""
        return feature_map(resnet, images).flatten(2).mT

    def after_update(self, step: Step) -> None:
        """Update the key network, and replace the oldest keys of both queues by those of this update."""
        update_copies(self, self.config.momentum)
        replace_oldest_(self.queue, self._new_keys, step)
        replace_oldest_(self.dense_queue, self._new_dense_keys, step)
