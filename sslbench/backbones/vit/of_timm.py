"""Recognition of timm's vision transformers without importing timm: a network of timm has imported it already."""

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import nn

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


def is_timm_vit(module: nn.Module) -> "TypeGuard[VisionTransformer]":
    """Return whether a network is timm's `VisionTransformer`.

    >>> is_timm_vit(nn.Linear(2, 2))
    False
    """
    if "timm" not in sys.modules:
        return False
    from timm.models.vision_transformer import VisionTransformer

    return isinstance(module, VisionTransformer)


def has_patch_embed(vit: "VisionTransformer") -> bool:
    """Return whether its patches are cut by timm's `PatchEmbed`, and not by a network of its own (hybrids)."""
    from timm.layers.patch_embed import PatchEmbed

    return isinstance(vit.patch_embed, PatchEmbed)
