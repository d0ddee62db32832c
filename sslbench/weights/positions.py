"""Position embeddings and rotary positions of vision transformers, as their authors and as timm have them."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

CLASS_POSITION = "position of the class token added to it, as timm has it"
MASKED_BIASES = "biases of queries, keys and values multiplied by their masks"
PERIODS_LEFT_OUT = "rotary periods in bfloat16 left out: timm computes them in float32"
PERIODS = "rope.periods"


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


def with_masked_biases(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return canonical tensors with the biases of queries, keys and values multiplied by their masks.

    DINOv3 multiplies the bias of the keys by zero in every forward pass; where the mask is zero, the value has no
    meaning and may be NaN.
    """
    masked = dict(tensors)
    for name in [name for name in tensors if name.endswith(".bias_mask")]:
        start, mask = name.removesuffix("bias_mask"), masked.pop(name)
        names = [f"{start}{part}_bias" for part in "qkv"]
        if not all(key in tensors and 3 * tensors[key].numel() == mask.numel() for key in names):
            masked[name] = mask
            continue
        thirds = zip(names, mask.flatten().chunk(3), strict=True)
        masked |= {key: torch.where(third == 0, 0, tensors[key] * third) for key, third in thirds}
    return masked


def in_timms_layout(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return canonical tensors as timm's own files have them, and a description of each change.

    Biases of keys are left out if they are zero, which timm takes for granted.
    """
    changed = with_masked_biases(tensors)
    notes = [MASKED_BIASES] if len(changed) < len(tensors) else []
    keys = [name for name in changed if name.endswith("attn.k_bias")]
    if not any(bool(changed[name].any()) for name in keys):
        changed = {name: tensor for name, tensor in changed.items() if name not in keys}
    if changed.pop(PERIODS, None) is not None:
        notes.append(PERIODS_LEFT_OUT)
    folded = without_class_position(changed)
    if folded.get("pos_embed") is not changed.get("pos_embed"):
        notes.append(CLASS_POSITION)
    return folded, tuple(notes)
