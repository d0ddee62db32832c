"""Vision transformers of timm in methods: their tokens, with and without masks, and their initial weights."""

import types
from collections.abc import Callable
from typing import Any

import torch
from timm.layers.drop import DropPath
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models._manipulate import checkpoint_seq
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sslbench.errors import UsageError
from sslbench.methods._parts.masks import take
from sslbench.train.method import Setup


def need_vision_transformer(
    backbone: nn.Module, setup: Setup, *, method: str, own_size: bool = False
) -> VisionTransformer:
    """Return the backbone, a vision transformer whose patches can be masked; with `own_size` built for these views."""
    plain = isinstance(backbone, VisionTransformer) and isinstance(backbone.patch_embed, PatchEmbed)
    if not plain or backbone.attn_pool is not None or type(backbone)._pos_embed is not VisionTransformer._pos_embed:
        raise UsageError(
            f"{method} needs a plain vision transformer, which {setup.backbone} is not",
            "For instance --backbone timm:vit_base_patch16_224, or timm:vit_tiny_patch16_224,img_size=32,patch_size=4 "
            "for small images.",
        )
    size = tuple(backbone.patch_embed.img_size)
    if own_size and any((side, side) != size for side in setup.sizes):
        side, base = setup.sizes[0], setup.backbone.partition(",img_size")[0]
        raise UsageError(
            f"{method}: the views have {' and '.join(str(s) for s in dict.fromkeys(setup.sizes))} pixels a side, "
            f"the backbone takes {size[0]} x {size[1]}",
            f"Build the backbone for the size of the views: --backbone {base},img_size={side}.",
        )
    return backbone


def need_plain_blocks(vit: VisionTransformer, setup: Setup, *, method: str) -> None:
    """Require blocks of one attention and one MLP each."""
    blocks: Any = vit.blocks
    if any(not hasattr(block, "attn") or not hasattr(getattr(block, "mlp", None), "fc2") for block in blocks):
        raise UsageError(
            f"{method}: blocks of {setup.backbone} have not one attention and one MLP each",
            "Choose another vision transformer, such as timm:vit_base_patch16_224.",
        )


def need_class_token(vit: VisionTransformer, setup: Setup, *, method: str) -> None:
    """Require a network whose output is its normalised class token."""
    if vit.cls_token is None or vit.global_pool != "token":
        raise UsageError(
            f"{method} compares class tokens, and the output of {setup.backbone} is none",
            "Choose a vision transformer with a class token, such as timm:vit_small_patch16_224, and do not set its "
            "global_pool.",
        )


def need_no_other_drop_path(vit: VisionTransformer, rate: float, *, method: str) -> None:
    """Refuse stochastic depth of the backbone beside that of `drop_samples`."""
    if rate and any(isinstance(part, DropPath) and part.drop_prob for part in vit.modules()):
        raise UsageError(
            f"{method}: method.drop_path replaces the stochastic depth of the backbone",
            "Leave drop_path_rate out of the backbone's name, or set method.drop_path=0.",
        )


def need_sincos_widths(vit: VisionTransformer, width: int, name: str, *, method: str) -> None:
    """Require widths of the backbone and of a setting `name` for which there are positions of sines and cosines."""
    for what, value in ((name, width), ("the backbone's width", vit.embed_dim)):
        if value % 4:
            raise UsageError(
                f"{method}: {what} is {value}, no multiple of 4, which positions of sines and cosines need"
            )


def grid_of(vit: VisionTransformer, size: int) -> tuple[int, int]:
    """Return the rows and columns of patches of an image of `size` x `size` pixels."""
    height, width = vit.patch_embed.patch_size
    return size // height, size // width


def embed(vit: VisionTransformer, images: Tensor, mask: Tensor | None = None, token: Tensor | None = None) -> Tensor:
    """Return the tokens before the first block, with positions: (B, C, H, W) -> (B, prefix + patches, D).

    `images`: (B, C, H, W); `mask`: (B, patches) booleans, true for patches whose embedding is replaced by `token`; None
    for no mask; `token`: (1, D), mask token.
    """
    patches = vit.patch_embed(images)  # (B, N, D), or (B, rows, columns, D) if the network takes any size
    if mask is not None and token is not None:
        patches = torch.where(mask.view(*patches.shape[:-1], 1), token.to(patches.dtype), patches)
    tokens: Tensor = vit._pos_embed(patches)
    return tokens


