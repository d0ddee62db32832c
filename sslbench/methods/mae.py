"""MAE: reconstruction of masked patches from the visible quarter of an image (He et al., arXiv 2111.06377).

The targets are the pixels of the normalised view. The encoder is initialised as in the published code, with Xavier's
uniform distribution; loaded weights (--init) are kept, including position embeddings.
"""

import dataclasses
import logging
from typing import Any, Literal

import torch
from timm.layers.norm import LayerNorm
from timm.layers.patch_embed import PatchEmbed
from timm.models._manipulate import checkpoint_seq
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.precision import in_float32
from sslbench.methods._parts.vision_transformers import fix_positions, initialise, sincos
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of MAE."""

    masked: float = setting(0.75, "fraction of masked patches")
    decoder_dim: int = setting(512, "width of the decoder")
    decoder_depth: int = setting(8, "transformer blocks of the decoder")
    decoder_heads: int = setting(16, "attention heads of the decoder")
    normalize_targets: bool = setting(True, "normalise the pixels of every patch to mean 0 and variance 1")
    positions: Literal["sincos", "learnt"] = setting(
        "sincos",
        "position embeddings of the encoder: fixed sines and cosines (published; loaded ones are kept and fixed), or "
        "trained ones",
    )


def patchify(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut images into patches: (B, C, H, W) -> (B, patches, h * w * C), row by row, with channels last.

    >>> patchify(torch.arange(16.0).view(1, 1, 4, 4), (2, 2))[0].int().tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    """
    b, c, height, width = images.shape
    h, w = size
    grid = images.reshape(b, c, height // h, h, width // w, w)
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(b, -1, h * w * c)


def random_masking(count: int, patches: int, visible: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw a random permutation of the patches for each of `count` images.

    Returns:
        order: (count, patches), the permutations; the first `visible` patches of each are visible.
        restore: (count, patches), the inverse permutations: `order.gather(1, restore)` is 0, 1, 2, ...
    """
    if not 0 < visible < patches:
        raise ValueError(f"{visible} of {patches} patches cannot be visible")
    order = torch.rand(count, patches, device=device).argsort(dim=1)
    return order, order.argsort(dim=1)


@in_float32
def reconstruction_loss(predicted: Tensor, patches: Tensor, *, normalize: bool = True) -> Tensor:
    """Return the mean squared error over masked patches and pixels (section 3).

    Args:
        predicted: (B, masked, pixels).
        patches: (B, masked, pixels), the masked patches of the view.
        normalize: normalise each patch to mean 0 and variance 1 (unbiased, plus 1e-6), as in table 1d.
    """
    if normalize:
        variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
        patches = (patches - mean) / (variance + 1e-6).sqrt()
    return (predicted - patches).square().mean()


def take(tokens: Tensor, index: Tensor) -> Tensor:
    """Return the tokens of each image at its indices: (B, n, d), (B, m) -> (B, m, d)."""
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))


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

        Args:
            tokens: (B, prefix + visible, dim).
            restore: (B, patches), see `random_masking`.
            masked: (B, masked), indices of the patches to decode.

        Returns:
            (B, masked, pixels).
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
    backbone: VisionTransformer

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a plain vision transformer of timm for views of this size."""
        vit = _vision_transformer(backbone, setup)
        patches = vit.patch_embed.num_patches
        _check(config, patches, _visible(config, patches), vit.embed_dim)

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        vit = _vision_transformer(backbone, setup)
        super().__init__(vit, config, setup)
        grid: tuple[int, int] = vit.patch_embed.grid_size
        self.patch_size: tuple[int, int] = vit.patch_embed.patch_size
        self.visible = _visible(config, grid[0] * grid[1])
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
        images = torch.cat(batch.views) if len(batch.views) > 1 else batch.views[0]
        order, restore = random_masking(len(images), self.decoder.positions.shape[1], self.visible, images.device)
        masked = order[:, self.visible :]
        tokens = self._encode(images, order[:, : self.visible])
        predicted = self.decoder(tokens, restore, masked)
        patches = take(patchify(images, self.patch_size), masked)
        value = reconstruction_loss(predicted, patches, normalize=self.config.normalize_targets)
        return Loss(value, tokens[:, self.backbone.num_prefix_tokens :].mean(1).detach())

    def compile_networks(self, **options: Any) -> None:
        """Compile the encoder of visible patches, which bypasses the backbone's forward pass, and the decoder."""
        self._encode = torch.compile(self._encode, **options)  # type: ignore[method-assign]
        self.decoder.compile(**options)

    def _encode(self, images: Tensor, visible: Tensor) -> Tensor:
        """Return the tokens (B, prefix + visible, D) of images (B, C, H, W), computed for visible patches only."""
        vit = self.backbone
        tokens = vit._pos_embed(vit.patch_embed(images))
        prefix, patches = tokens[:, : vit.num_prefix_tokens], tokens[:, vit.num_prefix_tokens :]
        tokens = vit.norm_pre(torch.cat([prefix, take(patches, visible)], dim=1))
        tokens = checkpoint_seq(vit.blocks, tokens) if vit.grad_checkpointing else vit.blocks(tokens)
        # timm has the last norm before or after the pooling; the other one is the identity.
        normed: Tensor = vit.fc_norm(vit.norm(tokens))
        return normed


def _vision_transformer(backbone: nn.Module, setup: Setup) -> VisionTransformer:
    """Return the backbone if it can skip masked patches and takes views of this size; raise UsageError otherwise."""
    plain = isinstance(backbone, VisionTransformer) and isinstance(backbone.patch_embed, PatchEmbed)
    if not plain or backbone.attn_pool is not None or type(backbone)._pos_embed is not VisionTransformer._pos_embed:
        raise UsageError(
            f"mae needs a plain vision transformer, which {setup.backbone} is not",
            "For instance --backbone timm:vit_base_patch16_224, or timm:vit_tiny_patch16_224,img_size=32,patch_size=4 "
            "for small images.",
        )
    size = tuple(backbone.patch_embed.img_size)
    if any((side, side) != size for side in setup.sizes):
        side, base = setup.sizes[0], setup.backbone.partition(",img_size")[0]
        raise UsageError(
            f"mae: the views have {' and '.join(str(s) for s in dict.fromkeys(setup.sizes))} pixels a side, "
            f"the backbone takes {size[0]} x {size[1]}",
            f"Build the backbone for the size of the views: --backbone {base},img_size={side}.",
        )
    return backbone


def _visible(config: Config, patches: int) -> int:
    """Return the number of patches that the encoder sees."""
    return int(patches * (1 - config.masked))


def _check(config: Config, patches: int, visible: int, dim: int) -> None:
    """Refuse settings that do not fit the number of patches or the widths."""
    if not 0 < visible < patches:
        raise UsageError(
            f"mae: with method.masked={config.masked}, {visible} of {patches} patches are visible",
            "Choose another method.masked, or smaller patches (--backbone NAME,patch_size=...).",
        )
    if config.decoder_dim % config.decoder_heads:
        raise UsageError(
            f"mae: decoder_dim={config.decoder_dim} is no multiple of decoder_heads={config.decoder_heads}"
        )
    for name, width in (("method.decoder_dim", config.decoder_dim), ("the backbone's width", dim)):
        if width % 4:
            raise UsageError(f"mae: {name} is {width}, no multiple of 4, which positions of sines and cosines need")
