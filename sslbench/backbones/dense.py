"""Maps of features: a vector per patch of a transformer or per cell of a feature map, for images of any size.

`grids` brings such maps into rows of a feature store, for images of one size. This encoder gives them one batch at a
time, for tasks that need crops, windows or images of their own sizes.

Shapes: B images of H x W pixels, maps of h x w cells with C channels.
"""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sslbench.arithmetic import arithmetic
from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.grids import grid_of_tokens, refuse_clips
from sslbench.backbones.layer_spec import Facet
from sslbench.backbones.layers import Layer, hooked, map_of, resolve_layers, run
from sslbench.backbones.sizes import has_patch_embed, is_timm_vit, resampled_positions
from sslbench.backbones.speed import CPU_CHUNK, folded
from sslbench.errors import BackboneError, UsageError
from sslbench.runtime.device import DTYPES
from sslbench.runtime.resources import Precision
from sslbench.weights.fill import tensors_sha256

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

_NORM = "norm"
_FACETS: Sequence[Facet] = ("query", "key", "value")
# Copies of a network built for one size that are kept.
_MOST_SIZES = 4


@dataclasses.dataclass(frozen=True)
class DenseInput:
    """Map of features for heads or searches.

    Attributes:
        name: text in results, unique in a run.
        layers: maps that are joined along the channels, those of fewer cells resized to the finest, bilinear.
        normalised: the backbone's last norm is applied to the tokens of every layer, as DINOv2's
            `get_intermediate_layers(norm=True)` does.
        cls: the class token of each layer, or its facet, is joined to each of its patches.
        facet: part of the tokens; others than 'token' are taken from the layers `PATH.attn.qkv`.
    """

    name: str
    layers: tuple[Layer, ...]
    normalised: bool = False
    cls: bool = False
    facet: Facet = "token"


def layer_inputs(
    backbone: Backbone, layers: Sequence[Layer], *, cls: bool = False, facet: Facet = "token"
) -> tuple[DenseInput, ...]:
    """Return an input per layer."""
    inputs = []
    for layer in layers:
        parts = layer.parts or (layer,)
        for part in parts:
            if part.pool is not None or part.head is not None:
                raise UsageError(f"layer '{part.text}': maps are not pooled", f"Write {part.text.partition(':')[0]}.")
        if facet != "token":
            paths = {part.text: f"{part.path}.attn.qkv" for part in parts}
            modules = dict(backbone.module.named_modules())
            if absent := [text for text, path in paths.items() if path not in modules]:
                raise UsageError(f"layer '{absent[0]}' of {backbone.name} has no attn.qkv", "Name a block: blocks.11.")
            parts = tuple(Layer(path, path) for path in paths.values())
        name = f"{layer.text}+cls" if cls else layer.text
        inputs.append(DenseInput(name if facet == "token" else f"{layer.text}@{facet}", parts, cls=cls, facet=facet))
    return tuple(inputs)


def block_inputs(backbone: Backbone, counts: Sequence[int], *, cls: bool = False) -> tuple[DenseInput, ...]:
    """Return, for each n, the patches of the last n blocks joined, each after the last norm, as DINOv2 evaluates."""
    total = number_of_blocks(backbone)
    if max(counts) > total:
        raise UsageError(f"blocks={list(counts)}: {backbone.name} has {total} blocks")
    inputs = []
    for n in dict.fromkeys(counts):
        layers = resolve_layers(backbone, [f"blocks.{i}" for i in range(total - n, total)])
        name = ("last block" if n == 1 else f"last {n} blocks") + ("+cls" if cls else "")
        inputs.append(DenseInput(name, layers, normalised=True, cls=cls))
    return tuple(inputs)