def keep_patches(vit: VisionTransformer, tokens: Tensor, patches: Tensor) -> Tensor:
    """Return prefix and some patches of each image: (B, prefix + N, D), (B, n) -> (B, prefix + n, D)."""
    prefix = vit.num_prefix_tokens
    return torch.cat([tokens[:, :prefix], take(tokens[:, prefix:], patches)], dim=1)


def run_blocks(
    vit: VisionTransformer, tokens: Tensor, *, drop_path: float = 0.0, attention: Tensor | None = None
) -> Tensor:
    """Return the normalised tokens (B, n, D) after the last block.

    `tokens`: (B, n, D), from `embed`; patches may be left out; `attention`: (B, 1, n, n) booleans, true where the token
    of a row attends to that of a column; None: all attend to all.
    """
    tokens = vit.norm_pre(tokens)
    blocks: Any = vit.blocks  # a Sequential, whose items are any modules to mypy
    if attention is not None:
        for block in blocks:
            if vit.grad_checkpointing:
                tokens = checkpoint(block, tokens, attention, use_reentrant=False)
            else:
                tokens = block(tokens, attn_mask=attention)
    elif drop_path and vit.training:
        for block in blocks:
            if vit.grad_checkpointing:
                tokens = checkpoint(block.drop_samples, tokens, drop_path, use_reentrant=False)
            else:
                tokens = block.drop_samples(tokens, drop_path)
    else:
        tokens = checkpoint_seq(vit.blocks, tokens) if vit.grad_checkpointing else vit.blocks(tokens)
    # timm has the last norm before or after the pooling; the other one is the identity.
    normed: Tensor = vit.fc_norm(vit.norm(tokens))
    return normed


def give_blocks(vit: VisionTransformer, function: Callable[..., Any]) -> None:
    """Make a function a method of each block under its own name; see `Method.block_methods`."""
    for block in vit.blocks:
        setattr(block, function.__name__, types.MethodType(function, block))


def drop_samples(block: Block, tokens: Tensor, rate: float) -> Tensor:
    """Return a block's output with each residual branch computed for a random part of the images only.

    `tokens`: (B, n, D).
    """
    # Stochastic depth that saves the computation of dropped branches (Oquab et al. 2023, arXiv 2304.07193, section 5):
    # a branch is computed for B * (1 - rate) images, rounded down and at least one, and scaled by the inverse share.
    count = max(int(len(tokens) * (1 - rate)), 1)
    for norm, layer, scale in ((block.norm1, block.attn, block.ls1), (block.norm2, block.mlp, block.ls2)):
        rows = torch.randperm(len(tokens), device=tokens.device)[:count]
        branch = scale(layer(norm(tokens[rows])))
        tokens = tokens.index_add(0, rows, branch.to(tokens.dtype), alpha=len(tokens) / count)
    return tokens


def sincos(grid: tuple[int, int], dim: int) -> Tensor:
    """Return position embeddings (1, patches, dim) of sines and cosines in two directions; `dim` is a multiple of 4."""
    positions: Tensor = build_sincos2d_pos_embed(list(grid), dim=dim)
    return positions[None]


@torch.no_grad()
def initialise(vit: VisionTransformer, *, class_token_std: float, separate_qkv: bool) -> None:
    """Initialise linear layers and the patch projection with Xavier's uniform distribution, biases with 0."""
    for module in vit.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for name, parameter in vit.named_parameters():
        if separate_qkv and name.endswith("attn.qkv.weight"):
            for part in parameter.chunk(3):
                nn.init.xavier_uniform_(part)
    projection = vit.patch_embed.proj
    nn.init.xavier_uniform_(projection.weight.view(len(projection.weight), -1))
    if vit.cls_token is not None:
        nn.init.normal_(vit.cls_token, std=class_token_std)


@torch.no_grad()
def fix_positions(vit: VisionTransformer, *, loaded: bool) -> None:
    """Set the position embeddings to sines and cosines, unless they were loaded, and freeze them."""
    grid = vit.patch_embed.grid_size
    if vit.pos_embed is None:
        return
    if not loaded:
        prefix = vit.pos_embed.shape[1] - grid[0] * grid[1]
        vit.pos_embed.zero_()[:, prefix:] = sincos(grid, vit.embed_dim)
    vit.pos_embed.requires_grad_(False)
