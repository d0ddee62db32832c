"""Heads on frozen features: layers brought to one grid, a linear head for classes, and bins for depth."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from sslbench.solvers.dense import Normalisation, Spacing
from sslbench.solvers.dense.windows import resized

Layers = Literal["last", "last4", "spread4"]

_WEIGHT_STD = 0.01
_LEAST_WEIGHT = 0.1  # of a bin, so that no distribution sums to 0


def layer_indices(depth: int, layers: Layers) -> list[int]:
    """Return the blocks of a ViT, counted from 0, whose features a head reads.

    The four spread over a ViT-L are those of DINOv2's published heads, which begin with 4 where 5 was meant. Those over
    a depth that four does not divide end with the last block; DINOv3 rounds the step down and stops before it.

    >>> layer_indices(12, "spread4"), layer_indices(24, "spread4")
    ([2, 5, 8, 11], [4, 11, 17, 23])
    """
    if layers == "last":
        return [depth - 1]
    if layers == "last4":
        return list(range(depth - 4, depth))
    return [4, 11, 17, 23] if depth == 24 else [depth * i // 4 - 1 for i in range(1, 5)]


class LinearHead(nn.Module):
    """Linear classifier of grid cells: batch normalisation, dropout of channels, 1 x 1 convolution.

    Weights are drawn from N(0, 0.01), biases are 0. DINOv3 drops channels before the normalisation, DINOv2 after it.
    """

    def __init__(
        self,
        channels: int,
        outputs: int,
        *,
        normalised: bool = True,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """Initialise the head.

        Args:
            channels: of the features.
            outputs: classes, or bins of depth.
            normalised: with batch normalisation. DINOv2's depth head, `BNHead`, has none.
            dropout: share of channels dropped in training, before the normalisation.
            generator: source of the weights.
        """
        super().__init__()
        self.dropout = nn.Dropout2d(dropout)
        self.norm = nn.BatchNorm2d(channels) if normalised else nn.Identity()
        self.classifier = nn.Conv2d(channels, outputs, kernel_size=1)
        nn.init.normal_(self.classifier.weight, std=_WEIGHT_STD, generator=generator)
        nn.init.zeros_(self.classifier.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, outputs, h, w) of features (N, channels, h, w)."""
        logits: Tensor = self.classifier(self.norm(self.dropout(x)))
        return logits


def depth_bins(number: int, low: float, high: float, *, spacing: Spacing = "uniform") -> Tensor:
    """Return the depths (number,) of bins from `low` to `high`, inclusive.

    Logarithmic bins have a constant ratio. (The option "SID" of DINOv2 and probe3d takes the limits as powers of 10,
    and so makes bins of 10^0.001 to 10^10 m of the limits 0.001 and 10 m.)

    >>> [round(depth, 3) for depth in depth_bins(3, 0.1, 10.0, spacing="logarithmic").tolist()]
    [0.1, 1.0, 10.0]
    """
    if spacing == "uniform":
        return torch.linspace(low, high, number)
    ends = torch.log(torch.tensor([low, high], dtype=torch.float64))
    return torch.exp(torch.linspace(float(ends[0]), float(ends[1]), number, dtype=torch.float64)).float()


def depth_from_bins(logits: Tensor, bins: Tensor, *, normalisation: Normalisation = "linear") -> Tensor:
    """Return the expected depth (N, 1, h, w) of distributions over bins.

    Args:
        logits: (N, B, h, w).
        bins: (B,), depths.
        normalisation: 'linear': relu + 0.1, divided by the sum (AdaBins, DINOv2, DINOv3); 'sigmoid': divided by the
            sum; 'softmax'.

    >>> depth_from_bins(torch.tensor([[[[0.9]], [[-1.0]]]]), torch.tensor([1.0, 12.0])).round(decimals=4).tolist()
    [[[[2.0]]]]
    """
    if normalisation == "softmax":
        shares = torch.softmax(logits, dim=1)
    else:
        weights = torch.relu(logits) + _LEAST_WEIGHT if normalisation == "linear" else torch.sigmoid(logits)
        shares = weights / weights.sum(dim=1, keepdim=True)
    return torch.einsum("nbhw,b->nhw", shares, bins.to(shares)).unsqueeze(1)


