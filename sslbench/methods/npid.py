"""NPID (Wu et al., CVPR 2018, arXiv 1805.01978) and NPID++ (in Misra and van der Maaten 2019, arXiv 1912.01991).

Instance discrimination: an image's embedding is contrasted with the memory of itself and of other images, eq. 4 to 7.
NPID++ is NPID with more negatives and longer training. Departures: the memory is updated after the optimizer's step
(the published code updates it within the forward pass, with the same embeddings); the proximal regularisation of
section 3.3 is left out, as in VISSL.
"""

import dataclasses

from torch import nn

from sslbench.config import setting
from sslbench.methods._parts.losses import unit_length
from sslbench.methods._parts.masks import image_generators
from sslbench.methods._parts.memory import ContrastSettings, MemoryBank
from sslbench.methods._parts.networks import mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config(ContrastSettings):
    """Settings of NPID."""

    negatives: int = setting(
        4096, "random images that each image is contrasted with; 32,000 in NPID++", within="[1, inf)"
    )
    projector: tuple[int, ...] = setting(
        (128,), "widths of the projection head's layers, the last is the memory's", within="[1, inf)"
    )


class Method(method.Method[Config]):
    """Contrast of every image with a memory of all images."""

    config_type = Config
    needs = Needs("npid", views=1)
    saved_head = "head"

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = mlp([setup.feature_dim, *config.projector])
        self.memory = MemoryBank(setup.samples, config.projector[-1])

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the contrast of the batch with the memory."""
        embeddings = unit_length(self.head(self.backbone(batch.views[0])))
        images = batch.indices.to(embeddings.device, non_blocking=True)
        generators = image_generators(self.seed, batch, step, embeddings.device)
        self.memory.note(images, embeddings)
        return Loss(self.memory.contrast(embeddings, images, generators, self.config), embeddings.detach().float())

    def after_update(self, step: Step) -> None:
        """Update the memory of this update's images."""
        self.memory.store_(self.config.momentum)
