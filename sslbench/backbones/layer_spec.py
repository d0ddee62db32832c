"""Layers as written, `LAYER[:POOL]`, without torch; `layers` finds them in a backbone."""

import dataclasses

from sslbench.backbones.pool_spec import Pool, parse_pool
from sslbench.errors import UsageError

JOIN = "concat("
"""Beginning of the features of several layers, one after the other."""


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """Layer as written, whose pool exists; a backbone may still lack the layer.

    Attributes:
        name: text before the colon, `fc@input`.
        path: the same without `@input`.
        pool: None where none is written.
        parts: layers that `concat(A,B)` joins; the other attributes are then empty.
    """

    name: str = ""
    path: str = ""
    pool: Pool | None = None
    parts: tuple[str, ...] = ()


def split_layers(text: str) -> list[str]:
    """Split a list of layers at the commas outside parentheses.

    Example:
        >>> split_layers("res4:avg(8,3),res5avg")
        ['res4:avg(8,3)', 'res5avg']

    Raises:
        UsageError: unbalanced parentheses, or nothing between two commas.
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

    Example:
        >>> parse_layer("fc@input")
        LayerSpec(name='fc@input', path='fc', pool=None, parts=())

    Raises:
        UsageError: it is neither, or the pool is not one.
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