class DenseEncoder:
    """Frozen copy of a backbone that gives maps of features for images of any size.

    Position embeddings are resampled as the network's authors do (`vit.positions`), anew for every size.

    Attributes:
        multiple: rows and columns of images must be multiples of this: the side of a patch, 1 for convolutions.
        widths: name of an input -> C.
        strides: name of an input -> rows of pixels for each row of its map.
    """

    def __init__(
        self,
        backbone: Backbone,
        inputs: Sequence[DenseInput],
        *,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
    ) -> None:
        """Copy the backbone; the original is not touched.

        precision: of the forward pass; the maps are float32.
        """
        refuse_clips(backbone)
        self.inputs, self.device, self._dtype = tuple(inputs), torch.device(device), DTYPES[precision]
        self._name = backbone.name
        self._layers = list({layer.text: layer for each in inputs for layer in each.layers}.values())
        size = getattr(getattr(backbone.module, "patch_embed", None), "patch_size", 1)  # 1 without patches
        self.multiple = int(size[0]) if isinstance(size, Sequence) else int(size)
        side = max(self.multiple, round(96 / self.multiple) * self.multiple)
        probe = torch.zeros(1, backbone.preprocessing.channels, side, side)
        if is_timm_vit(backbone.module) or _fixed_size(backbone.module):
            module = copied(backbone.module)  # no BatchNorm to fold, and no free size to try it on
        else:
            module = folded(backbone.module, self._layers, probe)
        to: dict[str, Any] = {"device": self.device, "dtype": self._dtype, "memory_format": torch.channels_last}
        self._module: nn.Module = module.eval().to(**to)
        self._positions: Tensor | None = None
        self._side = 0
        if is_timm_vit(self._module) and has_patch_embed(self._module):
            self._free_size(self._module)
        self._sized: dict[tuple[int, int], nn.Module] = {}
        probed = self(probe)
        self.widths = {name: int(x.shape[1]) for name, x in probed.items()}
        self.strides = {name: max(1, round(side / x.shape[2])) for name, x in probed.items()}

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Return {name of an input: (B, C, h, w) float32} on `device`, without gradient.

        images: (B, channels, H, W), normalised (`data.decode.transforms.normalise`).
        """
        size = (int(images.shape[2]), int(images.shape[3]))
        if size[0] % self.multiple or size[1] % self.multiple:
            raise BackboneError(f"{self._name}: {size[0]}x{size[1]} is no multiple of its patches of {self.multiple}")
        images = images.to(device=self.device, dtype=self._dtype, memory_format=torch.channels_last)
        pieces = torch.split(images, CPU_CHUNK) if self.device.type == "cpu" else (images,)
        with torch.inference_mode(), arithmetic(self.device):
            module = self.for_size(size)
            maps = [self.maps(module, piece) for piece in pieces]
            joined = {name: torch.cat([piece[name] for piece in maps]) for name in maps[0]}
        return {name: value.clone() for name, value in joined.items()}  # autograd takes no inference tensors

    def state_sha256(self) -> str:
        """Return the hash of parameters and statistics: it changes if the backbone is not frozen."""
        state: dict[str, Tensor] = {k: v for k, v in self._module.named_parameters() if k != "pos_embed"}
        state |= {k: b for k, b in self._module.named_buffers() if k.rpartition(".")[2].startswith("running_")}
        return tensors_sha256({name: tensor.detach().cpu() for name, tensor in state.items()})

    def maps(self, module: nn.Module, images: Tensor) -> dict[str, Tensor]:
        """Return the maps of a network that `for_size` gave for images of this size, (B, channels, H, W)."""
        taken: dict[str, tuple[Tensor, Tensor | None]] = {}
        norms = {layer.text for each in self.inputs if each.normalised for layer in each.layers}
        with hooked(module, self._layers, lambda layer, x: taken.update({layer.text: _map(module, layer, x, images)})):
            run(module, images)
        if absent := [layer.text for layer in self._layers if layer.text not in taken]:
            raise BackboneError(f"layer '{absent[0]}' did not run in the forward pass of {self._name}")
        norm = module.get_submodule(_NORM) if norms else None
        return {each.name: _joined(each, [taken[layer.text] for layer in each.layers], norm) for each in self.inputs}

    def _free_size(self, vit: "VisionTransformer") -> None:
        """Set up a vision transformer to take any size with positions that `for_size` writes."""
        from timm.layers.format import Format

        embed = vit.patch_embed
        embed.strict_img_size, embed.flatten, embed.output_fmt = False, True, Format.NCHW
        vit.dynamic_img_size = False  # type: ignore[misc]  # final for TorchScript only, unused here
        if vit.pos_embed is not None:
            grid = embed.grid_size
            if grid is None or grid[0] != grid[1]:
                raise BackboneError(
                    f"{self._name} has position embeddings of no square grid, which cannot be resampled"
                )
            self._positions, self._side = vit.pos_embed.detach().clone(), int(grid[0])

    def for_size(self, size: tuple[int, int]) -> nn.Module:
        """Return the network for images of a size."""
        module = self._module
        if self._positions is not None and is_timm_vit(module):
            grid = (size[0] // self.multiple, size[1] // self.multiple)
            prefix = self._positions.shape[1] - self._side**2
            positions = self._positions
            if grid != (self._side, self._side):
                positions = resampled_positions(positions.float(), module, self._side, grid, prefix)
            module.pos_embed = nn.Parameter(positions.to(self._dtype), requires_grad=False)
            return module
        if not _fixed_size(module):
            return module
        if size not in self._sized:
            while len(self._sized) >= _MOST_SIZES:
                del self._sized[next(iter(self._sized))]
            self._sized[size] = copy.deepcopy(module)
            resize: Any = self._sized[size]
            resize.set_input_size(img_size=size)
        return self._sized[size]


def _map(root: nn.Module, layer: Layer, value: Any, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a layer's map (B, C, h, w), and its class token (B, C) if it has one."""
    value, tokens = map_of(root, layer, value, images)
    if value.ndim == 4:
        return value.clone(memory_format=torch.contiguous_format), None
    if value.ndim != 3:
        raise BackboneError(f"layer '{layer.text}' gives one vector per image, which has no map", "Name another.")
    size = (int(images.shape[2]), int(images.shape[3]))
    rows, columns = grid_of_tokens(value.shape[1] - tokens.prefix, size, layer.text)
    cls = value[:, 0].clone() if tokens.has_class else None
    patches = value[:, tokens.prefix :].transpose(1, 2)
    # Not len(), which would fix the number of images in an export.
    return patches.reshape(value.shape[0], -1, rows, columns).contiguous(), cls


