"""Pooling of a layer's output to one vector per image.

Shapes: B images, C channels, H x W a spatial map, N tokens, D features. Everything is computed in float32.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  torch's customary name
from torch import Tensor

from sslbench.backbones.regions import aggregated, most_regions, padded_regions
from sslbench.errors import BackboneError, UsageError
from sslbench.names import did_you_mean

# name -> smallest and largest number of arguments
_ARGUMENTS = {
    "avg": (0, 3),
    "max": (0, 0),
    "flatten": (0, 0),
    "adaptive": (2, 2),
    "adaptive-max": (2, 2),
    "gem": (0, 1),
    "cls": (0, 0),
    "mean": (0, 0),
    "cls+mean": (0, 0),
    "cls+gem": (0, 1),
    "rmac": (0, 1),
    "regions": (0, 1),
    "vissl": (0, 0),
    "grid": (2, 2),
    "grid+cls": (2, 2),
    "grid+flip": (2, 2),
    "grid+cls+flip": (2, 2),
}
_MAP_POOLS = (
    "avg, max, gem(p), rmac(levels), regions(levels), flatten, avg(kernel,stride), adaptive(h,w), adaptive-max(h,w), "
    "grid(h,w)"
)
GEM_POWER = 3.0  # Radenovic et al. 2018, initial value
FILE_POWER = "file"
"""Argument of `gem` in place of a number: the power that was learnt with the network."""
_POWERED = ("gem", "cls+gem")
RMAC_LEVELS = 3.0  # Tolias et al. 2016
_MOST_LEVELS = 8
_DEFAULTS = {"gem": (GEM_POWER,), "cls+gem": (GEM_POWER,), "rmac": (RMAC_LEVELS,), "regions": (RMAC_LEVELS,)}


@dataclasses.dataclass(frozen=True)
class Pool:
    """Pool, as written after a layer's name: `avg`, `avg(8,3)`, `cls+mean`.

    `gem` without an argument is `gem(file)`, before the power in the weights file replaces it.
    """

    name: str
    arguments: tuple[float, ...] = ()

    @property
    def needs_file_power(self) -> bool:
        """True for `gem(file)`, whose power is still to be taken from the weights file."""
        return self.name in _POWERED and not self.arguments

    @property
    def of_grid(self) -> bool:
        """True for `grid`, a vector for each cell; `+cls` joins the class token, `+flip` averages mirror images."""
        return self.name.startswith("grid")

    @property
    def regions(self) -> int:
        """Number of regions, each with a descriptor of its own, in one vector; 1 for most pools."""
        if self.of_grid:
            return int(self.arguments[0]) * int(self.arguments[1])
        return most_regions(int(self.arguments[0])) if self.name == "regions" else 1

    def __str__(self) -> str:
        numbers = FILE_POWER if self.needs_file_power else ",".join(f"{a:g}" for a in self.arguments)
        return f"{self.name}({numbers})" if numbers else self.name


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Layout of a transformer's tokens.

    Attributes:
        prefix: tokens before the patches (class token, registers).
        has_class: whether the first of them is a class token.
    """

    prefix: int = 0
    has_class: bool = False


def parse_pool(text: str) -> Pool:
    """Parse `NAME` or `NAME(numbers)`, or `gem(file)`.

    Example:
        >>> str(parse_pool("avg(8)"))
        'avg(8,8)'

    Raises:
        UsageError: no such pool, or it does not take these numbers.
    """
    found = re.fullmatch(r"([a-z+-]+)(?:\(([^()]*)\))?", text.replace(" ", ""))
    if not found or found[1] not in _ARGUMENTS:
        raise UsageError(f"there is no pool '{text}'", did_you_mean(found[1] if found else text, _ARGUMENTS))
    if found[1] in _POWERED and found[2] == FILE_POWER:
        return Pool(found[1])
    try:
        numbers = tuple(float(n) for n in found[2].split(",")) if found[2] else ()
    except ValueError:
        raise UsageError(f"the pool '{text}' has an argument that is not a number") from None
    name, (fewest, most) = found[1], _ARGUMENTS[found[1]]
    whole = name in _POWERED or all(n == int(n) and n >= 0 for n in numbers)
    if name == "avg" and len(numbers) == 1:
        numbers = (numbers[0], numbers[0])  # AvgPool2d's default: stride = kernel
    positive = all(n > 0 for n in numbers[:2]) and (
        name not in ("rmac", "regions") or max(numbers, default=1) <= _MOST_LEVELS
    )
    if not fewest <= len(numbers) <= most or not whole or not positive:
        usage = (
            "avg, avg(kernel), avg(kernel,stride), avg(kernel,stride,padding), adaptive(h,w), adaptive-max(h,w), gem, "
            "gem(p), gem(file), max, flatten, cls+gem(p), cls+gem(file), "
            f"rmac(levels), regions(levels) of up to {_MOST_LEVELS} levels"
        )
        raise UsageError(f"the pool '{text}' does not take these arguments", f"Valid forms: {usage}.")
    if name == "avg" and len(numbers) == 3 and numbers[2] == 0:
        numbers = numbers[:2]
    return Pool(name, numbers or _DEFAULTS.get(name, ()))


def apply_pool(x: Tensor, pool: Pool | None, tokens: Tokens, *, layer: str) -> Tensor:
    """Pool to one vector per image: (B, D) float32, a copy.

    Args:
        x: (B, C, H, W), (B, N, C) or (B, D).
        pool: None takes the average of a map, the class token of tokens (the mean of the patches where there is none),
            and a vector as it is.
        tokens: layout of the tokens, for (B, N, C).
        layer: for messages.

    Raises:
        BackboneError: this shape cannot be pooled that way; the message lists the pools that fit.
    """
    x = x.float()
    if x.ndim == 4:
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
    patches = x[:, tokens.prefix :]
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
