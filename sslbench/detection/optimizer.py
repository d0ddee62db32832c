"""Learning rates and groups of parameters of a detector, as Detectron2 has them."""

import bisect

import torch
from torch import nn

from sslbench.detection.models.detector import Detector
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import UsageError

_VIT = "backbone.net."
_BLOCKS = f"{_VIT}blocks."
_FIRST = tuple(_VIT + part for part in ("patch_embed", "pos_embed", "cls_token", "reg_token", "norm_pre"))
_POSITIONS = tuple(_VIT + part for part in ("pos_embed", "cls_token", "reg_token"))


def rate(recipe: DetectionRecipe, iteration: int) -> float:
    """The learning rate of an iteration (counted from 0): linear warm-up, times gamma after each step (Detectron2)."""
    value = recipe.lr * recipe.gamma ** bisect.bisect_right(recipe.steps, iteration)
    if iteration >= recipe.warmup_iterations:
        return value
    done = iteration / recipe.warmup_iterations
    return value * (recipe.warmup_factor * (1 - done) + done)


def make_optimizer(detector: Detector, recipe: DetectionRecipe) -> torch.optim.Optimizer:
    """SGD or AdamW over all that is trained, in groups of one weight decay and one factor of the rate.

    Of a vision transformer the rate of each block is `layer_decay` times that of the block above it, and the positions
    do not decay (ViTDet: Li et al. 2022, arXiv 2203.16527, appendix A.2, with the exceptions of its configuration in
    Detectron2); neither do class and register tokens, which ViTDet has not.

    Raises:
        UsageError: layer_decay for a backbone without transformer blocks.
    """
    names = [name for name, _ in detector.named_parameters()]
    blocks = {int(name.removeprefix(_BLOCKS).partition(".")[0]) for name in names if name.startswith(_BLOCKS)}
    if recipe.layer_decay != 1 and not blocks:
        raise UsageError(
            f"layer_decay={recipe.layer_decay} is for vision transformers: this backbone has no blocks",
            "Give layer_decay=1.",
        )
    in_norm = {
        f"{prefix}.{leaf}"
        for prefix, layer in detector.named_modules()
        if "norm" in type(layer).__name__.lower()
        for leaf, _ in layer.named_parameters(recurse=False)
    }
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in detector.named_parameters():
        if parameter.requires_grad:
            decay = recipe.weight_decay_norm if name in in_norm else recipe.weight_decay
            decay = 0.0 if name in _POSITIONS else decay
            factor = recipe.layer_decay ** _layers_above(name, len(blocks))
            groups.setdefault((decay, factor), []).append(parameter)
    keys = sorted(groups)
    options = [{"params": groups[key], "weight_decay": key[0], "lr_factor": key[1]} for key in keys]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(options, lr=recipe.lr)
    return torch.optim.SGD(options, lr=recipe.lr, momentum=recipe.momentum)


def _layers_above(name: str, blocks: int) -> int:
    """How many layers lie above a parameter: transformer blocks, and one for the rest (get_vit_lr_decay_rate)."""
    if name.startswith(_BLOCKS):
        return blocks - int(name.removeprefix(_BLOCKS).partition(".")[0])
    return blocks + 1 if name.startswith(_FIRST) else 0
