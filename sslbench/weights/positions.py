"""Position embeddings of vision transformers with registers, where the class token may have a position or none."""

import math
from collections.abc import Mapping

from torch import Tensor


def without_class_position(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return canonical tensors in timm's layout: with registers, only patches have position embeddings.

    DINOv2's own files keep a position embedding for the class token. It is added to the class token here; the network
    only uses the sum, so its output is unchanged. Other tensors are returned unchanged.
    """
    positions, token = tensors.get("pos_embed"), tensors.get("cls_token")
    if positions is None or token is None or "reg_token" not in tensors or positions.ndim != 3:
        return dict(tensors)
    rows = positions.shape[1] - 1
    if rows < 1 or math.isqrt(rows) ** 2 != rows or token.shape[-1] != positions.shape[-1]:
        return dict(tensors)
    return {**tensors, "cls_token": token + positions[:, :1], "pos_embed": positions[:, 1:]}
