"""Resampling of position embeddings to a vision transformer built for another image size."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sslbench.backbones.vit.recognise import grid_side
from sslbench.weights.positions import without_class_position


def fit_positions(tensors: Mapping[str, Tensor], module: nn.Module) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors with `pos_embed` fitted to `module`, and a description of each change.

    Two things are done, and only where the module is a vision transformer of timm:

    - DINOv2 with registers keeps a position for the class token, timm none: see `without_class_position`.
    - A square grid of another size is resampled, bicubic with antialiasing (timm's `resample_abs_pos_embed`, and
      DINOv2's own code for its models with registers). The networks of DINO and of DINOv2 without registers are
      resampled as their code does: without antialiasing, scaled by (patches + 0.1) / patches of the file.

    Whatever does not fit after that is left for `fill` to refuse.

    Args:
        tensors: canonical name -> tensor; not changed.
        module: the backbone.
    """
    changed, notes = dict(tensors), []
    target, grid = getattr(module, "pos_embed", None), _grid(module)
    if "pos_embed" not in changed or not isinstance(target, Tensor) or grid is None:
        return changed, ()
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

    Args:
        positions: (1, prefix + side * side, D).
        module: the network; DINO's and DINOv2's without registers have their own rule, see `fit_positions`.
        side: rows and columns of the grid that the positions are for.
        grid: rows and columns that are needed.
        prefix: positions of class and register tokens, which stay as they are.

    Returns:
        (1, prefix + rows * columns, D).
    """
    if _is_dino(module):
        return _resampled_as_dino(positions, side, grid, prefix)
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


def _is_dino(module: nn.Module) -> bool:
    """Return whether the network is DINO's, or DINOv2's without registers, by the name that timm keeps in it."""
    known = getattr(module, "pretrained_cfg", None) or {}
    registers = isinstance(getattr(module, "reg_token", None), Tensor)
    return not registers and ("dinov2" in str(known.get("architecture")) or known.get("tag") == "dino")


def _resampled_as_dino(positions: Tensor, side: int, grid: tuple[int, int], prefix: int) -> Tensor:
    """Return (1, prefix + grid, D) as `interpolate_pos_encoding` of DINO and DINOv2 has it.

    The scale factor reaches 0.1 patches too far, and bicubic interpolation is computed with the factor.
    """
    tokens, patches = positions[:, :prefix], positions[:, prefix:]
    maps = patches.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    scale = ((grid[0] + 0.1) / side, (grid[1] + 0.1) / side)
    maps = nn.functional.interpolate(maps, scale_factor=scale, mode="bicubic", antialias=False)
    return torch.cat([tokens, maps.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


def _grid(module: nn.Module) -> tuple[int, int] | None:
    """Return the module's grid of patches (rows, columns)."""
    size = getattr(getattr(module, "patch_embed", None), "grid_size", None)
    return (int(size[0]), int(size[1])) if isinstance(size, tuple) and len(size) == 2 else None
