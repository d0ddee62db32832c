"""One object per image by LOST, TokenCut or DINO-seg, from maps of a frozen backbone."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sslbench.arrays import FloatArray
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.dense import DenseInput, layer_inputs
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.errors import UsageError
from sslbench.protocols._parts.map_settings import SearchSettings
from sslbench.protocols._parts.own_sizes import MappedImage, attention_block
from sslbench.solvers.discovery import DiscoveredObject, dino_seg


@dataclasses.dataclass(frozen=True)
class SearchedMap:
    """Map in which objects are searched: one row of results.

    Attributes:
        name: of the row.
        inputs: maps of the encoder that it takes: one, or for DINO-seg keys and queries.
        heads: number of heads of the attention; 0 if it is not used.
    """

    name: str
    inputs: tuple[DenseInput, ...]
    heads: int = 0

    def object_of(self, image: MappedImage, search: SearchSettings) -> tuple[DiscoveredObject | None, tuple[int, int]]:
        """Return the object of an image, None if there is none, and rows and columns of the map."""
        found = image.maps[self.inputs[0].name]
        grid = int(found.shape[1]), int(found.shape[2])
        if self.heads:
            attention = class_attention(found, image.maps[self.inputs[1].name], self.heads, search.head)
            return dino_seg(attention, grid, mass=search.mass), grid
        features = found.flatten(1).T.double().numpy()
        return search.in_features(features if self.inputs[0].facet != "token" else standardised(features), grid), grid

    def object_in_pixels(self, image: MappedImage, search: SearchSettings) -> DiscoveredObject | None:
        """Return the object that LOST or TokenCut finds in the mean colours of the same cells; None for DINO-seg."""
        if self.heads:
            return None
        height, width = image.maps[self.inputs[0].name].shape[1:]
        colours = nn.functional.adaptive_avg_pool2d(image.encoded, (height, width)).flatten(1).T.double().numpy()
        return search.in_features(colours - colours.mean(axis=0), (int(height), int(width)))


def searched_maps(backbone: Backbone, layers: Sequence[Layer], settings: SearchSettings) -> tuple[SearchedMap, ...]:
    """Return a map per layer.

    Args:
        backbone: any.
        layers: layers of the backbone.
        settings: method and features; 'auto' takes keys of the last block with attention up to the layer, where there
            is one, and else the layer's own map.

    Raises:
        UsageError: a layer has no keys or no attention of the kind that is needed.
    """
    features = settings.features
    found: dict[str, SearchedMap] = {}
    for layer in layers:
        block = attention_block(backbone, layer)
        if settings.method == "dino_seg":
            each = _attention_map(backbone, layer, block, settings.head)
        elif features == "token" or (features == "auto" and block is None):
            (own,) = layer_inputs(backbone, [layer])
            each = SearchedMap(own.name, (own,))
        else:
            facet = "key" if features == "auto" else features
            chosen = [layer] if block is None else resolve_layers(backbone, [block])
            (own,) = layer_inputs(backbone, chosen, facet=facet)
            each = SearchedMap(own.name, (own,))
        found[each.name] = each
    return tuple(found.values())


def maps_of_rows(
    backbone: Backbone, layers: Sequence[Layer], settings: SearchSettings
) -> dict[str, tuple[DenseInput, ...]]:
    """Return the rows of results, 'blocks.11@key', with the maps of each; see `searched_maps`."""
    return {each.name: each.inputs for each in searched_maps(backbone, layers, settings)}


def _attention_map(backbone: Backbone, layer: Layer, block: str | None, head: int) -> SearchedMap:
    """Return the attention of the class token in a block.

    Raises:
        UsageError: the layer has none, or not as many heads.
    """
    if block is None:
        raise UsageError(
            f"dino_seg takes the attention of a class token; layer '{layer.text}' of {backbone.name} has none",
            "Use a vision transformer, or method=lost.",
        )
    modules = dict(backbone.module.named_modules())
    attention = modules[f"{block}.attn"]
    heads = int(vars(attention).get("num_heads", 0))
    plain = isinstance(modules.get(f"{block}.attn.q_norm", nn.Identity()), nn.Identity) and "rope" not in modules
    if not heads or not plain:
        raise UsageError(
            f"dino_seg: the attention of {backbone.name} is more than the product of queries and keys",
            "Use method=lost or method=tokencut.",
        )
    if head >= heads:
        raise UsageError(f"dino_seg: head={head}, but {block} of {backbone.name} has the heads 0 to {heads - 1}")
    chosen = resolve_layers(backbone, [block])
    keys = layer_inputs(backbone, chosen, facet="key")
    queries = layer_inputs(backbone, chosen, facet="query", cls=True)
    return SearchedMap(f"{block}@attention", (*keys, *queries), heads)


def class_attention(keys: Tensor, queries: Tensor, heads: int, head: int) -> FloatArray:
    """Return the attention of the class token to the patches (P,) in one head, as a share of all patches.

    >>> keys = torch.tensor([[[0.0, 0.0]], [[0.0, 5.0]]])
    >>> class_attention(keys, torch.ones(4, 1, 2), heads=2, head=1).round(3).tolist()
    [0.007, 0.993]

    Args:
        keys: (C, h, w).
        queries: (2 C, h, w), of the patches, then of the class token at every place.
        heads: number of heads.
        head: one of them.
    """
    width = keys.shape[0]
    part = slice(head * (width // heads), (head + 1) * (width // heads))
    query = queries[width:, 0, 0][part].double()
    scores = query @ keys[part].flatten(1).double() / (width // heads) ** 0.5
    return np.asarray(torch.softmax(scores, dim=0).numpy())


def standardised(features: FloatArray) -> FloatArray:
    """Return features (P, C) of mean 0 and variance 1 over the whole map, as LOST does with ResNets.

    Behind a ReLU all products are positive, so that no patch could be told from another.

    >>> standardised(np.array([[0.0, 2.0], [2.0, 0.0]])).round(3).tolist()
    [[-1.0, 1.0], [1.0, -1.0]]
    """
    return np.asarray((features - features.mean()) / np.sqrt(features.var() + 1e-5))


def centred_box(size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return a box in the centre of an image of this height and width, with half of its area.

    >>> [round(side) for side in centred_box((100, 200))]
    [29, 15, 171, 85]
    """
    height, width = size
    margin = (1 - math.sqrt(0.5)) / 2
    return margin * width, margin * height, (1 - margin) * width, (1 - margin) * height
