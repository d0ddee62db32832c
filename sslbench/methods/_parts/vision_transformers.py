"""Initial weights of vision transformers as MAE and MoCo v3 publish them: Xavier's, and fixed positions."""

import torch
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn


def sincos(grid: tuple[int, int], dim: int) -> Tensor:
    """Return position embeddings (1, patches, dim) of sines and cosines in two directions; `dim` divides by 4."""
    positions: Tensor = build_sincos2d_pos_embed(list(grid), dim=dim)
    return positions[None]


@torch.no_grad()
def initialise(vit: VisionTransformer, *, class_token_std: float, separate_qkv: bool) -> None:
    """Draw linear layers and the patch projection from Xavier's uniform distribution; biases of linear layers are 0.

    Args:
        vit: changed in place; its position embeddings are left alone.
        class_token_std: of the class token, which is drawn from a normal distribution.
        separate_qkv: queries, keys and values count as three matrices (MoCo v3), not as one (MAE).
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
    """Make the position embeddings sines and cosines, unless they were loaded; in any case they are not trained."""
    grid = vit.patch_embed.grid_size
    if vit.pos_embed is None:
        return
    if not loaded:
        prefix = vit.pos_embed.shape[1] - grid[0] * grid[1]
        vit.pos_embed.zero_()[:, prefix:] = sincos(grid, vit.embed_dim)
    vit.pos_embed.requires_grad_(False)
