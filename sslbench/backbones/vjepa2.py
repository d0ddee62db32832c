"""V-JEPA 2's encoder on clips or single images: timm's transformer with the authors' rotary positions."""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sslbench.backbones.tubelets import Tubelets
from sslbench.errors import WeightsError

# Name -> width, blocks, heads and ratio of the MLP of the published networks.
SIZES: Mapping[str, tuple[int, int, int, float]] = {
    "vjepa2_large": (1024, 24, 16, 4.0),
    "vjepa2_huge": (1280, 32, 16, 4.0),
    "vjepa2_giant": (1408, 40, 22, 48 / 11),
}
OPTIONS: Mapping[str, Any] = {"img_size": 256, "frames": 0}
_BASE = 10_000.0
_STEM = "patch_embed.proj.weight"
# Patches of 16 frames of 224 and of 384 pixels; V-JEPA 2 has 256 pixels, or 64 frames.
_POSITIONS_OF_VJEPA1 = (8 * 14 * 14, 8 * 24 * 24)


class RotaryPositions(nn.Module):
    """Rotary positions of the patches of a clip.

    A third of a head, rounded down to an even number, turns with the frame, a third with the row and a third with the
    column; in an image the first does not turn. The frequencies of a third are tiled, not interleaved, although
    neighbouring numbers are rotated together: so the networks were trained.

    Args:
        head: dimensions of a head of attention.
        grid: tubelets in time, 1 for an image, rows and columns of patches.
    """

    embed: Tensor

    def __init__(self, head: int, grid: tuple[int, int, int]) -> None:
        super().__init__()
        self.feat_shape = grid
        part = 2 * ((head // 3) // 2)
        frequencies = _BASE ** (-torch.arange(part // 2, dtype=torch.float32) / (part / 2))
        places = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in grid), indexing="ij")
        turns = [(place.reshape(-1, 1) * frequencies).repeat(1, 2) for place in places]
        angles = torch.cat([*turns, places[0].new_zeros(places[0].numel(), head - 3 * part)], dim=1)
        self.register_buffer("embed", torch.cat([angles.sin(), angles.cos()], dim=1), persistent=False)

    def get_embed(self) -> Tensor:
        """Return sine and cosine of every patch's angles, (N, 2 * head)."""
        return self.embed


def make_encoder(given: Mapping[str, Any]) -> nn.Module:
    """Return an encoder with random weights and these options; with 0 frames it takes images."""
    import timm

    rest = {key: value for key, value in given.items() if key not in ("norm_eps", "frames")}
    # timm's nearest network has the same blocks; its own tokens, positions and norms are switched off.
    module = timm.create_model(
        "vit_pe_spatial_base_patch16_512",
        num_classes=0,
        class_token=False,
        use_abs_pos_emb=False,
        use_pre_transformer_norm=False,
        use_post_transformer_norm=True,
        norm_layer=functools.partial(nn.LayerNorm, eps=float(given["norm_eps"])),
        **rest,
    )
    side, patch, frames = int(given["img_size"]), int(given["patch_size"]), int(given["frames"])
    grid = (1, side // patch, side // patch)
    if frames:
        first = Tubelets(side, patch, given["in_chans"], given["embed_dim"], frames)
        module.patch_embed, grid = first, first.grid
    module.rope = RotaryPositions(given["embed_dim"] // given["num_heads"], grid)
    return module


def fit_frames(
    tensors: Mapping[str, Tensor], module: nn.Module, what: str
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return an encoder's tensors for clips or single images, as the module takes them, and descriptions of changes.

    The first layer takes tubelets of two frames; an image is a tubelet of equal frames, for which the weights of the
    frames are added. Position embeddings of V-JEPA 2's files are left from before the rotary ones, and unused.

    tensors: canonical name -> tensor; other networks are left alone.
    """
    stem, changed, notes = tensors.get(_STEM), dict(tensors), list[str]()
    if stem is None or stem.ndim != 5:
        return changed, ()
    if not isinstance(getattr(module, "patch_embed", None), Tubelets):
        changed[_STEM] = stem.sum(2)
        notes.append(
            f"an image is {stem.shape[2]} equal frames, as by transformers: their weights are added (its authors show "
            "it in 16 frames: frames=16 behind the network's name)"
        )
    if (positions := changed.pop("pos_embed", None)) is not None:
        if positions.shape[1] in _POSITIONS_OF_VJEPA1:
            raise WeightsError(
                f"{what} has position embeddings of the first V-JEPA ({positions.shape[1]:,} patches of 16 frames), "
                "which is not supported: those of V-JEPA 2 are rotary",
                "Give your own network: --backbone MODULE:FUNCTION.",
            )
        notes.append("unused position embeddings left out")
    return changed, tuple(notes)
