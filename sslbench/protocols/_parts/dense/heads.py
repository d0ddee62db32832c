"""Inputs and heads of a run: for each row of results, a head per learning rate on the same maps."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.dense import DenseEncoder, DenseInput, block_inputs, layer_inputs, number_of_blocks
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.errors import UsageError
from sslbench.protocols._parts.dense.task import HeadSettings
from sslbench.runtime.seeds import seeded
from sslbench.solvers.dense import resized
from sslbench.solvers.dense.heads import ConvHead, DPTHead, LinearHead, layer_indices
from sslbench.solvers.dense.pyramids import FPNHead, UPerNetHead

# Name of the colours on the first grid as an input of heads, beginning of that on others; and of their floor.
PIXELS = "pixels"

# Side of the smallest cells that maps are enlarged to, in pixels: a fourth of DINOv2's patches of 14 is 3.5.
_FINEST = 3
# Heads that read the layers joined in one map, and those of a pyramid.
_OF_ONE_MAP: Mapping[str, Callable[..., nn.Module]] = {"linear": LinearHead, "conv": ConvHead}
_OF_PYRAMIDS: Mapping[str, Callable[..., nn.Module]] = {"upernet": UPerNetHead, "fpn": FPNHead}
# Name of a map -> (B, C, h, w).
Maps = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class HeadInput:
    """Maps that a head reads.

    Attributes:
        parts: names of the maps, from the first layer to the last; one for heads of one map.
    """

    row: str
    parts: tuple[str, ...]


def head_inputs(
    backbone: Backbone, layers: Sequence[Layer], settings: HeadSettings, *, protocol: str
) -> tuple[tuple[HeadInput, ...], tuple[DenseInput, ...]]:
    """Return the inputs of heads, and the maps of the encoder that they consist of."""
    blocks, raw = settings.blocks, settings.raw_blocks
    if not blocks and raw == "none":
        joined = layer_inputs(backbone, layers, cls=settings.cls)
    elif (blocks and raw != "none") or (
        # Raises for a backbone without blocks, which has no default layer to compare with.
        number_of_blocks(backbone) and [layer.text for layer in layers] != [backbone.last_map]
    ):
        raise UsageError(
            f"{protocol}: the layers {', '.join(layer.text for layer in layers)}, blocks={list(blocks)} and "
            f"raw_blocks={raw} exclude each other",
            "Give one of --layers, blocks= and raw_blocks=.",
        )
    elif raw == "none":
        joined = block_inputs(backbone, blocks, cls=settings.cls)
    else:
        total = number_of_blocks(backbone)
        if total < 4 and raw != "last":
            raise UsageError(f"{protocol}: raw_blocks={raw} needs four blocks, {backbone.name} has {total}")
        names = [f"blocks.{i}" for i in layer_indices(total, raw)]
        outputs = resolve_layers(backbone, names if len(names) == 1 else [f"concat({','.join(names)})"])
        joined = layer_inputs(backbone, outputs, cls=settings.cls)
    # The others fuse the map of each layer at a resolution of its own.
    if settings.head in _OF_ONE_MAP:
        return tuple(HeadInput(each.name, (each.name,)) for each in joined), joined
    maps: dict[str, DenseInput] = {}
    inputs = []
    for each in joined:
        parts = []
        for layer in each.layers:
            name = f"{layer.text}{', normalised' if each.normalised else ''}"
            maps[name] = dataclasses.replace(each, name=name, layers=(layer,))
            parts.append(name)
        inputs.append(HeadInput(each.name, tuple(parts)))
    return tuple(inputs), tuple(maps.values())


class DenseHead(nn.Module):
    """Head of one input with its learning rate."""

    def __init__(
        self, number: int, input: HeadInput, lr: float, encode: "MapEncoder", outputs: int, settings: HeadSettings
    ) -> None:
        """Initialise from torch's default generator."""
        super().__init__()
        self.number, self.input, self.lr = number, input, lr
        self._upsample = min(settings.upsample, max(1, encode.strides[input.parts[0]] // _FINEST))
        channels = [encode.widths[name] for name in input.parts]
        options: dict[str, Any] = {"normalised": settings.norm, "dropout": settings.dropout}
        options |= {} if settings.width is None else {"width": settings.width}
        if settings.head in _OF_ONE_MAP:
            self.head: nn.Module = _OF_ONE_MAP[settings.head](channels[0], outputs, **options)
        elif settings.head in _OF_PYRAMIDS:
            plain = len({encode.strides[name] for name in input.parts}) == 1
            self.head = _OF_PYRAMIDS[settings.head](channels, outputs, plain=plain, **options)
        else:
            self.head = DPTHead(channels, outputs, **options)

    def forward(self, maps: Maps) -> Tensor:
        """Return (B, outputs, h, w) of maps."""
        parts = [maps[name] for name in self.input.parts]
        if self._upsample > 1:
            size = (parts[0].shape[2] * self._upsample, parts[0].shape[3] * self._upsample)
            parts = [resized(part, size) for part in parts]
        outputs: Tensor = self.head(*parts)
        return outputs

    @property
    def text(self) -> str:
        """Difference from the other heads of its row: 'lr=0.001'."""
        return f"lr={self.lr:g}"


def make_heads(
    inputs: Sequence[HeadInput], encode: "MapEncoder", outputs: int, settings: HeadSettings, *, seed: int
) -> list[DenseHead]:
    """Return the heads: one per input and learning rate, those of an input with the same first weights."""
    heads: list[DenseHead] = []
    for input in inputs:
        for lr in settings.lr:
            # Seeded for each head: rates start from the same weights, and a further input changes no other head.
            with seeded(seed):
                heads.append(DenseHead(len(heads), input, lr, encode, outputs, settings))
    return heads


class MapEncoder:
    """Frozen backbone that gives the maps of all heads, the colours among them.

    Attributes:
        widths: name of a map -> channels.
        strides: name of a map -> rows of pixels for each of its rows.
        pixels_of: name of a map of the backbone -> that of the colours on its grid.
    """

    def __init__(self, encoder: DenseEncoder, channels: int, *, pixels: bool) -> None:
        self.encoder = encoder
        names: dict[int, str] = {}
        self.pixels_of = {
            name: names.setdefault(stride, f"{PIXELS} {name}" if names else PIXELS)
            for name, stride in (encoder.strides.items() if pixels else ())
        }
        strides = {own: encoder.strides[name] for name, own in self.pixels_of.items()}
        self.widths = dict(encoder.widths) | dict.fromkeys(strides, channels)
        self.strides = dict(encoder.strides) | strides

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Return the maps of normalised images whose sides are multiples of the patch."""
        maps = self.encoder(images)
        for name, own in self.pixels_of.items():
            if own not in maps:
                grid = (maps[name].shape[2], maps[name].shape[3])
                maps[own] = functional.adaptive_avg_pool2d(images.to(maps[name]), grid)
        return maps

    def pixel_input(self, input: HeadInput) -> HeadInput:
        """Return the colours on the grids of an input."""
        parts = tuple(self.pixels_of[name] for name in input.parts)
        return HeadInput(", ".join(parts), parts)

    @property
    def multiple(self) -> int:
        """Sides of images are multiples of this."""
        return self.encoder.multiple

    @property
    def device(self) -> torch.device:
        """Device of the backbone."""
        return self.encoder.device


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of images in pixels, multiples of the patch where a network sees them.

    Attributes:
        short_side: that of resized images; None: their own.
        window: of scoring; None: whole images.
    """

    short_side: int | None
    crop: tuple[int, int]
    window: tuple[int, int] | None
    stride: tuple[int, int]

    @property
    def text(self) -> str:
        """Description for a note."""
        side = "their own size" if self.short_side is None else f"a short side of {self.short_side}"
        window = "whole" if self.window is None else f"in windows of {self.window[0]} x {self.window[1]}"
        return f"Images were resized to {side} pixels; crops of {self.crop[0]} x {self.crop[1]}, scored {window}."


def fitted_sizes(settings: HeadSettings, multiple: int, short_side: float, trained: int) -> Sizes:
    """Return the sizes for a backbone and data.

    `settings`: sizes are rounded up to multiples of the patch; `enlarge` says how far they shrink to small data.

    >>> fitted_sizes(HeadSettings(), 14, 480.0, 224)
    Sizes(short_side=490, crop=(490, 490), window=(490, 490), stride=(320, 320))

    >>> fitted_sizes(HeadSettings(enlarge="trained"), 14, 92.0, 224).short_side
    224
    """
    shrink = 1.0
    if settings.size is not None and settings.enlarge != "size":
        side = max(short_side, trained) if settings.enlarge == "trained" else short_side
        shrink = min(1.0, side / settings.size)

    def up(side: float) -> int:
        # Rounding of `shrink` must not lift a side that is a multiple already to the next one.
        return max(1, math.ceil(side * shrink / multiple - 1e-9)) * multiple

    stride = (max(1, round(settings.stride[0] * shrink)), max(1, round(settings.stride[1] * shrink)))
    return Sizes(
        None if settings.size is None else up(settings.size),
        (up(settings.crop[0]), up(settings.crop[1])),
        None if settings.window is None else (up(settings.window[0]), up(settings.window[1])),
        stride,
    )
