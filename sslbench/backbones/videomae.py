"""VideoMAE's encoder: a transformer on tubelets with fixed positions, from timm's blocks."""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sslbench.backbones.tubelets import Tubelets

# Name -> width, blocks, heads and ratio of the MLP of the published networks.
SIZES: Mapping[str, tuple[int, int, int, float]] = {
    "videomae_small": (384, 12, 6, 4.0),
    "videomae_base": (768, 12, 12, 4.0),
    "videomae_large": (1024, 24, 16, 4.0),
    "videomae_huge": (1280, 32, 16, 4.0),
    "videomae_giant": (1408, 40, 16, 48 / 11),
}
OPTIONS: dict[str, Any] = {"img_size": 224, "frames": 16, "final_norm": True}
_BASE = 10_000.0


class VideoTransformer(nn.Module):
    """Transformer on tubelets without a class token; returns the mean of its tokens, (B, width).

    Tong et al., "VideoMAE: masked autoencoders are data-efficient learners for self-supervised video pre-training",
    NeurIPS 2022. Queries and values have biases, keys none. In finetuned networks a norm follows the mean, which
    belongs to their classifier, and none precedes it.

    Args:
        options: of the first layer and the blocks.
    """

    num_prefix_tokens = 0
    pos_embed: Tensor

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        from timm.models.beit import Block

        width = int(options["embed_dim"])
        norm = functools.partial(nn.LayerNorm, eps=float(options["norm_eps"]))
        self.patch_embed = Tubelets(
            options["img_size"], options["patch_size"], options["in_chans"], width, options["frames"]
        )
        self.register_buffer("pos_embed", sinusoids(self.patch_embed.num_patches, width)[None], persistent=False)
        self.blocks = nn.Sequential(
            *(
                Block(width, options["num_heads"], qkv_bias=True, mlp_ratio=options["mlp_ratio"], norm_layer=norm)  # type: ignore[arg-type]
                for _ in range(options["depth"])
            )
        )
        self.norm = norm(width) if options["final_norm"] else nn.Identity()

    def forward(self, clips: Tensor) -> Tensor:
        """Return the mean of the tokens, (B, width), of clips as `Tubelets` takes them."""
        tokens: Tensor = self.norm(self.blocks(self.patch_embed(clips) + self.pos_embed))
        return tokens.mean(1)


def sinusoids(count: int, width: int) -> Tensor:
    """Return the positions of a sequence, (count, width) float32: sines and cosines, interleaved.

    Vaswani et al., "Attention is all you need", NeurIPS 2017, section 3.5.

    >>> sinusoids(2, 4)[1].round(decimals=2).tolist()
    [0.8399999737739563, 0.5400000214576721, 0.009999999776482582, 1.0]
    """
    angles = torch.arange(count, dtype=torch.float64)[:, None] * _BASE ** (
        -torch.arange(0, width, 2, dtype=torch.float64) / width
    )
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1).float()


def told_positions(module: nn.Module, frames: int, side: int) -> tuple[str, ...]:
    """Return a note if a VideoMAE takes other clips than those of its training: its positions are no tensors of a file.

    frames, side: of the clips of its training.
    """
    if not isinstance(module, VideoTransformer):
        return ()
    first = module.patch_embed
    if (first.frames, first.img_size) == (frames, (side, side)):
        return ()
    return (
        f"fixed positions computed anew for clips of {first.frames} frames of {first.img_size[0]} pixels (trained on "
        f"{frames} frames of {side} pixels)",
    )