def _joined(each: DenseInput, taken: Sequence[tuple[Tensor, Tensor | None]], norm: nn.Module | None) -> Tensor:
    """Return the map of an input from those of its layers."""
    maps: list[Tensor] = []
    for layer, (patches, cls) in zip(each.layers, taken, strict=True):
        if each.facet != "token":
            patches = patches.chunk(3, dim=1)[_FACETS.index(each.facet)]
            cls = None if cls is None else cls.chunk(3, dim=1)[_FACETS.index(each.facet)]
        if each.normalised and norm is not None:
            # The norm acts on each token by itself.
            patches = norm(patches.movedim(1, -1)).movedim(-1, 1)
            cls = None if cls is None else norm(cls)
        if each.cls:
            if cls is None:
                raise BackboneError(f"layer '{layer.text}' has no class token to join to its patches")
            patches = torch.cat([patches, cls[:, :, None, None].expand(-1, -1, *patches.shape[2:])], dim=1)
        maps.append(patches.float())
    finest = max((tuple(x.shape[2:]) for x in maps), key=lambda size: size[0] * size[1])
    resized = [
        x if x.shape[2:] == finest else nn.functional.interpolate(x, finest, mode="bilinear", align_corners=False)
        for x in maps
    ]
    return resized[0] if len(resized) == 1 else torch.cat(resized, dim=1)


def _fixed_size(module: nn.Module) -> bool:
    """Return whether a network of timm is built for one size and can be built for another."""
    embed = getattr(module, "patch_embed", None)
    return bool(getattr(embed, "strict_img_size", False)) and hasattr(module, "set_input_size")


def number_of_blocks(backbone: Backbone) -> int:
    """Return the number of blocks of a vision transformer, called blocks.0, blocks.1, ..."""
    modules: Mapping[str, nn.Module] = dict(backbone.module.named_modules())
    total = next(i for i in range(len(modules) + 1) if f"blocks.{i}" not in modules)
    if not total or _NORM not in modules:
        raise UsageError(
            f"blocks need a vision transformer; {backbone.name} has no modules blocks.0, ..., {_NORM}",
            "Name layers with --layers.",
        )
    return total