class ConvHead(nn.Module):
    """Two convolutions of 3 x 3 with batch normalisation and ReLU, then a linear classifier of grid cells.

    It is the head of fully convolutional networks (Long et al., CVPR 2015) as MMSegmentation has it.
    """

    def __init__(
        self, channels: int, outputs: int, *, width: int = 256, normalised: bool = True, dropout: float = 0.0
    ) -> None:
        """Initialise the head from torch's default generator.

        Args:
            channels: of the features.
            outputs: classes, or bins of depth.
            width: channels between the convolutions.
            normalised: with batch normalisation of the features.
            dropout: share of channels dropped before the classifier in training.
        """
        super().__init__()
        self.norm = nn.BatchNorm2d(channels) if normalised else nn.Identity()
        self.convolutions = nn.Sequential(_convolution(channels, width), _convolution(width, width))
        self.classifier = LinearHead(width, outputs, normalised=False, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, outputs, h, w) of features (N, channels, h, w)."""
        logits: Tensor = self.classifier(self.convolutions(self.norm(x)))
        return logits


class DPTHead(nn.Module):
    """Head of dense prediction transformers: several layers at several scales, fused from the coarsest to the finest.

    Ranftl et al., "Vision transformers for dense prediction", ICCV 2021, section 3. Maps of one size, as those of a
    transformer, are brought to 4, 2, 1 and 1/2 times it; maps of a convolutional network keep their sizes. Differences:
    maps are enlarged by interpolation, not by transposed convolutions; the class token is joined to the patches or not
    used; the logits have the size of the finest map.
    """

    def __init__(
        self,
        channels: Sequence[int],
        outputs: int,
        *,
        width: int = 256,
        normalised: bool = True,
        dropout: float = 0.0,
    ) -> None:
        """Initialise the head from torch's default generator.

        Args:
            channels: of each map, from the first layer to the last.
            outputs: classes, or bins of depth.
            width: channels of the fusion.
            normalised: with batch normalisation of the maps.
            dropout: share of channels dropped before the classifier in training.
        """
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(each) if normalised else nn.Identity() for each in channels)
        self.projections = nn.ModuleList(nn.Conv2d(each, width, 3, padding=1, bias=False) for each in channels)
        self.skips = nn.ModuleList(_Residual(width) for _ in channels)
        self.fusions = nn.ModuleList(_Residual(width) for _ in channels)
        self.joins = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in channels)
        self.last = _convolution(width, width)
        self.classifier = LinearHead(width, outputs, normalised=False, dropout=dropout)

    def forward(self, *maps: Tensor) -> Tensor:
        """Return the logits (N, outputs, h', w') of maps (N, channels, h, w), from the first layer to the last."""
        sizes = [(int(x.shape[2]), int(x.shape[3])) for x in maps]
        if len(maps) > 1 and len(set(sizes)) == 1:
            factors = [2.0 ** (len(maps) // 2 - i) for i in range(len(maps))]
            sizes = [(max(1, round(h * f)), max(1, round(w * f))) for (h, w), f in zip(sizes, factors, strict=True)]
        fused: Tensor | None = None
        for i in reversed(range(len(maps))):
            x = self.projections[i](resized(self.norms[i](maps[i]), sizes[i]))
            fused = x if fused is None else resized(fused, sizes[i]) + self.skips[i](x)
            fused = self.joins[i](self.fusions[i](fused))
        logits: Tensor = self.classifier(self.last(fused))
        return logits


class _Residual(nn.Module):
    """Residual unit of RefineNet: two times ReLU and a convolution of 3 x 3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus its change, of the same shape."""
        change: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + change


def _convolution(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
