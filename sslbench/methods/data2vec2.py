"""data2vec 2.0 on images: features of masked patches from many masks of one image (Baevski et al., ICML 2023).

Source: arXiv 2212.07525 and the authors' code (fairseq, examples/data2vec). The teacher, a moving average, sees the
whole image once; its averaged, normalised layers are the targets of several students' masks. The student encodes the
visible patches, and a small convolutional decoder predicts all others.

Departures: blocks of timm, which normalise before attention and feed-forward network (in the authors' code after them),
with their initial weights; as there, the targets are outputs of feed-forward networks. Fixed positions are those of
timm's order of dimensions. The weight of the class token's loss is that of a mean over rows.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.masks import image_generators, masked_rows, take_rows, view_by_view
from sslbench.methods._parts.momentum import copy_of, update_copies
from sslbench.methods._parts.vision_transformers import (
    embed,
    fix_positions,
    give_blocks,
    grid_of,
    keep_patches,
    need_class_token,
    need_vision_transformer,
    run_blocks,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of data2vec 2.0."""

    masks: int = setting(16, "number of masks of each image", within="[1, inf)")
    masked: float = setting(0.8, "share of masked patches", within="(0, 1)")
    block: int = setting(3, "side of the visible blocks", unit="patches", within="[1, inf)")
    extra: float = setting(
        0.07, "share of patches by which visible blocks are drawn in excess, as they overlap", within="[0, 1)"
    )
    noise: float = setting(0.01, "standard deviation of the decoder's input at masked patches", within="[0, inf)")
    target_layers: int = setting(
        10, "number of last blocks whose outputs are averaged to targets; at most all are", within="[1, inf)"
    )
    class_weight: float = setting(
        2.56, "weight of the loss of the class token, which predicts the mean target", within="[0, inf)"
    )
    decoder_dim: int = setting(768, "channels of the decoder", within="[1, inf)")
    decoder_layers: int = setting(6, "convolutions of the decoder", within="[1, inf)")
    decoder_kernel: int = setting(3, "side of the decoder's kernels, an odd number", within="[1, inf)")
    decoder_groups: int = setting(16, "groups of the decoder's convolutions", within="[1, inf)")
    momentum: float = setting(0.9998, "decay of the teacher at the start of training", within="[0, 1]")
    final_momentum: float = setting(0.99999, "decay after the rise; linear in between", within="[0, 1]")
    momentum_rise: float = setting(0.2665, "share of the run during which the decay rises", within="[0, 1]")


