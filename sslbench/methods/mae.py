"""MAE: reconstruction of masked patches from the visible quarter of an image (He et al., arXiv 2111.06377).

The targets are the pixels of the normalised view. The encoder is initialised as in the published code, with Xavier's
uniform distribution; loaded weights (--init) are kept, including position embeddings.
"""

import dataclasses
import logging
from typing import Literal

import torch
from timm.layers.norm import LayerNorm
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.masks import image_generators, normalise_patches, patchify, take, view_by_view
from sslbench.methods._parts.vision_transformers import (
    embed,
    fix_positions,
    initialise,
    keep_patches,
    need_sincos_widths,
    need_vision_transformer,
    run_blocks,
    sincos,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of MAE."""

    masked: float = setting(0.75, "fraction of masked patches", within="(0, 1)")
    decoder_dim: int = setting(512, "width of the decoder", within="[1, inf)")
    decoder_depth: int = setting(8, "transformer blocks of the decoder", within="[1, inf)")
    decoder_heads: int = setting(16, "attention heads of the decoder", within="[1, inf)")
    normalize_targets: bool = setting(True, "normalise the pixels of every patch to mean 0 and variance 1")
    positions: Literal["sincos", "learnt"] = setting(
        "sincos",
        "position embeddings of the encoder: fixed sines and cosines (published; loaded ones are kept and fixed), or "
        "trained ones",
    )


def random_masking(
    count: int, patches: int, visible: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw a random permutation of the patches for each of `count` images.

    Returns order: (count, patches), the permutations; the first `visible` patches of each are visible. restore: (count,
    patches), the inverse permutations: `order.gather(1, restore)` is 0, 1, 2, .
    """
    if not 0 < visible < patches:
        raise ValueError(f"{visible} of {patches} patches cannot be visible")
    order = torch.rand(count, patches, generator=generator).argsort(dim=1)
    return order, order.argsort(dim=1)


@in_float32
def reconstruction_loss(predicted: Tensor, patches: Tensor, *, normalize: bool = True) -> Tensor:
    """Return the mean squared error over masked patches and pixels (section 3).

    `predicted`: (B, masked, pixels); `patches`: (B, masked, pixels), the masked patches of the view; `normalize`:
    normalise each patch to mean 0 and variance 1, as in table 1d.
    """
    return (predicted - (normalise_patches(patches) if normalize else patches)).square().mean()


class PixelDecoder(nn.Module):
    """Decoder of visible tokens to pixels of masked patches (appendix A.1)."""

    positions: Tensor

    def __init__(self, dim: int, grid: tuple[int, int], pixels: int, prefix: int, config: Config) -> None:
        super().__init__()
        width = config.decoder_dim
        self.prefix = prefix
        self.embed = nn.Linear(dim, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        depth, heads = config.decoder_depth, config.decoder_heads
        self.blocks = nn.Sequential(*(Block(width, heads, qkv_bias=True, norm_layer=LayerNorm) for _ in range(depth)))
        self.norm = LayerNorm(width)
        self.pixels = nn.Linear(width, pixels)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.mask_token, std=0.02)
        self.register_buffer("positions", sincos(grid, width), persistent=False)

    def forward(self, tokens: Tensor, restore: Tensor, masked: Tensor) -> Tensor:
        """Return the pixels of the masked patches.

        `tokens`: (B, prefix + visible, dim); `restore`: (B, patches), see `random_masking`; `masked`: (B, masked),
        indices of the patches to decode; returns (B, masked, pixels).
        """
        tokens = self.embed(tokens)
        prefix, visible = tokens[:, : self.prefix], tokens[:, self.prefix :]
        b, patches = restore.shape
        hidden = self.mask_token.to(visible.dtype).expand(b, patches - visible.shape[1], -1)
        everything = take(torch.cat([visible, hidden], dim=1), restore) + self.positions
        tokens = self.blocks(torch.cat([prefix, everything], dim=1))
        pixels: Tensor = self.pixels(self.norm(take(tokens[:, self.prefix :], masked)))
        return pixels


class Method(method.Method[Config]):
    """MAE on views of one size, each a separate sample (the published augmentation makes one)."""

    config_type = Config
    compiled_methods = ("_encode",)
    backbone: VisionTransformer

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a plain vision transformer of timm for views of this size."""
        vit = need_vision_transformer(backbone, setup, method="mae", own_size=True)
        patches = vit.patch_embed.num_patches
        visible = _visible(config, patches)
        if not 0 < visible < patches:
            raise UsageError(
                f"mae: with method.masked={config.masked}, {visible} of {patches} patches are visible",
                "Choose another method.masked, or smaller patches (--backbone NAME,patch_size=...).",
            )
        if config.decoder_dim % config.decoder_heads:
            raise UsageError(
                f"mae: decoder_dim={config.decoder_dim} is no multiple of decoder_heads={config.decoder_heads}"
            )
        need_sincos_widths(vit, config.decoder_dim, "method.decoder_dim", method="mae")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        vit = self.backbone
        grid: tuple[int, int] = vit.patch_embed.grid_size
        self.patch_size: tuple[int, int] = vit.patch_embed.patch_size
        self.visible = _visible(config, grid[0] * grid[1])
        # Loaded weights keep their values.
        if not setup.loaded:
            initialise(vit, class_token_std=0.02, separate_qkv=False)
        if config.positions == "sincos" and vit.pos_embed is not None:
            fix_positions(vit, loaded=setup.loaded)
            if setup.loaded:
                log.info("mae: the loaded position embeddings are kept and fixed; method.positions=learnt trains them")
        pixels = setup.channels * self.patch_size[0] * self.patch_size[1]
        self.decoder = PixelDecoder(vit.embed_dim, grid, pixels, vit.num_prefix_tokens, config)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the reconstruction loss of the masked patches."""
        images = batch.images
        generators, patches_of_view = image_generators(self.seed, batch, step), self.decoder.positions.shape[1]
        drawn = [random_masking(len(batch.views), patches_of_view, self.visible, each) for each in generators]
        order, restore = (view_by_view(part).to(images.device, non_blocking=True) for part in zip(*drawn, strict=True))
        masked = order[:, self.visible :]
        tokens = self._encode(images, order[:, : self.visible])
        predicted = self.decoder(tokens, restore, masked)
        patches = take(patchify(images, self.patch_size), masked)
        value = reconstruction_loss(predicted, patches, normalize=self.config.normalize_targets)
        return Loss(value, tokens[:, self.backbone.num_prefix_tokens :].mean(1).detach())

    def _encode(self, images: Tensor, visible: Tensor) -> Tensor:
        """Return the tokens (B, prefix + visible, D) of images (B, C, H, W), computed for visible patches only."""
        return run_blocks(self.backbone, keep_patches(self.backbone, embed(self.backbone, images), visible))


def _visible(config: Config, patches: int) -> int:
    """Return the number of patches that the encoder sees."""
    return int(patches * (1 - config.masked))
