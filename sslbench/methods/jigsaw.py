"""Jigsaw (Noroozi and Favaro, ECCV 2016, arXiv 1603.09246): classification of the order of an image's patches.

As in VISSL, after Goyal et al. 2019 (arXiv 1905.01235): one backbone and hidden layer see every patch, and a linear
classifier all of them. The permutations are those of a file, or chosen here, greedily as published, from a first one
that the seed gives; checkpoints store them.
"""

import dataclasses
import math
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import cross_entropy, top1
from sslbench.methods._parts.masks import image_generators
from sslbench.methods._parts.patches import (
    PIECES,
    concatenated,
    distant_permutations,
    need_patches,
    read_permutations,
    reorder,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of Jigsaw."""

    permutations: int = setting(
        2000, "orders to tell apart, far from each other; 100 and 10,000 are published too", within="[2, 362880]"
    )
    distance: Literal["mean", "min"] = setting(
        "mean", "Hamming distance to the chosen orders that the next one maximises"
    )
    permutation_file: str = setting(
        "",
        "orders of a .npy file in place of chosen ones, such as the published ones: (permutations, 9), numbers of "
        "patches from 0 or 1",
        by_content=True,
    )
    hidden: int = setting(1000, "width of the layer of each patch", within="[1, inf)")


class Method(method.Method[Config]):
    """Siamese networks over the patches of an image, and a classifier of their order."""

    config_type = Config
    permutations: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require nine patches, and no choice of orders that a file has."""
        need_patches(setup, 0, method="jigsaw")
        if config.permutation_file and config.distance != "mean":
            raise UsageError(
                f"jigsaw: distance={config.distance} has no effect on the orders of permutation_file", "Leave it out."
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.patch_head = nn.Sequential(
            nn.Linear(setup.feature_dim, config.hidden), nn.BatchNorm1d(config.hidden), nn.ReLU()
        )
        self.classifier = nn.Linear(PIECES * config.hidden, config.permutations)
        if config.permutation_file:
            orders = read_permutations(Path(config.permutation_file), config.permutations)
        else:
            first = int(torch.randint(math.factorial(PIECES), ()))  # follows from the run's seed
            orders = distant_permutations(config.permutations, PIECES, first=first, choose=config.distance)
        self.register_buffer("permutations", torch.from_numpy(orders))

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the cross entropy of the order, drawn anew for every image."""
        generators = image_generators(self.seed, batch, step)
        drawn = torch.stack([torch.randint(len(self.permutations), (), generator=each) for each in generators])
        labels = drawn.to(batch.views[0].device, non_blocking=True)
        patches = reorder(batch.views, self.permutations[labels])
        features = self.backbone(patches)
        logits = self.classifier(concatenated(self.patch_head, features))
        embeddings = features.detach().float()[::PIECES]
        return Loss(cross_entropy(logits, labels), embeddings, {"accuracy": top1(logits, labels)})
