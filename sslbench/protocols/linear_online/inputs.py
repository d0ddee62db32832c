"""Inputs of linear heads from a frozen backbone: pooled layers, or class tokens of the last blocks joined.

Shapes: B images, D features of an input.
"""

import copy
import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layer_spec import Pool
from sslbench.backbones.layers import Layer, forward_layers, hooked, resolve_layers, run
from sslbench.backbones.speed import Encoder, prepare
from sslbench.data.decode.transforms import normalise
from sslbench.errors import UsageError
from sslbench.runtime.resources import Precision

_NORM = "norm"


@dataclasses.dataclass(frozen=True)
class Input:
    """One vector per image that heads are trained on.

    Attributes:
        name: unique among the inputs of a run.
        row: name in results; inputs of one row are alternatives, of which one is chosen.
        layers: the features that are joined to it.
        normalised: number of them, from the first on, that are class tokens to go through the backbone's last norm.
        choice: difference from the other inputs of its row.
    """

    name: str
    row: str
    layers: tuple[Layer, ...]
    normalised: int = 0
    choice: tuple[tuple[str, int | bool], ...] = ()


def layer_inputs(layers: Sequence[Layer]) -> tuple[Input, ...]:
    """Return an input and a row of results for every layer."""
    return tuple(Input(layer.text, layer.text, (layer,)) for layer in layers)


def block_inputs(backbone: Backbone, counts: Sequence[int], means: Sequence[bool]) -> tuple[Input, ...]:
    """Return the class tokens of the last n blocks joined, each after the last norm, as DINO and DINOv2 evaluate.

    Args:
        backbone: a vision transformer whose blocks are called blocks.0, blocks.1, ... and whose last norm is `norm`.
        counts: numbers n to try.
        means: true if the mean of the last block's patches (after the norm) is joined too; both can be tried.

    Raises:
        UsageError: the backbone has no such blocks, or fewer.
        BackboneError: its tokens have no class token.
    """
    modules = {name for name, _ in backbone.module.named_modules()}
    total = next(i for i in range(len(modules) + 1) if f"blocks.{i}" not in modules)
    if not total or _NORM not in modules:
        raise UsageError(
            f"blocks={list(counts)} needs a vision transformer; {backbone.name} has no modules blocks.0, ..., norm",
            "Leave out blocks=, and name layers with --layers.",
        )
    if max(counts) > total:
        raise UsageError(f"blocks={list(counts)}: {backbone.name} has {total} blocks")
    row = "last block:cls" if list(counts) == [1] else f"last {','.join(map(str, counts))} blocks:cls"
    row += ", with and without mean" if len(set(means)) > 1 else "+mean" if means[0] else ""
    inputs = []
    for n in dict.fromkeys(counts):
        for mean in dict.fromkeys(means):
            texts = [f"blocks.{i}:cls" for i in range(total - n, total)] + ([f"{_NORM}:mean"] if mean else [])
            layers = resolve_layers(backbone, texts)
            choice = (("blocks", n), ("patch_mean", mean))
            inputs.append(Input(f"blocks={n} patch_mean={str(mean).lower()}", row, layers, n, choice))
    return tuple(inputs)


class InputEncoder:
    """Frozen copy of a backbone that turns pictures into the inputs of all heads in one forward pass.

    Attributes:
        widths: name of an input -> (D, channels): its length, and how many channels a normalisation sees: features
            of a pooled map that belong to one channel share their statistics, as in VISSL's BatchNorm2d.
    """

    def __init__(
        self,
        backbone: Backbone,
        inputs: Sequence[Input],
        *,
        sides: tuple[int, int],
        device: torch.device,
        precision: Precision = "fp32",
    ) -> None:
        """Copy the backbone; the original is not touched.

        Args:
            backbone: any.
            inputs: inputs of the heads.
            sides: of the square pictures that will come: of the views, and of the evaluation transform.
            device: device of the copy.
            precision: of the forward pass.

        Raises:
            UsageError: an input has another length for views than for the evaluation transform.
            BackboneError: the backbone cannot take such pictures, or a layer cannot be taken.
        """
        self.inputs, self._preprocessing = tuple(inputs), backbone.preprocessing
        layers = tuple({layer.text: layer for each in inputs for layer in each.layers}.values())
        self._encoder: Encoder = prepare(backbone, layers, device=device, precision=precision)
        self._norm: nn.Module | None = None
        if any(each.normalised for each in inputs):
            self._norm = copy.deepcopy(self._encoder.module.get_submodule(_NORM)).float()
        self.widths = self._widths(sides[0])
        if sides[1] != sides[0]:
            _check_equal(self.widths, self._widths(sides[1]), sides)

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """uint8 (B, 3, h, w) -> {name of the input: (B, D) float32}, on the device; no gradient."""
        encoder = self._encoder
        pictures = normalise(images.to(encoder.device, non_blocking=True), self._preprocessing, encoder.dtype)
        features = encoder(pictures)
        with torch.inference_mode():
            joined = {each.name: self._joined(each, features) for each in self.inputs}
        return {name: value.clone() for name, value in joined.items()}  # autograd takes no inference tensors

    def state_sha256(self) -> str:
        """Return the hash of parameters and statistics: it changes if the backbone is not frozen."""
        return self._encoder.state_sha256()

    def _joined(self, each: Input, features: dict[str, Tensor]) -> Tensor:
        parts = [features[layer.text] for layer in each.layers]
        if self._norm is not None:
            # The norm acts per token, so it can be applied to the class tokens alone.
            parts = [self._norm(part) if i < each.normalised else part for i, part in enumerate(parts)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _widths(self, side: int) -> dict[str, tuple[int, int]]:
        encoder = self._encoder
        shape = (1, self._preprocessing.channels, side, side)
        images = torch.zeros(shape, device=encoder.device, dtype=encoder.dtype)
        dimensions: dict[str, int] = {}
        with torch.inference_mode():
            with hooked(
                encoder.module, encoder.layers, lambda layer, value: dimensions.update({layer.text: value.ndim})
            ):
                run(encoder.module, images)
            features = encoder(images)
            maps = [
                dataclasses.replace(layer, pool=Pool("avg")) for layer in encoder.layers if dimensions[layer.text] == 4
            ]
            channels = {
                text: int(value.shape[1]) for text, value in forward_layers(encoder.module, images, maps).items()
            }
        widths = {}
        for each in self.inputs:
            width = sum(int(features[layer.text].shape[1]) for layer in each.layers)
            own = channels.get(each.layers[0].text) if len(each.layers) == 1 else None
            widths[each.name] = (width, own or width)
        return widths


def _check_equal(
    views: dict[str, tuple[int, int]], evaluation: dict[str, tuple[int, int]], sides: tuple[int, int]
) -> None:
    for name, (width, _) in views.items():
        if evaluation[name][0] != width:
            raise UsageError(
                f"layer '{name}' has {width:,} features for views of {sides[0]} pixels and {evaluation[name][0]:,} for "
                f"the {sides[1]} pixels of the evaluation transform",
                "Leave out size=, or pool the layer to a fixed size: LAYER:avg, LAYER:adaptive(2,2).",
            )
