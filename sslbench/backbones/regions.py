"""R-MAC: maxima over a fixed grid of square regions (Tolias, Sicre and Jegou, ICLR 2016, section 3.2)."""

import math

import torch
from torch import Tensor

from sslbench.backbones.pool_spec import MOST_REGIONS, most_regions

OVERLAP = 0.4  # of neighbouring regions of the first level, as in the paper


def region_grid(height: int, width: int, levels: int = 3) -> list[tuple[int, int, int]]:
    """Return the squares of all levels as (x, y, size), in cells of a feature map.

    Level l has squares of side 2 min(H, W) / (l + 1), rounded down; levels whose side is 0 have none.

    >>> region_grid(3, 3, levels=1)
    [(0, 0, 3)]
    >>> len(region_grid(7, 7, levels=3))
    14
    """
    shorter, longer = min(height, width), max(height, width)
    gaps = [abs(1 - (longer - shorter) / (steps * shorter) - OVERLAP) for steps in range(1, MOST_REGIONS)]
    more = gaps.index(min(gaps)) + 1 if longer > shorter else 0  # additional regions along the longer side
    squares = []
    for level in range(1, levels + 1):
        side = int(2 * shorter / (level + 1))
        if side == 0:
            break
        rows = _offsets(height, side, level + (more if height > width else 0))
        columns = _offsets(width, side, level + (more if width > height else 0))
        squares += [(x, y, side) for y in rows for x in columns]
    return squares


def _offsets(length: int, side: int, count: int) -> list[int]:
    """Return evenly spaced starts of `count` squares of this side, first to last cell."""
    half = math.floor(side / 2 - 1)
    step = (length - side) / (count - 1) if count > 1 else 0.0
    return [math.floor(half + i * step) - half for i in range(count)]


def region_maxima(maps: Tensor, levels: int = 3) -> Tensor:
    """Return the maximum of every channel in every region, (B, R, C), of feature maps (B, C, H, W)."""
    grid = region_grid(maps.shape[2], maps.shape[3], levels)
    return torch.stack([maps[:, :, y : y + side, x : x + side].amax((2, 3)) for x, y, side in grid], dim=1)


def padded_regions(maps: Tensor, levels: int = 3) -> Tensor:
    """Return the maxima of all regions one after the other, (B, most_regions * C): zeros for those that a map lacks."""
    maxima = region_maxima(maps, levels)
    return torch.nn.functional.pad(maxima, (0, 0, 0, most_regions(levels) - maxima.shape[1])).flatten(1)


def aggregated(maps: Tensor, levels: int = 3) -> Tensor:
    """Return R-MAC without whitening, (B, C): the regions' maxima of unit length, summed, of unit length again."""
    normalise = torch.nn.functional.normalize
    return normalise(normalise(region_maxima(maps, levels), dim=2).sum(dim=1), dim=1)
