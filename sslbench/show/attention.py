"""Attention of the class token of vision transformers.

Each head's weights softmax(q k / sqrt(d)) of the class token's row are those of the network's own computation, with
norms of queries and keys and rotary positions where it has them: a copy of it computes the weights in place of the
fused kernel, which does not give them.
"""

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.dense import DenseInput
from sslbench.backbones.layers import Layer
from sslbench.errors import BackboneError

_WEIGHTS = "attn.attn_drop"  # gets the weights of all heads, in networks of timm and of DINO


def has_attention(backbone: Backbone) -> bool:
    """Return whether a backbone has a class token whose attention can be shown."""
    return bool(_blocks(backbone)) and _has_class_token(backbone)


def attention_blocks(backbone: Backbone, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return the blocks that layers belong to, 'blocks.11'; the last block for those outside.

    Raises:
        BackboneError: the backbone has no attention of a class token.
    """
    blocks = _blocks(backbone)
    if not blocks or not _has_class_token(backbone):
        reason = "has no class token" if blocks else "is no vision transformer with modules blocks.0.attn, ..."
        raise BackboneError(f"{backbone.name} {reason}, so there is no attention to show", "Leave out attention.")
    paths = [part.path for layer in layers for part in layer.parts or (layer,)]
    named = [next((b for b in blocks if path == b or path.startswith(f"{b}.")), blocks[-1]) for path in paths]
    return tuple(block for block in blocks if block in named)


def unfused(backbone: Backbone) -> Backbone:
    """Return a copy of a backbone that computes the weights of its attention one after the other."""
    module = copied(backbone.module)
    for part in module.modules():
        if "fused_attn" in vars(part):
            part.fused_attn = False  # type: ignore[assignment]
    return dataclasses.replace(backbone, module=module)


def attention_input(block: str) -> DenseInput:
    """Return the weights of a block of an `unfused` network, (B, heads, N, N), as an input of a `DenseEncoder`."""
    path = f"{block}.{_WEIGHTS}"
    return DenseInput(f"attention {block}", (Layer(path, path),))


def of_class_token(weights: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the class token's attention to the patches, (B, heads, h, w); the rest of its sum of 1 is on other tokens.

    Args:
        weights: (B, heads, N, N); the class token is the first, the patches are the last h * w.
        size: h and w.

    Raises:
        BackboneError: there are fewer tokens than patches.
    """
    cells = size[0] * size[1]
    if weights.shape[-1] <= cells:
        raise BackboneError(
            f"the attention is of {weights.shape[-1]} tokens, which are not {cells} patches and a class"
        )
    return weights[:, :, 0, -cells:].reshape(*weights.shape[:2], *size)


def _blocks(backbone: Backbone) -> list[str]:
    """Return the paths of the blocks with weights of attention, in their order."""
    found = [path for path, _ in backbone.module.named_modules() if path.endswith(f".{_WEIGHTS}")]
    return [path.removesuffix(f".{_WEIGHTS}") for path in found]


def _has_class_token(backbone: Backbone) -> bool:
    return any(name.rpartition(".")[2] == "cls_token" for name, _ in backbone.module.named_parameters())
