"""AIM: prediction of the next patch from those before it (El-Nouby et al., ICML 2024, arXiv 2401.08541).

Patches are read row by row. A random number of first patches, the prefix, attend to each other; each later patch
attends to the prefix and to the patches before it. A deep head predicts the normalised pixels of the next patch from
each token with its position. Without a mask the trained network attends in both directions.

Departures: plain vision transformers of timm without a norm after the patch projection; tokens of class and registers,
if there are any, belong to the prefix. The code for pretraining is not published: here the initial weights are MAE's,
and every image has the same weight in the loss.
"""

import dataclasses

import torch
from timm.layers.mlp import Mlp
from timm.layers.norm import LayerNorm
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.masks import (
    image_generators,
    masked_rows,
    normalise_patches,
    patchify,
    take_rows,
    view_by_view,
)
from sslbench.methods._parts.vision_transformers import (
    embed,
    fix_positions,
    initialise,
    need_vision_transformer,
    run_blocks,
    sincos,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of AIM."""

    head_dim: int = setting(2048, "width of the prediction head", within="[1, inf)")
    head_depth: int = setting(12, "feed-forward blocks of the prediction head", within="[1, inf)")


@in_float32
def next_patch_loss(predicted: Tensor, patches: Tensor, counts: Tensor) -> Tensor:
    """Return the mean over images of the mean squared error over predicted patches and their normalised pixels.

    `predicted`: (M, pixels); `patches`: (M, pixels), not normalised; `counts`: (M,), number of predicted patches of the
    image of each row.

    >>> patches = torch.tensor([[1.0, 3.0], [0.0, 8.0], [5.0, 5.0]])  # the second image has two
    >>> round(float(next_patch_loss(torch.zeros(3, 2), patches, torch.tensor([1, 2, 2]))), 3)  # (0.5 + 0.5 / 2) / 2
    0.375
    """
    errors = (predicted - normalise_patches(patches)).square().mean(dim=1)
    return (errors / counts).sum() / (1 / counts).sum()


def prefix_attention(prefixes: Tensor, tokens: int) -> Tensor:
    """Return the tokens that each token attends to (section 3.2): booleans (B, 1, tokens, tokens).

    `prefixes`: int64 (B,), number of first tokens that attend to each other.

    >>> prefix_attention(torch.tensor([2]), 3).int().squeeze().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    order = torch.arange(tokens, device=prefixes.device)
    return (order <= order[:, None]) | (order < prefixes[:, None, None, None])


class _HeadBlock(nn.Module):
    """Feed-forward network with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(width)
        self.mlp = Mlp(width, 4 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (..., width)."""
        out: Tensor = x + self.mlp(self.norm(x))
        return out


class Method(method.Method[Config]):
    """AIM on views of one size, each a separate sample (the published augmentation makes one)."""

    config_type = Config
    compiled_methods = ("_tokens",)
    backbone: VisionTransformer
    positions: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a plain vision transformer for views of this size, of two patches or more."""
        vit = need_vision_transformer(backbone, setup, method="aim", own_size=True)
        if vit.patch_embed.num_patches < 2:
            raise UsageError(
                "aim predicts each patch from those before it, but the views have one patch",
                "Choose smaller patches (--backbone NAME,patch_size=...) or larger views.",
            )
        if vit.embed_dim % 4:
            raise UsageError(
                f"aim: the backbone's width is {vit.embed_dim}, no multiple of 4, which positions of sines and cosines "
                "need"
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        vit, width = self.backbone, config.head_dim
        self.patch_size: tuple[int, int] = vit.patch_embed.patch_size
        self.register_buffer("positions", sincos(vit.patch_embed.grid_size, vit.embed_dim), persistent=False)
        if not setup.loaded:  # loaded weights keep their values
            initialise(vit, class_token_std=0.02, separate_qkv=False)
        fix_positions(vit, loaded=setup.loaded)
        self.decoder = nn.Sequential(
            nn.Linear(vit.embed_dim, width, bias=False),
            *(_HeadBlock(width) for _ in range(config.head_depth)),
            LayerNorm(width),
            nn.Linear(width, setup.channels * self.patch_size[0] * self.patch_size[1], bias=False),
        )
        for module in self.decoder.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of the patches behind the prefixes."""
        views = len(batch.views)
        images = torch.cat(batch.views) if views > 1 else batch.views[0]
        patches = patchify(images, self.patch_size)
        count, first = patches.shape[1], self.backbone.num_prefix_tokens
        generators = image_generators(self.seed, batch, step)
        prefixes = view_by_view([torch.randint(1, count, (views,), generator=each) for each in generators])
        # The token before a patch predicts it, so the last one predicts none.
        order = torch.arange(count)
        targets, predicting = order >= prefixes[:, None], (order + 1 >= prefixes[:, None]) & (order + 1 < count)
        counts = (count - prefixes).repeat_interleave(count - prefixes).to(images.device, non_blocking=True)
        tokens = self._tokens(images, (prefixes + first).to(images.device, non_blocking=True))[:, first:]
        placed = tokens + self.positions
        predicted = self.decoder(take_rows(placed, masked_rows(predicting, images.device)))
        value = next_patch_loss(predicted, take_rows(patches, masked_rows(targets, images.device)), counts)
        return Loss(value, tokens.mean(1).detach())

    def _tokens(self, images: Tensor, prefixes: Tensor) -> Tensor:
        """Return the normalised tokens (B, prefix + patches, D) of images (B, C, H, W)."""
        tokens = embed(self.backbone, images)
        return run_blocks(self.backbone, tokens, attention=prefix_attention(prefixes, tokens.shape[1]))
