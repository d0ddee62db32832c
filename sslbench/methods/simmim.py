"""SimMIM: regression of the pixels of masked patches by one linear layer (Xie et al., CVPR 2022, arXiv 2111.09886).

The network sees all patches, the masked ones as a mask token; the targets are the pixels of the normalised view.

Departures: plain vision transformers of timm with absolute positions (the authors' ViT-B has shared relative ones, as
BEiT), no Swin transformers.
"""

import dataclasses
import math

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.masks import image_generators, masked_rows, patchify, take_rows, unit_masks, view_by_view
from sslbench.methods._parts.vision_transformers import embed, grid_of, need_vision_transformer, run_blocks
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of SimMIM."""

    masked: float = setting(0.6, "fraction of masked units, rounded up", within="(0, 1)")
    unit: int = setting(
        2,
        "side of a masked unit; 2 patches of 16 pixels are the published 32 pixels",
        unit="patches",
        within="[1, inf)",
    )


@in_float32
def pixel_loss(predicted: Tensor, patches: Tensor) -> Tensor:
    """Return the mean absolute error over masked patches and pixels (section 3.4).

    `predicted`: (M, pixels), of the masked patches; `patches`: (M, pixels).

    >>> float(pixel_loss(torch.zeros(1, 4), torch.tensor([[1.0, -1.0, 3.0, 0.0]])))
    1.25
    """
    return (predicted - patches).abs().mean()


class Method(method.Method[Config]):
    """SimMIM on views of one size, each a separate sample (the published augmentation makes one)."""

    config_type = Config
    compiled_methods = ("_tokens",)
    backbone: VisionTransformer

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a plain vision transformer for views of this size, which units of patches cover."""
        vit = need_vision_transformer(backbone, setup, method="simmim", own_size=True)
        rows, columns = grid_of(vit, setup.sizes[0])
        if config.unit < 1 or rows % config.unit or columns % config.unit:
            # Units that divide both sides and leave at least two, of which one can be hidden.
            units = [unit for unit in range(1, rows // 2 + 1) if rows % unit == 0 == columns % unit]
            nearest = min(units, key=lambda unit: abs(unit - config.unit), default=1)
            raise UsageError(
                f"simmim: units of {config.unit} x {config.unit} patches do not cover {rows} x {columns} patches",
                f"Set method.unit={nearest}.",
            )
        count = (rows // config.unit) * (columns // config.unit)
        if not 0 < math.ceil(config.masked * count) < count:
            raise UsageError(
                f"simmim: method.masked={config.masked} masks none or all of the {count} units",
                "Choose another method.masked, or a smaller method.unit.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        vit = self.backbone
        self.grid = grid_of(vit, setup.sizes[0])
        self.patch_size: tuple[int, int] = vit.patch_embed.patch_size
        self.masked = math.ceil(config.masked * (self.grid[0] // config.unit) * (self.grid[1] // config.unit))
        self.mask_token = nn.Parameter(torch.empty(1, vit.embed_dim))
        nn.init.trunc_normal_(self.mask_token, std=0.02, a=-0.02, b=0.02)
        self.decoder = nn.Linear(vit.embed_dim, setup.channels * self.patch_size[0] * self.patch_size[1])

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of the masked patches."""
        images = batch.images
        mask = view_by_view(
            [
                unit_masks(len(batch.views), self.grid, self.config.unit, self.masked, generator)
                for generator in image_generators(self.seed, batch, step)
            ]
        )
        rows = masked_rows(mask, images.device)
        tokens = self._tokens(images, mask.to(images.device, non_blocking=True))[:, self.backbone.num_prefix_tokens :]
        value = pixel_loss(self.decoder(take_rows(tokens, rows)), take_rows(patchify(images, self.patch_size), rows))
        return Loss(value, tokens.mean(1).detach())

    def _tokens(self, images: Tensor, mask: Tensor) -> Tensor:
        """Return the normalised tokens (B, prefix + patches, D)."""
        return run_blocks(self.backbone, embed(self.backbone, images, mask, self.mask_token))
