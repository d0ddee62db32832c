"""Image sizes that a backbone takes: position embeddings for another size, and the length of its vectors."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.backbones.layers import Layer, forward_layers
from sslbench.backbones.videomae import told_positions
from sslbench.backbones.vit_recognise import grid_side
from sslbench.errors import UsageError, WeightsError
from sslbench.weights.fill import MASKED_BIASES, PERIODS, fill, with_masked_biases, without_class_position

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


_BIASES = ("attn.q_bias", "attn.k_bias", "attn.v_bias")


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


def fit_positions(tensors: Mapping[str, Tensor], module: nn.Module) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors with `pos_embed` fitted to `module`, and a description of each change.

    Two things are done, and only where the module is a vision transformer of timm:

    - DINOv2 with registers keeps a position for the class token, timm none: see `without_class_position`.
    - A square grid of another size is resampled, bicubic with antialiasing (timm's `resample_abs_pos_embed`, and
      DINOv2's own code for its models with registers). The networks of DINO and of DINOv2 without registers are
      resampled as their code does: without antialiasing, scaled by (patches + 0.1) / patches of the file.

    Whatever does not fit after that is left for `fill` to refuse.

    tensors: canonical name -> tensor; not changed.
    """
    changed, notes = dict(tensors), []
    target = getattr(module, "pos_embed", None)
    cells = getattr(getattr(module, "patch_embed", None), "grid_size", None)
    if "pos_embed" not in changed or not isinstance(target, Tensor):
        return changed, ()
    if not isinstance(cells, tuple) or len(cells) != 2:
        return changed, ()
    grid = int(cells[0]), int(cells[1])
    prefix = target.shape[1] - grid[0] * grid[1]  # position rows without a patch
    if prefix == 0 and isinstance(getattr(module, "reg_token", None), Tensor):
        changed = without_class_position(changed)
        if changed["pos_embed"] is not tensors["pos_embed"]:
            notes.append("position of the class token added to it")
    positions = changed["pos_embed"]
    if positions.ndim != 3 or positions.shape[2] != target.shape[2]:
        return changed, tuple(notes)
    side = grid_side(positions.shape[1], (prefix,))
    if side is not None and (side, side) != grid:
        resized = resampled_positions(positions.float(), module, side, grid, prefix)
        changed["pos_embed"] = resized.to(positions.dtype)
        notes.append(f"position embeddings resized from {side}x{side} to {grid[0]}x{grid[1]} patches (bicubic)")
    return changed, tuple(notes)


