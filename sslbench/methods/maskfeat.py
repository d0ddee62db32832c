"""MaskFeat: prediction of the HOG features of masked patches (Wei et al., CVPR 2022, arXiv 2112.09133).

The network sees all patches, the masked ones as a mask token. The targets are histograms of oriented gradients of the
unmasked view. Patches are masked in rectangles.

Departures: plain vision transformers of timm; the Gaussian that weighs gradients covers a patch of any size (published:
16 pixels).
"""

import dataclasses
import math

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.masks import filled_masks_of, masked_rows, need_masked_count, patchify, take_rows
from sslbench.methods._parts.vision_transformers import embed, grid_of, need_vision_transformer, run_blocks
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step

_ALONG = 1e-4  # tangent of the angle up to which a gradient is along an axis


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of MaskFeat."""

    masked: float = setting(0.4, "share of masked patches, rounded down", within="(0, 1)")
    smallest_block: int = setting(15, "least area of a masked rectangle", unit="patches", within="[1, inf)")
    cell: int = setting(8, "side of the cells that have a histogram each", unit="pixels", within="[1, inf)")
    bins: int = setting(9, "orientations of a histogram, from 0 to 180 degrees", within="[2, inf)")


@torch.no_grad()
@in_float32
def hog(images: Tensor, patch: tuple[int, int], *, cell: int, bins: int) -> Tensor:
    """Return the histograms of oriented gradients of each patch, cell by cell (section 3.3 and the authors' code).

    Gradients are Sobel's, of each channel. A histogram has length 1; a cell without gradients has zeros.

    `images`: (B, C, H, W); `patch`: height and width of a patch in pixels, multiples of `cell`; returns (B, patches,
    cells * C * bins).

    >>> ramp = torch.arange(8.0).expand(1, 1, 8, 8)  # brighter to the right, so all gradients have one orientation
    >>> hog(ramp, (8, 8), cell=8, bins=2).squeeze().abs().round(decimals=3).tolist()
    [0.0, 1.0]
    """
    bordered = functional.pad(images, (1, 1, 1, 1), mode="reflect")
    # Sobel's filters: differences along one axis of sums of three along the other, the middle one twice.
    upright = bordered[..., :-2, :] + 2 * bordered[..., 1:-1, :] + bordered[..., 2:, :]
    level = bordered[..., :-2] + 2 * bordered[..., 1:-1] + bordered[..., 2:]
    x, y = upright[..., :-2] - upright[..., 2:], level[..., :-2, :] - level[..., 2:, :]
    # A gradient along an axis lies between the first and the last orientation, of which rounding would choose one.
    across = torch.where(x.abs() < _ALONG * y.abs(), 0.0, x)
    orientation = (torch.atan2(across, y) / math.pi * bins).floor() % bins
    (height, width), (rows, columns) = patch, images.shape[-2:]
    strength = torch.hypot(x, y)
    strength *= _bell(height, images)[:, None].tile(rows // height, 1) * _bell(width, images).tile(columns // width)
    # One orientation after the other, as a tensor of all orientations of all pixels would be `bins` times the images.
    sums = [functional.avg_pool2d(strength * (orientation == i), cell, divisor_override=1) for i in range(bins)]
    histograms = functional.normalize(torch.stack(sums, dim=2), dim=2).flatten(1, 2)
    return patchify(histograms, (height // cell, width // cell))


def _bell(side: int, like: Tensor) -> Tensor:
    """Return a Gaussian over the pixels of a patch, with half its side as standard deviation: (side,)."""
    pixels = torch.arange(side, dtype=like.dtype, device=like.device)
    return torch.exp(-0.5 * ((pixels - pixels.mean()) / max(side // 2, 1)) ** 2)


@in_float32
def hog_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error over masked patches and entries of histograms (M, d).

    >>> float(hog_loss(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]])))
    5.0
    """
    return functional.mse_loss(predicted, targets)


class Method(method.Method[Config]):
    """MaskFeat on views of one size, each a separate sample (the published augmentation makes one)."""

    config_type = Config
    compiled_methods = ("_tokens",)
    backbone: VisionTransformer

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a plain vision transformer for views of this size, whose patches are made of cells."""
        vit = need_vision_transformer(backbone, setup, method="maskfeat", own_size=True)
        need_masked_count(config.masked, vit.patch_embed.num_patches, method="maskfeat")
        height, width = vit.patch_embed.patch_size
        if height % config.cell or width % config.cell:
            side = math.gcd(height, width)
            divisors = [number for number in range(1, side + 1) if side % number == 0]
            nearest = min(divisors, key=lambda number: abs(number - config.cell))
            raise UsageError(
                f"maskfeat: cells of {config.cell} pixels do not cover patches of {height} x {width} pixels",
                f"Set method.cell={nearest}.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        vit = self.backbone
        self.grid = grid_of(vit, setup.sizes[0])
        self.patch_size: tuple[int, int] = vit.patch_embed.patch_size
        self.masked = int(config.masked * self.grid[0] * self.grid[1])
        self.mask_token = nn.Parameter(torch.empty(1, vit.embed_dim))
        cells = (self.patch_size[0] // config.cell) * (self.patch_size[1] // config.cell)
        self.decoder = nn.Linear(vit.embed_dim, cells * setup.channels * config.bins)
        for parameter in (self.mask_token, self.decoder.weight):
            nn.init.trunc_normal_(parameter, std=0.02)
        nn.init.zeros_(self.decoder.bias)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of the masked patches."""
        config = self.config
        images = batch.images
        mask = filled_masks_of(batch, step, self.seed, self.grid, self.masked, smallest=config.smallest_block)
        rows = masked_rows(mask, images.device)
        tokens = self._tokens(images, mask.to(images.device, non_blocking=True))[:, self.backbone.num_prefix_tokens :]
        targets = hog(images, self.patch_size, cell=config.cell, bins=config.bins)
        value = hog_loss(self.decoder(take_rows(tokens, rows)), take_rows(targets, rows))
        return Loss(value, tokens.mean(1).detach())

    def _tokens(self, images: Tensor, mask: Tensor) -> Tensor:
        """Return the normalised tokens (B, prefix + patches, D)."""
        return run_blocks(self.backbone, embed(self.backbone, images, mask, self.mask_token))
