"""I-JEPA: prediction of the features of blocks from those of a context (Assran et al., CVPR 2023, arXiv 2301.08243).

A predictor gets the context network's tokens of the visible patches and predicts the tokens that the target network, a
moving average of the context network, computes for four blocks of the whole image.

Departures: timm's initial weights, which are the authors' but for the patch projection. On grids too small for
`min_patches`, smaller contexts are accepted; the authors' code does not end.
"""

import dataclasses
import math
import random
from collections.abc import Sequence

import torch
from timm.layers.norm import LayerNorm
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.masks import block, image_generators, random_numbers, take, unpack, update_generator
from sslbench.methods._parts.momentum import copy_of, update_copies
from sslbench.methods._parts.networks import initialise_linear
from sslbench.methods._parts.vision_transformers import (
    embed,
    fix_positions,
    grid_of,
    keep_patches,
    need_sincos_widths,
    need_vision_transformer,
    run_blocks,
    sincos,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step

Grid = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of I-JEPA."""

    targets: int = setting(4, "number of target blocks of each image", within="[1, inf)")
    target_scale: tuple[float, float] = setting(
        (0.15, 0.2), "range of a target block's share of the image", within="(0, 1]"
    )
    target_aspect: tuple[float, float] = setting(
        (0.75, 1.5), "range of a target block's height / width", within="(0, inf)"
    )
    context_scale: tuple[float, float] = setting(
        (0.85, 1.0), "range of the context block's share of the image", within="(0, 1]"
    )
    min_patches: int = setting(10, "a context has more patches than this, if it can", unit="patches", within="[0, inf)")
    predictor_dim: int = setting(384, "width of the predictor", within="[1, inf)")
    predictor_depth: int = setting(12, "transformer blocks of the predictor", within="[1, inf)")
    predictor_heads: int = setting(16, "attention heads of the predictor", within="[1, inf)")
    momentum: float = setting(0.996, "decay of the target network at the start of training", within="[0, 1]")
    final_momentum: float = setting(1.0, "decay at the end; linear in between", within="[0, 1]")


@in_float32
def prediction_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the smooth L1 loss (Huber's, threshold 1) of predictions and normalised targets, as in the authors' code.

    `targets`: (..., D), normalised over D, without gradient.

    >>> float(prediction_loss(torch.tensor([[0.5, -2.0]]), torch.zeros(1, 2)))  # (0.125 + 1.5) / 2
    0.8125
    """
    return functional.smooth_l1_loss(predicted, targets)


def block_size(grid: Grid, scale: tuple[float, float], aspect: tuple[float, float], draw: float) -> Grid:
    """Return the rows and columns of a block for a number drawn from 0 to 1, which sets both area and aspect ratio.

    >>> block_size((16, 16), (0.85, 1.0), (1.0, 1.0), 0.5)
    (15, 15)
    """
    area = int(grid[0] * grid[1] * (scale[0] + draw * (scale[1] - scale[0])))
    ratio = aspect[0] + draw * (aspect[1] - aspect[0])
    height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    return max(min(height, grid[0] - 1), 1), max(min(width, grid[1] - 1), 1)


def draw_blocks(
    grid: Grid, config: Config, sizes: random.Random, places: Sequence[random.Random]
) -> tuple[Tensor, Tensor]:
    """Return the indices of context patches (images, n) and of target blocks (images, targets, m); section 3."""
    # All images have blocks of the same sizes at their own places. The context is a large block without the targets; of
    # contexts of several sizes the first patches are kept, as many as the smallest has.
    target = block_size(grid, config.target_scale, config.target_aspect, sizes.random())
    context = block_size(grid, config.context_scale, (1.0, 1.0), sizes.random())
    patches, contexts, targets = grid[0] * grid[1], list[int](), list[int]()
    for numbers in places:
        blocks = [_block(grid, target, numbers) for _ in range(config.targets)]
        targets += blocks
        contexts.append(_context(grid, context, blocks, config.min_patches, numbers))
    visible = unpack(contexts, patches)
    shortest = int(visible.sum(1).min())
    of_contexts = (visible & (visible.cumsum(1) <= shortest)).nonzero()[:, 1].view(len(places), shortest)
    of_targets = unpack(targets, patches).nonzero()[:, 1].view(len(places), config.targets, target[0] * target[1])
    return of_contexts, of_targets


def _block(grid: Grid, size: Grid, numbers: random.Random) -> int:
    """Return the mask of a block at a random place; as in the authors' code, never at the far edges."""
    top, left = numbers.randrange(grid[0] - size[0]), numbers.randrange(grid[1] - size[1])
    return block(grid[1], size, top, left)


def _context(grid: Grid, size: Grid, targets: list[int], smallest: int, numbers: random.Random) -> int:
    """Return the mask of a block without the targets; after every 20 blocks that leave too few, one target less."""
    for left_out in range(len(targets), -1, -1):
        for _ in range(20):
            mask = _block(grid, size, numbers)
            for target in targets[:left_out]:
                mask &= ~target
            if mask.bit_count() > smallest:
                return mask
    return mask


class Predictor(nn.Module):
    """Narrow vision transformer from context tokens to the tokens of target patches (appendix A)."""

    positions: Tensor

    def __init__(self, dim: int, grid: Grid, config: Config) -> None:
        super().__init__()
        width = config.predictor_dim
        norm = LayerNorm
        self.embed = nn.Linear(dim, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        blocks = (
            Block(width, config.predictor_heads, qkv_bias=True, norm_layer=norm) for _ in range(config.predictor_depth)
        )
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm(width)
        self.project = nn.Linear(width, dim)
        initialise_linear(self)
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        self.register_buffer("positions", sincos(grid, width), persistent=False)

    def forward(self, tokens: Tensor, context: Tensor, targets: Tensor) -> Tensor:
        """Return the predictions of the target patches, each block by itself.

        `tokens`: (B, prefix + n, dim), of the context; `context`: (B, n), indices of its patches; `targets`: (B, T, m),
        indices of the patches of T blocks; returns (B, T, m, dim).
        """
        b, blocks, patches = targets.shape
        positions = self.positions.expand(b, -1, -1)
        tokens = self.embed(tokens)
        prefix = tokens.shape[1] - context.shape[1]
        seen = torch.cat([tokens[:, :prefix], tokens[:, prefix:] + take(positions, context)], dim=1)
        hidden = self.mask_token + take(positions, targets.flatten(1)).view(b * blocks, patches, -1)
        together = torch.cat([seen.repeat_interleave(blocks, dim=0), hidden.to(seen.dtype)], dim=1)
        predicted: Tensor = self.project(self.norm(self.blocks(together)[:, seen.shape[1] :]))
        return predicted.view(b, blocks, patches, -1)


class Method(method.Method[Config]):
    """I-JEPA on views of one size, each a separate sample (the published augmentation makes one)."""

    config_type = Config
    compiled_methods = ("_tokens",)
    copies = "target_"
    default_export = "teacher"  # evaluated by the authors
    backbone: VisionTransformer

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a plain vision transformer for views of this size, and widths that fit the predictor."""
        vit = need_vision_transformer(backbone, setup, method="ijepa", own_size=True)
        if min(grid_of(vit, setup.sizes[0])) < 3:
            raise UsageError(
                f"ijepa: the views have {grid_of(vit, setup.sizes[0])} patches, too few for blocks",
                "Choose smaller patches (--backbone NAME,patch_size=...) or larger views.",
            )
        if config.predictor_dim % config.predictor_heads:
            raise UsageError(
                f"ijepa: predictor_dim={config.predictor_dim} is no multiple of "
                f"predictor_heads={config.predictor_heads}"
            )
        need_sincos_widths(vit, config.predictor_dim, "method.predictor_dim", method="ijepa")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        fix_positions(self.backbone, loaded=setup.loaded)
        self.grid = grid_of(self.backbone, setup.sizes[0])
        self.predictor = Predictor(self.backbone.embed_dim, self.grid, config)
        self.target_backbone = copy_of(self.backbone)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of the predictions of all target blocks."""
        images = batch.images
        # Sizes are drawn once for an update, so the masks of all images have equal lengths and make one tensor.
        sizes = random_numbers(update_generator(self.seed, step))
        places = [random_numbers(each) for each in image_generators(self.seed, batch, step)]
        blocks = draw_blocks(self.grid, self.config, sizes, places * len(batch.views))
        context, targets = (part.to(images.device, non_blocking=True) for part in blocks)
        with torch.no_grad():
            tokens = self._tokens(self.target_backbone, images)[:, self.backbone.num_prefix_tokens :]
            normalised = in_float32(functional.layer_norm)(tokens, tokens.shape[-1:])
            wanted = take(normalised, targets.flatten(1)).view(*targets.shape, -1)
        predicted = self.predictor(self._tokens(self.backbone, images, context), context, targets)
        return Loss(prediction_loss(predicted, wanted), normalised.mean(1))

    def _tokens(self, vit: VisionTransformer, images: Tensor, patches: Tensor | None = None) -> Tensor:
        """Return the normalised tokens of some patches (B, prefix + n, D), by default of all."""
        tokens = embed(vit, images)
        return run_blocks(vit, tokens if patches is None else keep_patches(vit, tokens, patches))

    def after_update(self, step: Step) -> None:
        """Update the target network."""
        config = self.config
        momentum = config.momentum + (config.final_momentum - config.momentum) * step.where
        update_copies(self, momentum)
