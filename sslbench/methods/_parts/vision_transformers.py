"""Initial weights of vision transformers in MAE and MoCo v3: Xavier initialisation and fixed positions."""

import torch
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn


def sincos(grid: tuple[int, int], dim: int) -> Tensor:
    """Return position embeddings (1, patches, dim) of sines and cosines in two directions; `dim` is a multiple of 4."""
    positions: Tensor = build_sincos2d_pos_embed(list(grid), dim=dim)
    return positions[None]


@torch.no_grad()
def initialise(vit: VisionTransformer, *, class_token_std: float, separate_qkv: bool) -> None:
    """Initialise linear layers and the patch projection with Xavier's uniform distribution, biases with 0.

    Args:
        vit: network, changed in place; its position embeddings are kept.
        class_token_std: standard deviation of the normal distribution of the class token.
        separate_qkv: initialise queries, keys and values as three matrices (MoCo v3) instead of one (MAE).
    """
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
