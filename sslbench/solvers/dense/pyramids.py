"""Heads on a pyramid of maps: UPerNet and the semantic head of feature pyramid networks."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.solvers.dense import resized
from sslbench.solvers.dense.heads import LinearHead, convolution

_FACTORS = (4.0, 2.0, 1.0, 0.5)
_POOLED = (1, 2, 3, 6)


class Pyramid(nn.Module):
    """Maps of one size, brought to 4, 2, 1 and 1/2 times it; maps of several sizes keep theirs.

    Li et al., "Benchmarking detection transfer learning with vision transformers", 2021 (arXiv 2111.11429), section
    3.2: transposed convolutions enlarge, a pooling of 2 x 2 shrinks. MMSegmentation calls it Feature2Pyramid. A single
    map is used at all four sizes, as in ViTDet.

    Attributes:
        channels: of each map of the pyramid, from the finest to the coarsest.
    """

    def __init__(self, channels: Sequence[int], *, plain: bool) -> None:
        """Initialise from torch's default generator; `plain`: the maps have one size."""
        super().__init__()
        self.channels = tuple(channels) * 4 if plain and len(channels) == 1 else tuple(channels)
        n = len(self.channels)
        factors = [_FACTORS[i * 4 // n] if plain else 1.0 for i in range(n)]
        self.enlargings = nn.ModuleList(map(_enlarging, self.channels, factors))
        self._halved = [factor < 1.0 for factor in factors]

    def forward(self, *maps: Tensor) -> list[Tensor]:
        """Return the maps (N, channels, h', w') of the pyramid."""
        maps = maps * (len(self.channels) // len(maps))
        scaled = [enlarging(x) for enlarging, x in zip(self.enlargings, maps, strict=True)]
        # A side of one cell cannot be halved.
        return [
            functional.max_pool2d(x, min(2, *x.shape[-2:])) if halved else x
            for x, halved in zip(scaled, self._halved, strict=True)
        ]


class PyramidHead(nn.Module):
    """Norms of the maps of several layers, and their pyramid."""

    def __init__(self, channels: Sequence[int], *, plain: bool, normalised: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(each) if normalised else nn.Identity() for each in channels)
        self.pyramid = Pyramid(channels, plain=plain)

    def levels(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return the pyramid of maps (N, channels, h, w), from the first layer to the last."""
        levels: list[Tensor] = self.pyramid(*(norm(x) for norm, x in zip(self.norms, maps, strict=True)))
        return levels


class UPerNetHead(PyramidHead):
    """Head of UPerNet: pooled context on the coarsest map, then fusion from the coarsest to the finest.

    Xiao et al., "Unified perceptual parsing for scene understanding", ECCV 2018, section 3; scales of pooling, 512
    channels and convolutions without bias are those of MMSegmentation. The coarsest map is the last.
    """

    def __init__(
        self,
        channels: Sequence[int],
        outputs: int,
        *,
        plain: bool,
        width: int = 512,
        normalised: bool = True,
        dropout: float = 0.0,
    ) -> None:
        """Initialise from torch's default generator; `plain`: the maps have one size."""
        super().__init__(channels, plain=plain, normalised=normalised)
        *finer, coarsest = self.pyramid.channels
        self.pooled = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(side), convolution(coarsest, width, 1)) for side in _POOLED
        )
        self.context = convolution(coarsest + len(_POOLED) * width, width)
        self.laterals = nn.ModuleList(convolution(each, width, 1) for each in finer)
        self.smoothings = nn.ModuleList(convolution(width, width) for _ in finer)
        self.fusion = convolution(len(self.pyramid.channels) * width, width)
        self.classifier = LinearHead(width, outputs, normalised=False, dropout=dropout)

    def forward(self, *maps: Tensor) -> Tensor:
        """Return the logits (N, outputs, h', w') of maps (N, channels, h, w), from the first layer to the last."""
        *finer, last = self.levels(maps)
        size = (int(last.shape[2]), int(last.shape[3]))
        fused = self.context(torch.cat([last, *(resized(pool(last), size) for pool in self.pooled)], dim=1))
        levels = [fused]
        for x, lateral, smoothing in reversed(list(zip(finer, self.laterals, self.smoothings, strict=True))):
            lower = lateral(x)
            fused = lower + resized(fused, (int(lower.shape[2]), int(lower.shape[3])))
            levels.insert(0, smoothing(fused))
        finest = (int(levels[0].shape[2]), int(levels[0].shape[3]))
        logits: Tensor = self.classifier(self.fusion(torch.cat([resized(x, finest) for x in levels], dim=1)))
        return logits


class FPNHead(PyramidHead):
    """Semantic head of feature pyramid networks: every level is enlarged step by step to the finest, then summed.

    Kirillov et al., "Panoptic feature pyramid networks", CVPR 2019, section 3; 256 channels of the pyramid, 128 of the
    head, and batch normalisation in place of group normalisation as in MMSegmentation.
    """

    def __init__(
        self,
        channels: Sequence[int],
        outputs: int,
        *,
        plain: bool,
        width: int = 256,
        normalised: bool = True,
        dropout: float = 0.0,
    ) -> None:
        """Initialise from torch's default generator; `plain`: the maps have one size."""
        super().__init__(channels, plain=plain, normalised=normalised)
        self.laterals = nn.ModuleList(nn.Conv2d(each, width, 1) for each in self.pyramid.channels)
        self.smoothings = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in self.pyramid.channels)
        narrow, n = width // 2, len(self.pyramid.channels)
        self.enlargings = nn.ModuleList(
            nn.ModuleList(convolution(width if step == 0 else narrow, narrow) for step in range(max(1, i * 4 // n)))
            for i in range(n)
        )
        self.classifier = LinearHead(narrow, outputs, normalised=False, dropout=dropout)

    def forward(self, *maps: Tensor) -> Tensor:
        """Return the logits (N, outputs, h', w') of maps (N, channels, h, w), from the first layer to the last."""
        levels = [lateral(x) for lateral, x in zip(self.laterals, self.levels(maps), strict=True)]
        for i in range(len(levels) - 1, 0, -1):
            # Nearest, as in feature pyramid networks of detectors.
            levels[i - 1] = levels[i - 1] + functional.interpolate(levels[i], size=levels[i - 1].shape[-2:])
        levels = [smoothing(x) for smoothing, x in zip(self.smoothings, levels, strict=True)]
        finest = (int(levels[0].shape[2]), int(levels[0].shape[3]))
        summed = []
        for level, steps in zip(levels, self.enlargings, strict=True):
            x = level
            for step in cast("nn.ModuleList", steps):
                x = step(x)
                if x.shape[-1] < finest[1]:
                    x = functional.interpolate(x, scale_factor=2.0, mode="bilinear")
            summed.append(resized(x, finest))
        logits: Tensor = self.classifier(torch.stack(summed).sum(dim=0))
        return logits


def _enlarging(width: int, factor: float) -> nn.Module:
    """Return the transposed convolutions that enlarge a map by 1, 2 or 4."""
    if factor <= 1.0:
        return nn.Identity()
    twice = nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)
    if factor == 2.0:
        return twice
    return nn.Sequential(twice, nn.BatchNorm2d(width), nn.GELU(), nn.ConvTranspose2d(width, width, 2, stride=2))
