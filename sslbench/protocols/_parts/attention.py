"""Heads that attend to tokens, from the settings of a protocol: their layers and their structure."""

import dataclasses
from collections.abc import Sequence

from sslbench.backbones.attention import Attention, default_heads
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layer_spec import Pool
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.errors import UsageError
from sslbench.protocols._parts.heads import HeadedSettings


def attention_of(settings: HeadedSettings, features: int) -> Attention | None:
    """Return the structure of the heads on tokens of so many features; None for linear heads."""
    if settings.head == "linear":
        return None
    heads = settings.attention_heads or default_heads(features)
    return Attention(settings.head, settings.queries, heads, settings.mlp_ratio, settings.depth)


def head_layers(backbone: Backbone, layers: Sequence[Layer], settings: HeadedSettings) -> tuple[Layer, ...]:
    """Return the layers as heads take them: as they are, or all tokens or places of each for heads that attend to them.

    Those take the last map in place of the backbone's default layer.

    Raises:
        UsageError: a layer has a pool, or belongs to a head of the weights file.
    """
    if settings.head == "linear":
        return tuple(layers)
    if [layer.text for layer in layers] == [backbone.default_layer]:
        layers = resolve_layers(backbone, [backbone.last_map])
    for layer in layers:
        if layer.pool is not None or layer.head is not None or layer.parts:
            raise UsageError(
                f"{settings.protocol()}: head={settings.head} attends to the tokens of a layer, and '{layer.text}' has "
                "one vector per image",
                f"Name the layer without a pool: {layer.text.partition(':')[0]}."
                if layer.pool
                else "Name a layer with tokens or a map: blocks.11, res5.",
            )
    pool = Pool("patches" if settings.tokens == "patches" else "tokens")
    return tuple(dataclasses.replace(layer, text=f"{layer.text}:{pool}", pool=pool) for layer in layers)
