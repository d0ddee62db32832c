"""V-JEPA 2's encoder on single images: timm's transformer with the authors' rotary positions."""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sslbench.errors import WeightsError

# Name -> width, blocks, heads and ratio of the MLP of the published networks.
SIZES: Mapping[str, tuple[int, int, int, float]] = {
    "vjepa2_large": (1024, 24, 16, 4.0),
    "vjepa2_huge": (1280, 32, 16, 4.0),
    "vjepa2_giant": (1408, 40, 22, 48 / 11),
}
_BASE = 10_000.0
_STEM = "patch_embed.proj.weight"
# Patches of 16 frames of 224 and of 384 pixels; V-JEPA 2 has 256 pixels, or 64 frames.
_POSITIONS_OF_VJEPA1 = (8 * 14 * 14, 8 * 24 * 24)


class RotaryPositions(nn.Module):
    """Rotary positions of the patches of one frame.

    A third of a head, rounded down to an even number, turns with the frame, a third with the row and a third with the
    column; in an image the first does not turn. The frequencies of a third are tiled, not interleaved, although
    neighbouring numbers are rotated together: so the networks were trained.

    Args:
        head: dimensions of a head of attention.
        grid: rows and columns of patches.
    """

    embed: Tensor

    def __init__(self, head: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.feat_shape = grid
        part = 2 * ((head // 3) // 2)
        frequencies = _BASE ** (-torch.arange(part // 2, dtype=torch.float32) / (part / 2))
        rows, columns = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in grid), indexing="ij")
        turns = [(place.reshape(-1, 1) * frequencies).repeat(1, 2) for place in (rows, columns)]
        still = [rows.new_zeros(rows.numel(), width) for width in (part, head - 3 * part)]
        angles = torch.cat([still[0], *turns, still[1]], dim=1)
        self.register_buffer("embed", torch.cat([angles.sin(), angles.cos()], dim=1), persistent=False)

    def get_embed(self) -> Tensor:
        """Return sine and cosine of every patch's angles, (N, 2 * head)."""
        return self.embed


def build_vjepa2(name: str, options: Mapping[str, Any]) -> tuple[nn.Module, int, int]:
    """Return an encoder with random weights, the side of its images in pixels, and the number of its blocks."""
    import timm

    width, depth, heads, ratio = SIZES[name]
    given: dict[str, Any] = {"img_size": 256, "patch_size": 16, "in_chans": 3, "embed_dim": width, "depth": depth}
    given |= {"num_heads": heads, "mlp_ratio": ratio, "norm_eps": 1e-6}
    if unknown := [key for key in options if key not in given]:
        raise TypeError(f"it has no option '{unknown[0]}', but {', '.join(given)}")
    given |= options
    eps = float(given.pop("norm_eps"))
    # timm's nearest network has the same blocks; its own tokens, positions and norms are switched off.
    module = timm.create_model(
        "vit_pe_spatial_base_patch16_512",
        num_classes=0,
        class_token=False,
        use_abs_pos_emb=False,
        use_pre_transformer_norm=False,
        use_post_transformer_norm=True,
        norm_layer=functools.partial(nn.LayerNorm, eps=eps),
        **given,
    )
    side = int(given["img_size"])
    grid = side // int(given["patch_size"])
    module.rope = RotaryPositions(given["embed_dim"] // given["num_heads"], (grid, grid))
    return module, side, int(given["depth"])


def on_images(tensors: Mapping[str, Tensor], what: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return an encoder's tensors for single images, and a description of the change.

    The first layer takes tubelets of two frames; an image is a tubelet of equal frames, for which the weights of the
    frames are added. Position embeddings of V-JEPA 2's files are left from before the rotary ones, and unused.

    tensors: canonical name -> tensor; other networks are left alone.
    """
    stem, changed = tensors.get(_STEM), dict(tensors)
    if stem is None or stem.ndim != 5:
        return changed, ()
    changed[_STEM] = stem.sum(2)
    notes = [f"an image is {stem.shape[2]} equal frames: their weights are added"]
    if (positions := changed.pop("pos_embed", None)) is not None:
        if positions.shape[1] in _POSITIONS_OF_VJEPA1:
            raise WeightsError(
                f"{what} has position embeddings of the first V-JEPA ({positions.shape[1]:,} patches of 16 frames), "
                "which is not supported: those of V-JEPA 2 are rotary",
                "Give your own network: --backbone MODULE:FUNCTION.",
            )
        notes.append("unused position embeddings left out")
    return changed, tuple(notes)
