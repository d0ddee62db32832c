"""Layers, pools and stems as written, `LAYER[:POOL]` and `--stem RULE`, without torch.

`layers`, `pools` and `stems` compute them.
"""

import dataclasses
import re
from typing import Literal

from sslbench.errors import UsageError
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
    "tokens": (0, 0),
    "patches": (0, 0),
}
GEM_POWER = 3.0  # Radenovic et al. 2018, initial value
# Argument of `gem` in place of a number: the power that was learnt with the network.
FILE_POWER = "file"
_POWERED = ("gem", "cls+gem")
RMAC_LEVELS = 3.0  # Tolias et al. 2016
_MOST_LEVELS = 8
_DEFAULTS = {"gem": (GEM_POWER,), "cls+gem": (GEM_POWER,), "rmac": (RMAC_LEVELS,), "regions": (RMAC_LEVELS,)}
# Pools whose arguments may be left out where `grids` finds the size of the map.
SIZED_BY_THE_IMAGE = ("grid", "grid+cls", "grid+flip", "grid+cls+flip")
MOST_REGIONS = 7  # along the longer side of the first level, as in the code of R-MAC's authors


# Beginning of the features of several layers, one after the other.
JOIN = "concat("
# Output of a block, or one of the three parts of what its attention computes from a token.
Facet = Literal["token", "query", "key", "value"]


def most_regions(levels: int) -> int:
    """Return the largest number of regions that any map has: l (l + 6) at level l.

    >>> most_regions(3)
    50
    """
    return sum(level * (level + MOST_REGIONS - 1) for level in range(1, levels + 1))


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
    def of_tokens(self) -> bool:
        """True for `tokens` and `patches`, which keep a vector per token, for heads that attend to them."""
        return self.name in ("tokens", "patches")

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
        # Powers of GeM that were learnt have more digits than six.
        texts = (f"{a:g}" if float(f"{a:g}") == a else repr(float(a)) for a in self.arguments)
        numbers = FILE_POWER if self.needs_file_power else ",".join(texts)
        return f"{self.name}({numbers})" if numbers else self.name


def parse_pool(text: str) -> Pool:
    """Parse `NAME` or `NAME(numbers)`, or `gem(file)`.

    >>> str(parse_pool("avg(8)"))
    'avg(8,8)'
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


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """Layer as written, whose pool exists; a backbone may still lack the layer.

    Attributes:
        name: text before the colon, `fc@input`.
        pool: None where none is written.
        parts: layers that `concat(A,B)` joins; the other attributes are then empty.
    """

    name: str = ""
    path: str = ""
    pool: Pool | None = None
    parts: tuple[str, ...] = ()


def split_layers(text: str) -> list[str]:
    """Split a list of layers at the commas outside parentheses.

    >>> split_layers("res4:avg(8,3),res5avg")
    ['res4:avg(8,3)', 'res5avg']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
        if depth < 0:
            break
    parts = [part.strip() for part in parts]
    if depth != 0 or not all(parts):
        raise UsageError(f"'{text}' is not a list of layers", "Write LAYER[:POOL],LAYER[:POOL]: res4:avg(8,3),res5avg")
    return parts


def parse_layer(text: str) -> LayerSpec:
    """Parse `LAYER[:POOL]`, where LAYER may be `PATH@input`; or `concat(A,B)`.

    >>> parse_layer("fc@input")
    LayerSpec(name='fc@input', path='fc', pool=None, parts=())
    """
    if text.startswith(JOIN) and text.endswith(")"):
        parts = tuple(split_layers(text[len(JOIN) : -1]))
        for part in parts:
            parse_layer(part)
        return LayerSpec(parts=parts)
    name, colon, pool = text.replace(" ", "").partition(":")
    if colon and not pool:
        raise UsageError(f"layer '{text}' names no pool after the colon")
    path, at, side = name.partition("@")
    if at and side != "input":
        raise UsageError(f"layer '{text}': only '@input' may follow a module's path", f"Write {path}@input or {path}.")
    return LayerSpec(name, path, parse_pool(pool) if pool else None)


StemName = Literal["repeat", "average", "sum", "bands", "random"]
_PLAIN_STEMS: tuple[StemName, ...] = ("repeat", "average", "sum", "random")
STEM_REMEDY = (
    "Write --stem average, repeat, sum, random, or bands=3,2,1 (one input band per channel of the file; '-': none)."
)


@dataclasses.dataclass(frozen=True)
class StemRule:
    """Rule that maps stem weights from C to N channels.

    Attributes:
        name: 'repeat': cycled, times C/N (Ross Wightman's rule, as in timm). 'average': the mean of the C for each of
            the N, times C/N: a grey picture repeated N times gives what it gave repeated C times, for any N. 'sum': the
            C added up, N is 1; the same as 'average' there. 'bands': each of the C for one band, zeros for the others.
            'random': the weights of the file are left out.
        bands: for each of the C the input band (from 0) that it is for, or None.
    """

    name: StemName
    bands: tuple[int | None, ...] = ()


def parse_stem(text: str) -> StemRule:
    """Parse 'repeat', 'average', 'sum', 'random' or 'bands=3,2,1'."""
    head, equals, rest = text.replace(" ", "").partition("=")
    if not equals:
        for name in _PLAIN_STEMS:
            if head == name:
                return StemRule(name)
    if head != "bands":
        hint = did_you_mean(head, {*_PLAIN_STEMS, "bands"})
        raise UsageError(f"--stem {text} is not a rule", f"{hint} {STEM_REMEDY}".strip())
    parts = rest.split(",")
    if not all(part == "-" or part.isdecimal() for part in parts):
        raise UsageError(f"--stem {text}: bands are numbers from 0, separated by commas", STEM_REMEDY)
    bands = tuple(None if part == "-" else int(part) for part in parts)
    named = [band for band in bands if band is not None]
    if not named or len(set(named)) < len(named):
        raise UsageError(f"--stem {text}: {'a band is named twice' if named else 'no band is named'}", STEM_REMEDY)
    return StemRule("bands", bands)