@in_float32
def regression_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over rows of the squared distance divided by the root of the dimension (the authors' d2v_loss).

    `predicted`: (n, D); `targets`: (n, D), without gradient.

    >>> float(regression_loss(torch.zeros(2, 4), torch.ones(2, 4)))  # 4 / sqrt(4)
    2.0
    """
    return (predicted - targets).square().sum(dim=1).mean() / math.sqrt(predicted.shape[1])


@in_float32
def averaged_targets(outputs: Tensor) -> Tensor:
    """Return the mean of layers, each normalised per image and channel over patches; then normalised over channels.

    `outputs`: (L, B, N, D), of L layers; returns (B, N, D).
    """
    variance, mean = torch.var_mean(outputs, dim=2, keepdim=True, correction=0)
    averaged: Tensor = ((outputs - mean) / (variance + 1e-5).sqrt()).mean(0)
    return functional.layer_norm(averaged, outputs.shape[-1:])


def draw_visible(
    masks: int, grid: tuple[int, int], config: Config, generators: Sequence[torch.Generator | None] = (None,)
) -> Tensor:
    """Return the indices of visible patches (generators, masks, n) in ascending order: random blocks, equally many.

    Blocks are cut at the edges; patches are then dropped or added at random (inverse block masking, section 3.3).
    The masks of an image come from its generator; None: torch's default one.
    """
    rows, columns = grid
    patches = rows * columns
    count = max(int(patches * (1 - config.masked)), 1)
    blocks = max(int(patches * (1 - config.masked + config.extra) / config.block**2), 1)
    draws = [
        (torch.randint(patches, (masks, blocks), generator=each), torch.rand(masks, patches, generator=each))
        for each in generators
    ]
    centres, order = (torch.cat(part) for part in zip(*draws, strict=True))
    reach = torch.arange(config.block) - config.block // 2
    tops = (centres // columns)[..., None] + reach  # (generators * masks, blocks, side)
    lefts = (centres % columns)[..., None] + reach
    covered = tops.clamp(0, rows - 1)[..., :, None] * columns + lefts.clamp(0, columns - 1)[..., None, :]
    inside = torch.zeros_like(order).scatter_(1, covered.flatten(1), 1.0)
    scores = inside + order
    # NumPy finds the least of the chosen scores ten times as fast as torch's topk finds all; topk decides between ties.
    least = np.partition(scores.numpy(), patches - count, axis=1)[:, patches - count]
    chosen = scores >= torch.from_numpy(least)[:, None]
    for row in (chosen.sum(1) != count).nonzero()[:, 0].tolist():
        chosen[row] = torch.zeros(patches).index_fill_(0, scores[row].topk(count).indices, 1).bool()
    return chosen.nonzero()[:, 1].view(len(generators), masks, count)


class ConvolutionalDecoder(nn.Module):
    """Decoder of a grid of tokens: convolutions with normalisation and residuals, then a linear layer."""

    def __init__(self, dim: int, grid: tuple[int, int], config: Config) -> None:
        super().__init__()
        self.grid = grid
        widths = [dim, *[config.decoder_dim] * config.decoder_layers]
        kernel, groups = config.decoder_kernel, config.decoder_groups
        self.layers = nn.ModuleList(
            nn.Conv2d(width, config.decoder_dim, kernel, padding=kernel // 2, groups=groups) for width in widths[:-1]
        )
        self.project = nn.Linear(widths[-1], dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the predictions of all patches: (B, N, D) -> (B, N, D)."""
        x = tokens.mT.reshape(len(tokens), -1, *self.grid)
        for layer in self.layers:
            y = layer(x).permute(0, 2, 3, 1)
            y = functional.gelu(functional.layer_norm(y, y.shape[-1:])).permute(0, 3, 1, 2)
            x = x + y if x.shape == y.shape else y
        predicted: Tensor = self.project(x.flatten(2).mT)
        return predicted


class Method(method.Method[Config]):
    """data2vec 2.0 on views of one size, each a separate sample (the published augmentation makes one)."""

    config_type = Config
    compiled_methods = ("_outputs", "_visible_tokens")
    copies = "teacher_"
    block_methods = ("with_mlp_output",)
    backbone: VisionTransformer

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a plain vision transformer for views of this size, and settings that fit its blocks and widths."""
        vit = need_vision_transformer(backbone, setup, method="data2vec2", own_size=True)
        need_class_token(vit, setup, method="data2vec2")
        for name, width in (("method.decoder_dim", config.decoder_dim), ("the backbone's width", vit.embed_dim)):
            if width % config.decoder_groups or width % 4:
                raise UsageError(
                    f"data2vec2: {name} is {width}, no multiple of method.decoder_groups={config.decoder_groups} and 4"
                )
        if config.decoder_kernel % 2 == 0:
            raise UsageError(f"data2vec2: method.decoder_kernel must be odd, not {config.decoder_kernel}")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        fix_positions(self.backbone, loaded=setup.loaded)
        self.grid = grid_of(self.backbone, setup.sizes[0])
        self.decoder = ConvolutionalDecoder(self.backbone.embed_dim, self.grid, config)
        self.teacher_backbone = copy_of(self.backbone)
        give_blocks(self.teacher_backbone, with_mlp_output)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of masked patches and of the class token."""
        config = self.config
        images = batch.images
        # One pass of the teacher serves all masks of an image.
        with torch.no_grad():
            targets = averaged_targets(self._outputs(images))
        views, generators = len(batch.views), image_generators(self.seed, batch, step)
        drawn = draw_visible(views * config.masks, self.grid, config, generators)
        visible = drawn.view(len(generators), views, config.masks, -1).transpose(0, 1).flatten(0, 2)
        hidden_rows = masked_rows(
            torch.ones(len(visible), targets.shape[1]).bool().scatter(1, visible, False), images.device
        )
        visible = visible.to(images.device, non_blocking=True)
        tokens = self._visible_tokens(images, visible)
        prefix = self.backbone.num_prefix_tokens
        # Normal numbers for all patches of each mask, drawn on the device of the tokens.
        shape = (views, config.masks, targets.shape[1], tokens.shape[2])
        seeds = [int(torch.randint(2**62, (), generator=generator)) for generator in generators]
        on_device = [torch.Generator(tokens.device).manual_seed(seed) for seed in seeds]
        noise = [torch.randn(shape, generator=g, device=tokens.device, dtype=tokens.dtype) for g in on_device]
        hidden = view_by_view(noise).flatten(0, 1) * config.noise
        filled = hidden.scatter(1, visible[..., None].expand(-1, -1, tokens.shape[2]), tokens[:, prefix:])
        repeated = targets.repeat_interleave(config.masks, dim=0)
        of_patches = regression_loss(take_rows(self.decoder(filled), hidden_rows), take_rows(repeated, hidden_rows))
        of_classes = regression_loss(tokens[:, 0], repeated.mean(1))
        parts = {"patch_loss": of_patches.detach(), "class_loss": of_classes.detach()}
        return Loss(of_patches + config.class_weight * of_classes, tokens[:: config.masks, 0].detach().float(), parts)

    def _outputs(self, images: Tensor) -> Tensor:
        """Return the outputs of the teacher's last feed-forward networks for all patches: (L, B, N, D)."""
        vit, outputs = self.teacher_backbone, []
        tokens: Tensor = vit.norm_pre(embed(vit, images))
        blocks: Any = vit.blocks
        for block in blocks:
            tokens, output = block.with_mlp_output(tokens)
            outputs.append(output)
        return torch.stack(outputs[-self.config.target_layers :])[:, :, vit.num_prefix_tokens :]

    def _visible_tokens(self, images: Tensor, visible: Tensor) -> Tensor:
        """Return the student's tokens (B * masks, prefix + n, D) of visible patches (B * masks, n)."""
        tokens = embed(self.backbone, images).repeat_interleave(self.config.masks, dim=0)
        return run_blocks(self.backbone, keep_patches(self.backbone, tokens, visible))

    def after_update(self, step: Step) -> None:
        """Update the teacher."""
        config = self.config
        risen = min(step.where / config.momentum_rise, 1.0) if config.momentum_rise else 1.0
        update_copies(self, config.momentum + (config.final_momentum - config.momentum) * risen)


def with_mlp_output(block: Block, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens (B, n, D) after a block, and the output of its feed-forward network, (B, n, D)."""
    tokens = tokens + block.ls1(block.attn(block.norm1(tokens)))
    output: Tensor = block.mlp(block.norm2(tokens))
    return tokens + block.ls2(output), output