def resampled_positions(positions: Tensor, module: nn.Module, side: int, grid: tuple[int, int], prefix: int) -> Tensor:
    """Return position embeddings of a square grid for another grid, as the authors of the network resample them.

    -> (1, prefix + rows * columns, D).
    """
    recorded = getattr(module, "pretrained_cfg", None) or {}
    registers = isinstance(getattr(module, "reg_token", None), Tensor)
    # DINO's, or DINOv2's without registers, by the name that timm keeps in the network.
    if not registers and ("dinov2" in str(recorded.get("architecture")) or recorded.get("tag") == "dino"):
        # As `interpolate_pos_encoding` of DINO and DINOv2: the scale factor reaches 0.1 patches too far, and bicubic
        # interpolation is computed with the factor.
        tokens, patches = positions[:, :prefix], positions[:, prefix:]
        maps = patches.reshape(1, side, side, -1).permute(0, 3, 1, 2)
        scale = ((grid[0] + 0.1) / side, (grid[1] + 0.1) / side)
        maps = nn.functional.interpolate(maps, scale_factor=scale, mode="bicubic", antialias=False)
        return torch.cat([tokens, maps.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)
    from timm.layers.pos_embed import resample_abs_pos_embed

    resampled: Tensor = resample_abs_pos_embed(
        positions,
        new_size=list(grid),
        old_size=[side, side],
        num_prefix_tokens=prefix,
        interpolation="bicubic",
        antialias=True,
    )
    return resampled


def built_for(backbone: Backbone) -> Backbone:
    """Return the backbone as it takes the images of its preprocessing, where it was built for one other size.

    A timm model of one image size (a vision transformer) is built anew with its position embeddings resampled as its
    authors do; its name says so ('timm:vit_small_patch14_dinov2,img_size=224'). All other backbones are returned as
    they are.
    """
    size = backbone.preprocessing.output_size  # None: it differs from image to image
    embed = getattr(backbone.module, "patch_embed", None)
    built = getattr(embed, "img_size", None)
    if built is None or not getattr(embed, "strict_img_size", False) or size == tuple(built):
        return backbone
    given = "images of their own sizes" if size is None else f"images of {size[0]}x{size[1]}"
    problem = f"{backbone.name} takes images of {built[0]}x{built[1]}, but the preprocessing gives {given}"
    if "img_size" not in backbone.kind.options or size is None or size[0] != size[1]:
        raise UsageError(problem, f"Give --crop {built[0]}, or a backbone for any size: dynamic_img_size=True.")
    architecture, *options = backbone.name.split(",")
    name = ",".join([architecture, *(option for option in options if not option.startswith("img_size="))])
    fitted = build(f"{name},img_size={size[0]}")
    tensors, notes = fit_positions(backbone.module.state_dict(), fitted.module)
    try:
        fill(fitted.module, tensors, what=backbone.name)
    except WeightsError as error:
        raise UsageError(problem, f"Its tensors do not fit another size: {error.message}") from error
    notes = (*notes, *told_positions(fitted.module, backbone.kind.frames, built[0]))
    report = backbone.report and dataclasses.replace(backbone.report, casts=(*backbone.report.casts, *notes))
    return dataclasses.replace(fitted, preprocessing=backbone.preprocessing, report=report, format=backbone.format)


def accept_sizes(backbone: nn.Module, sizes: tuple[int, ...], *, name: str, channels: int = 3) -> None:
    """Make a backbone accept square images of all `sizes`.

    A timm vision transformer that was built for one size is told to interpolate its positions for the others, as with
    `dynamic_img_size=True`; its parameters stay as they are.
    """
    if is_timm_vit(backbone) and has_patch_embed(backbone):
        built = backbone.patch_embed.img_size
        if built is not None and any((size, size) != tuple(built) for size in sizes):
            from timm.layers.format import Format

            # As timm's constructor does for dynamic_img_size=True.
            backbone.dynamic_img_size = True  # type: ignore[misc]  # final for TorchScript only, unused here
            backbone.patch_embed.strict_img_size = False
            backbone.patch_embed.flatten = False
            backbone.patch_embed.output_fmt = Format.NHWC
    for size in dict.fromkeys(sizes):
        try:
            feature_dim(backbone, size, channels)
        except (AssertionError, RuntimeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UsageError(
                f"the backbone {name} cannot take views of {size} x {size} pixels: {reason}",
                "Choose other sizes (augment.size, augment.small_size) or a backbone that takes several: a ResNet, a "
                "timm ViT whose patch size divides them, timm:NAME,dynamic_img_size=True where timm has that option.",
            ) from error


def feature_dim(backbone: nn.Module, size: int, channels: int = 3) -> int:
    """Return the length of a backbone's vector for an image of `size` x `size` pixels; the backbone is unchanged."""
    output = _on_zeros(backbone, backbone, size, channels)
    if not isinstance(output, Tensor) or output.dim() != 2:
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"a backbone must return one vector per image, (B, D); for 2 images it returned {got}")
    return int(output.shape[1])


def layer_dim(backbone: nn.Module, layer: Layer, size: int, channels: int = 3) -> int:
    """Return the length of a layer's vector for an image of `size` x `size` pixels; the backbone is unchanged."""
    found = _on_zeros(backbone, lambda images: forward_layers(backbone, images, (layer,)), size, channels)
    return int(found[layer.text].shape[1])


def _on_zeros(backbone: nn.Module, function: Callable[[Tensor], Any], size: int, channels: int) -> Any:
    """Return what a function gives for two black images, with the backbone in evaluation mode."""
    mode = backbone.training
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    backbone.eval()
    try:
        with torch.no_grad():
            return function(torch.zeros(2, channels, size, size, device=device))
    finally:
        backbone.train(mode)


def fit_rotary(tensors: Mapping[str, Tensor], module: nn.Module) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors for a vision transformer with rotary positions, and a description of each change.

    The authors' files hold the periods of the rotation, rounded to bfloat16, and biases of the keys. Both take part in
    the outputs as they are in the file: `module` gets persistent buffers for them. Biases that are all zero, as in most
    of the published networks, are left out where `module` has none. Other networks are left alone.

    tensors: canonical name -> tensor; not changed.
    """
    fitted = with_masked_biases(tensors)
    for name, part in module.named_modules():
        for kind in ("k_bias", PERIODS.rpartition(".")[2]):
            buffer = part._buffers.get(kind)
            if buffer is not None and f"{name}.{kind}" in fitted:
                part.register_buffer(kind, buffer, persistent=True)
    notes = [MASKED_BIASES] if len(fitted) < len(tensors) else []
    biases = [name for name in fitted if name.endswith(_BIASES)]
    known = module.state_dict().keys()
    if biases and not any(name in known or bool(fitted[name].any()) for name in biases):
        fitted = {name: tensor for name, tensor in fitted.items() if name not in biases}
        notes.append("biases of queries, keys and values, which are all zero, left out")
    return fitted, tuple(notes)
