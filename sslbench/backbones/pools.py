"""Pooling of a layer's output to one vector per image.

Shapes: B images, C channels, H x W a spatial map, N tokens, D features. Everything is computed in float32.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  torch's customary name
from torch import Tensor

from sslbench.backbones.layer_spec import MOST_REGIONS, Pool, most_regions
from sslbench.errors import BackboneError

OVERLAP = 0.4  # of neighbouring regions of the first level, as in the paper


_MAP_POOLS = (
    "avg, max, gem(p), rmac(levels), regions(levels), flatten, avg(kernel,stride), adaptive(h,w), adaptive-max(h,w), "
    "grid(h,w)"
)


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


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Layout of a transformer's tokens.

    Attributes:
        prefix: tokens before the patches (class token, registers).
        has_class: true if the first of them is a class token.
    """

    prefix: int = 0
    has_class: bool = False


def apply_pool(x: Tensor, pool: Pool | None, tokens: Tokens, *, layer: str) -> Tensor:
    """Pool to one vector per image: (B, D) float32, a copy; `tokens` and `patches` to one per token, (B, N, C).

    x: (B, C, H, W), (B, N, C) or (B, D); a map of clips, (B, C, T, H, W), counts as its N = T * H * W places.
    pool: None takes the average of a map, the class token of tokens (the mean of the patches where there is none), and
        a vector as it is.
    tokens: layout of the tokens, for (B, N, C).
    """
    x = x.float()
    if x.ndim == 5:
        x, tokens = x.flatten(2).transpose(1, 2), Tokens()
    if pool is not None and pool.of_tokens:
        if x.ndim not in (3, 4):
            raise _no_fit(x, pool, layer, "none (the layer is already a vector)" if x.ndim == 2 else "flatten")
        first = tokens.prefix if pool.name == "patches" else 0
        # The places of a map are its patches.
        pooled = x.flatten(2).transpose(1, 2) if x.ndim == 4 else x[:, first:]
    elif x.ndim == 4:
        pooled = _pool_map(x, pool or Pool("avg"), layer)
    elif x.ndim == 3:
        pooled = _pool_tokens(x, pool or Pool("cls" if tokens.has_class else "mean"), tokens, layer)
    elif x.ndim == 2:
        if pool is not None and pool.name != "flatten":
            raise _no_fit(x, pool, layer, "none (the layer is already a vector)")
        pooled = x
    elif x.ndim > 1 and pool is not None and pool.name == "flatten":
        pooled = x.flatten(1)
    else:
        raise _no_fit(x, pool, layer, "flatten" if x.ndim > 1 else "none")
    # A view would keep the whole map in memory, and change with a later in-place operation.
    if torch.compiler.is_compiling():  # torch.export: tensors without storage
        return pooled.clone()
    return pooled.clone() if pooled.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() else pooled


def _pool_map(x: Tensor, pool: Pool, layer: str) -> Tensor:
    sizes = [int(a) for a in pool.arguments]
    kernel, stride, padding = (*sizes, 0, 0, 0)[:3]
    ways: dict[str, Callable[[], Tensor]] = {
        "avg": lambda: F.avg_pool2d(x, kernel, stride, padding) if sizes else x.mean((2, 3)),
        "max": lambda: x.amax((2, 3)),
        "flatten": lambda: x,
        # Sizes of VISSL's linear benchmark that no plain pooling reaches.
        "adaptive": lambda: F.adaptive_avg_pool2d(x, (sizes[0], sizes[1])),
        "adaptive-max": lambda: F.adaptive_max_pool2d(x, (sizes[0], sizes[1])),
        "gem": lambda: _generalised_mean(x, (2, 3), pool.arguments[0]),
        "rmac": lambda: aggregated(x, sizes[0]),
        "regions": lambda: padded_regions(x, sizes[0]),
        "grid": lambda: x.permute(0, 2, 3, 1),
    }
    name = pool.name.removesuffix("+flip")
    if name not in ways or (name == "grid" and tuple(sizes) != tuple(x.shape[2:])):
        raise _no_fit(x, pool, layer, _MAP_POOLS)
    if pool.name == "avg" and sizes and (min(x.shape[2:]) + 2 * padding < kernel or 2 * padding > kernel):
        raise _no_fit(x, pool, layer, _MAP_POOLS + " with a kernel no larger than the map")
    return ways[name]().flatten(1)


def _pool_tokens(x: Tensor, pool: Pool, tokens: Tokens, layer: str) -> Tensor:
    patches = x[:, tokens.prefix :]  # registers belong to the prefix and are never pooled
    fitting = ["mean", "max", "gem(p)", "flatten"] + (["cls", "cls+mean", "cls+gem(p)"] if tokens.has_class else [])
    if pool.of_grid and pool.regions == patches.shape[1] and (tokens.has_class or "+cls" not in pool.name):
        token = [x[:, :1].expand(-1, pool.regions, -1)] if "+cls" in pool.name else []
        return torch.cat([patches, *token], dim=2).flatten(1)
    fitting += ["grid(h,w)", "grid+cls(h,w)"] if tokens.has_class else ["grid(h,w)"]
    if pool.name not in {name.removesuffix("(p)") for name in fitting}:
        raise _no_fit(x, pool, layer, ", ".join(fitting))
    if pool.name == "cls":
        return x[:, 0]
    if pool.name == "cls+mean":
        return torch.cat([x[:, 0], patches.mean(1)], dim=1)
    if pool.name == "cls+gem":
        return torch.cat([x[:, 0], _generalised_mean(patches, (1,), pool.arguments[0])], dim=1)
    if pool.name == "mean":
        return patches.mean(1)
    if pool.name == "max":
        return patches.amax(1)
    return x.flatten(1) if pool.name == "flatten" else _generalised_mean(patches, (1,), pool.arguments[0])


def _generalised_mean(x: Tensor, dims: Sequence[int], power: float) -> Tensor:
    """Radenovic et al. 2018, eq. 3; values below 1e-6 count as 1e-6, as in their code."""
    return x.clamp(min=1e-6).pow(power).mean(tuple(dims)).pow(1 / power)


def _no_fit(x: Tensor, pool: Pool | None, layer: str, fitting: str) -> BackboneError:
    shape = "x".join(str(n) for n in x.shape[1:]) or "a single number"
    way = f"pooled with '{pool}'" if pool else "made into a vector"
    return BackboneError(
        f"layer '{layer}' gives {shape} per image, which cannot be {way}", f"Pools that fit: {fitting}."
    )
