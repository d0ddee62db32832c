"""Heads on frozen features for classes and depth, image sizes and sliding windows."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.solvers.dense import resized

# Function from images (N, C, H, W) to logits (N, K, H, W) of the same height and width.
Forward = Callable[[Tensor], Tensor]


def centre_padded(x: Tensor, multiple: int) -> tuple[Tensor, tuple[slice, slice]]:
    """Return images padded with zeros to multiples of a patch, and the rows and columns of the images in them.

    Half of the padding is on each side, an odd row or column at the lower or right edge. DINOv2 and DINOv3 pad so for
    depth and stretch the map of the padded image to the size of the image, which shifts it; cut it out instead.

    >>> import torch
    >>> padded, (rows, columns) = centre_padded(torch.zeros(1, 3, 30, 37), 14)
    >>> tuple(padded.shape), rows, columns
    ((1, 3, 42, 42), slice(6, 36, None), slice(2, 39, None))
    """
    height, width = x.shape[-2:]
    missing_rows, missing_columns = -height % multiple, -width % multiple
    top, left = missing_rows // 2, missing_columns // 2
    padded = functional.pad(x, (left, missing_columns - left, top, missing_rows - top))
    return padded, (slice(top, top + height), slice(left, left + width))


def window_starts(length: int, window: int, stride: int) -> list[int]:
    """Return the first pixels of windows that cover an axis; the last one is moved back inside.

    >>> window_starts(112, 48, 32), window_starts(40, 48, 32)
    ([0, 32, 64], [0])
    """
    number = max(math.ceil((length - window) / stride), 0) + 1
    return [max(min(i * stride, length - window), 0) for i in range(number)]


def sliding_logits(forward: Forward, images: Tensor, *, window: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Return the logits of images (N, K, H, W), averaged where windows overlap.

    An image that is smaller than the window along an axis is used whole along that axis, as in MMSegmentation. (DINOv3
    does so along one axis; along both it slides squares of the shorter side.)

    Args:
        forward: see `Forward`.
        images: (N, C, H, W).
        window: height and width.
        stride: step between windows, vertical and horizontal.

    >>> import torch
    >>> sliding_logits(lambda x: x.mean(1, keepdim=True), torch.ones(1, 3, 5, 7), window=(4, 4), stride=(2, 2)).shape
    torch.Size([1, 1, 5, 7])
    """
    height, width = images.shape[-2:]
    tops, lefts = (window_starts(*axis) for axis in zip((height, width), window, stride, strict=True))
    number = images.new_zeros(height, width)
    for place, (top, left) in enumerate(itertools.product(tops, lefts)):
        region = (..., slice(top, top + window[0]), slice(left, left + window[1]))
        logits = forward(images[region])
        if place == 0:
            total = logits.new_zeros(*logits.shape[:2], height, width)
        total[region] += logits
        number[region] += 1
    return total / number


Layers = Literal["last", "last4", "spread4"]

_WEIGHT_STD = 0.01


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
        """Initialise the head."""
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


class ConvHead(nn.Module):
    """Two convolutions of 3 x 3 with batch normalisation and ReLU, then a linear classifier of grid cells.

    It is the head of fully convolutional networks (Long et al., CVPR 2015) as MMSegmentation has it.
    """

    def __init__(
        self, channels: int, outputs: int, *, width: int = 256, normalised: bool = True, dropout: float = 0.0
    ) -> None:
        """Initialise the head from torch's default generator."""
        super().__init__()
        self.norm = nn.BatchNorm2d(channels) if normalised else nn.Identity()
        self.convolutions = nn.Sequential(convolution(channels, width), convolution(width, width))
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
        self, channels: Sequence[int], outputs: int, *, width: int = 256, normalised: bool = True, dropout: float = 0.0
    ) -> None:
        """Initialise the head from torch's default generator."""
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(each) if normalised else nn.Identity() for each in channels)
        self.projections = nn.ModuleList(nn.Conv2d(each, width, 3, padding=1, bias=False) for each in channels)
        self.skips = nn.ModuleList(_Residual(width) for _ in channels)
        self.fusions = nn.ModuleList(_Residual(width) for _ in channels)
        self.joins = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in channels)
        self.last = convolution(width, width)
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


def convolution(channels: int, width: int, side: int = 3) -> nn.Sequential:
    """Return a convolution that keeps the size of maps, batch normalisation and ReLU."""
    convolve = nn.Conv2d(channels, width, side, padding=side // 2, bias=False)
    return nn.Sequential(convolve, nn.BatchNorm2d(width), nn.ReLU())
