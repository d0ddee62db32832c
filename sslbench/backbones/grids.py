"""Grids of features: one vector per patch of a transformer, or per cell of a feature map.

The pool `grid(h,w)` keeps them row by row, so that a grid is stored, continued and read like any other features: a row
of (h * w * C) numbers per image. 1.28 M images of 14 x 14 patches and 768 numbers take 385 GB in float16, the 10,582
training images of Pascal VOC at 448 pixels 12.7 GB; nothing of it needs to fit in memory.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layer_spec import SIZED_BY_THE_IMAGE, Pool
from sslbench.backbones.layers import Layer, hooked, map_of, resolve_layers, run, single_layers
from sslbench.errors import BackboneError, UsageError

_KINDS = SIZED_BY_THE_IMAGE


def resolve_grids(backbone: Backbone, specs: Sequence[str], size: tuple[int, int] | None) -> tuple[Layer, ...]:
    """Return layers with the pool `grid(h,w)` of their own height and width."""
    refuse_clips(backbone)
    if size is None:
        raise UsageError(
            f"{backbone.name}: grids of features need images of one size",
            "Give --resize HEIGHTxWIDTH --crop none, such as --resize 448x448 --crop none.",
        )
    grids: dict[str, Layer] = {}
    for spec in specs or [backbone.last_map]:
        kind = next((kind for kind in _KINDS if spec.endswith(f":{kind}")), "")
        layers = resolve_layers(backbone, [spec.removesuffix(f":{kind}") if kind else spec])
        shapes = _shapes(backbone, layers, size)
        resolved = [_with_grid(layer, shapes, kind or _KINDS[0]) for layer in layers]
        grids |= {layer.text: layer for layer in resolved}
    return tuple(grids.values())


def refuse_clips(backbone: Backbone) -> None:
    """Refuse networks of clips, whose tokens lie in space and time."""
    if backbone.kind.frames > 1:
        raise UsageError(
            f"{backbone.name} has tokens of clips, which are no map of an image",
            "Use the network of images (without frames= in its name), or a protocol on one vector per video.",
        )


def last_map_of_cells(backbone: Backbone, size: tuple[int, int]) -> str:
    """Return the name of the last layer whose map of images of a height and width has more than one cell."""
    last = backbone.last_map
    names = [*backbone.aliases]
    for name in reversed(names[: names.index(last) + 1]):
        try:
            (cells,) = _shapes(backbone, resolve_layers(backbone, [name]), size).values()
        except BackboneError:  # no map, or a network that takes other sizes only
            continue
        if max(cells) > 1:
            return name
    return last


def _shapes(backbone: Backbone, layers: Sequence[Layer], size: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Return the height and width of each single layer's grid for images of this size."""
    found: dict[str, tuple[int, int]] = {}
    # The sizes are seen, not computed: padding and strides differ from network to network.
    images = torch.zeros(1, backbone.preprocessing.channels, *size)

    def take(layer: Layer, value: Any) -> None:
        value, tokens = map_of(backbone.module, layer, value, images)
        if value.ndim == 4:
            found[layer.text] = (value.shape[2], value.shape[3])
        elif value.ndim == 3:
            found[layer.text] = grid_of_tokens(value.shape[1] - tokens.prefix, size, layer.text)
        else:
            raise BackboneError(f"layer '{layer.text}' gives one vector per image, which has no grid", "Name another.")

    with torch.inference_mode(), hooked(backbone.module, single_layers(layers), take):
        run(backbone.module, images)
    return found


def grid_of_tokens(n: int, size: tuple[int, int], layer: str) -> tuple[int, int]:
    """Return rows and columns of n patches of an image of this height and width.

    >>> grid_of_tokens(8 * 12, (128, 192), "last")
    (8, 12)
    """
    rows = round(math.sqrt(n * size[0] / size[1]))
    if rows < 1 or n % rows or round(math.sqrt(n * size[1] / size[0])) * rows != n:
        raise BackboneError(
            f"layer '{layer}' gives {n} tokens for an image of {size[0]}x{size[1]} pixels, which is no grid of patches",
            "Name a layer with one token per patch.",
        )
    return rows, n // rows


def _with_grid(layer: Layer, shapes: dict[str, tuple[int, int]], kind: str) -> Layer:
    if layer.parts:
        parts = tuple(_with_grid(part, shapes, kind) for part in layer.parts)
        if len({part.pool for part in parts}) > 1:
            raise UsageError(
                f"layer '{layer.text}' joins grids of different sizes: {', '.join(part.text for part in parts)}"
            )
        return dataclasses.replace(layer, text=f"concat({','.join(part.text for part in parts)})", parts=parts)
    if layer.pool is not None or layer.head is not None:
        raise UsageError(f"layer '{layer.text}': the pool of a grid is grid", f"Write {layer.text.partition(':')[0]}.")
    pool = Pool(kind, shapes[layer.text])
    return dataclasses.replace(layer, text=f"{layer.text}:{pool}", pool=pool)
