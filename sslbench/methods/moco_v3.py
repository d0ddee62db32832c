"""MoCo v3 (Chen, Xie, He 2021, arXiv 2104.02057): for ResNets and ViTs, without a queue.

A plain vision transformer of timm is initialised as in the published code: Xavier's uniform distribution, fixed
positions of sines and cosines. Loaded weights (--init) are kept, including position embeddings.
"""

import dataclasses
import logging
from typing import Literal, TypeGuard

import torch
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import gather, rank
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update_copies
from sslbench.methods._parts.networks import mlp
from sslbench.methods._parts.vision_transformers import fix_positions, initialise
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of MoCo v3."""

    temperature: float = setting(1.0, "temperature of the similarities; 0.2 for ViTs", within="(0, inf)")
    momentum: float = setting(
        0.99, "decay of the key network at the start; it rises to 1 along half a cosine", within="[0, 1]"
    )
    projector: tuple[int, ...] = setting(
        (4096, 256), "widths of the projector's layers; 4096, 4096, 256 for ViTs", within="[1, inf)"
    )
    predictor: tuple[int, ...] = setting((4096,), "widths of the predictor's hidden layers", within="[1, inf)")
    predictor_last_norm: bool = setting(False, "BatchNorm after the predictor's last layer; true for ViTs")
    freeze_patch_projection: bool = setting(True, "freeze a ViT's random patch projection, for stability (section 4.2)")
    positions: Literal["sincos", "learnt"] = setting(
        "sincos", "positions of a ViT: fixed sines and cosines (published; loaded ones are kept and fixed), or trained"
    )


@in_float32
def contrastive(query: Tensor, key: Tensor, temperature: float) -> Tensor:
    """Return `ctr(q, k)` of Algorithm 1: cross entropy of the positive key among the keys of all processes, times 2 T.

    `query`: (B, d), not necessarily normalised; `key`: (B, d), not necessarily normalised; gets no gradient.

    >>> q = torch.eye(2)
    >>> round(float(contrastive(q, q, 1.0)), 4)  # 2 * log(1 + exp(-1))
    0.6265
    """
    query, key = functional.normalize(query, dim=1), functional.normalize(key.detach(), dim=1)
    logits = query @ gather(key).T / temperature
    own = torch.arange(len(query), device=query.device) + len(query) * rank()
    return functional.cross_entropy(logits, own) * (2 * temperature)


class Method(method.Method[Config]):
    """Contrast of each view's prediction with the other view's key by a momentum network."""

    config_type = Config
    needs = Needs("moco_v3", views=2, negatives=True)
    saved_head, saved_predictor = "projector", "predictor"
    copies = "key_"

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require two views of at least two images, and a width that is a multiple of 4 for positions of sines."""
        if _is_plain_vit(backbone) and config.positions == "sincos" and backbone.embed_dim % 4:
            raise UsageError(
                f"moco_v3: the backbone's width is {backbone.embed_dim}, no multiple of 4, which positions of sines "
                "and cosines need",
                "Train learnt ones: method.positions=learnt.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        if _is_plain_vit(backbone):
            if not setup.loaded:
                initialise(backbone, class_token_std=1e-6, separate_qkv=True)
                nn.init.zeros_(backbone.patch_embed.proj.bias)
            if config.positions == "sincos":
                fix_positions(backbone, loaded=setup.loaded)
        if config.freeze_patch_projection:
            # The backbone may be any network, of timm or a user; only vision transformers have this module.
            projection = getattr(getattr(backbone, "patch_embed", None), "proj", None)
            if isinstance(projection, nn.Module):
                projection.requires_grad_(False)
                log.info("moco_v3: the patch projection keeps its initial weights (freeze_patch_projection)")
        self.projector = mlp(
            [setup.feature_dim, *config.projector], norm=True, last_norm="plain", bias=False, last_bias=False
        )
        self.predictor = mlp(
            [config.projector[-1], *config.predictor, config.projector[-1]],
            norm=True,
            last_norm="plain" if config.predictor_last_norm else "none",
            bias=False,
            last_bias=False,
        )
        self.key_backbone = copy_of(backbone)
        self.key_projector = copy_of(self.projector)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the sum of the losses of both directions (Algorithm 1)."""
        queries = [self.predictor(self.projector(self.backbone(view))) for view in batch.views]
        with torch.no_grad():
            keys = [self.key_projector(self.key_backbone(view)) for view in batch.views]
        temperature = self.config.temperature
        value = contrastive(queries[0], keys[1], temperature) + contrastive(queries[1], keys[0], temperature)
        return Loss(value, functional.normalize(queries[0].detach().float(), dim=1))

    def after_update(self, step: Step) -> None:
        """Update the key network."""
        update_copies(self, cosine_momentum(self.config.momentum, 1.0, step.where))


def _is_plain_vit(backbone: nn.Module) -> TypeGuard[VisionTransformer]:
    """Return whether a backbone is a vision transformer of timm with a linear patch projection."""
    return isinstance(backbone, VisionTransformer) and isinstance(backbone.patch_embed, PatchEmbed)
