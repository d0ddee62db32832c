"""Fast encoder for a frozen backbone: folded BatchNorm, channels-last, optional reduced precision."""

import collections
import copy
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812  torch's customary name
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from sslbench.arithmetic import arithmetic
from sslbench.backbones.backbone import Backbone, copied, probe_images
from sslbench.backbones.int8 import Int8Network, int8_network
from sslbench.backbones.layers import Layer, forward_layers, hooked, relative_difference, single_layers
from sslbench.data.decode import transforms
from sslbench.errors import BackboneError, UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.device import DTYPES
from sslbench.runtime.resources import EncodingPrecision
from sslbench.weights.fill import tensors_sha256

log = logging.getLogger("sslbench")

# Exact types: a subclass may transform its weight (weight standardisation, spectral norm). By name, as timm need not be
# imported for networks that are not timm's.
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_TIMM_CONVOLUTION = "timm.layers.conv2d_same.Conv2dSame"
_TIMM_NORM = "timm.layers.norm_act.BatchNormAct2d"
_Pairs = list[tuple[str, str]]
TOLERANCE = 1e-4  # relative to the largest value of a layer; float32 rounding gives about 1e-6


def folded(module: nn.Module, layers: Sequence[Layer], images: Tensor) -> nn.Module:
    """Return a copy of the module with BatchNorm folded, or an unfolded copy if folding would change a layer's values.

    module: in eval mode, on the CPU, float32; not changed.
    images: (B, 3, H, W), to find the pairs and to compare the outcome on.
    """
    candidate = copied(module, share=True)
    with torch.no_grad():
        pairs, wanted = _pairs(candidate, layers, images)
        if not pairs:
            return candidate
        for convolution, norm in pairs:
            _fold(candidate, convolution, norm)
        try:
            got = forward_layers(candidate, images, layers)
            worst = max(relative_difference(got[text], wanted[text]) for text in wanted)
            problem = "" if worst <= TOLERANCE else f"features would change by {worst:.1e} of the largest value"
        except BackboneError as error:
            problem = f"the backbone does not run without it ({error.message})"
    if problem:
        log.info(f"BatchNorm is not folded: {problem}")
        return copied(module, share=True)
    log.debug(f"folded {len(pairs)} BatchNorms into convolutions")
    return candidate


def _pairs(module: nn.Module, layers: Sequence[Layer], images: Tensor) -> tuple[_Pairs, dict[str, Tensor]]:
    """Return (convolution, norm) paths where the norm receives the convolution's output itself, and the features."""
    unhooked = {
        path: part for path, part in module.named_modules() if not part._forward_hooks and not part._forward_pre_hooks
    }
    convolutions = [
        path for path, part in unhooked.items() if type(part) in _CONVOLUTIONS or _is_exactly(part, _TIMM_CONVOLUTION)
    ]
    norms = [
        path
        for path, part in unhooked.items()
        if (type(part) in _NORMS or _is_exactly(part, _TIMM_NORM))
        and isinstance(getattr(part, "running_mean", None), Tensor)
    ]
    if not convolutions or not norms:
        return [], {}
    watched = [Layer("conv", path) for path in convolutions] + [Layer("norm", path, "input") for path in norms]
    tapped = [Layer("tapped", layer.path, layer.side) for layer in single_layers(layers)] + [Layer("tapped", "")]
    seen: list[tuple[Layer, Any, int]] = []  # keeps the tensors alive: an id is only unique among living objects

    def note(layer: Layer, value: Any) -> None:
        # The version counts in-place operations: conv -> in-place ReLU -> norm passes on the same object, changed.
        seen.append((layer, value, value._version if isinstance(value, Tensor) else 0))

    with hooked(module, [*watched, *tapped], note):
        features = forward_layers(module, images, layers)
    calls = collections.Counter((layer.text, layer.path) for layer, _, _ in seen)
    uses = collections.Counter(id(value) for layer, value, _ in seen if layer.text == "norm")
    taps = {id(value) for layer, value, _ in seen if layer.text == "tapped"}
    made = {
        (id(value), version): layer.path
        for layer, value, version in seen
        if layer.text == "conv" and calls["conv", layer.path] == 1 and id(value) not in taps
    }
    pairs = [
        (made[id(value), version], layer.path)
        for layer, value, version in seen
        if layer.text == "norm" and calls["norm", layer.path] == uses[id(value)] == 1 and (id(value), version) in made
    ]
    return pairs, features


def _is_exactly(part: nn.Module, name: str) -> bool:
    return f"{type(part).__module__}.{type(part).__qualname__}" == name


def _fold(module: nn.Module, convolution_path: str, norm_path: str) -> None:
    convolution: Any = module.get_submodule(convolution_path)
    norm: Any = module.get_submodule(norm_path)
    convolution.weight, convolution.bias = fuse_conv_bn_weights(
        convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    rest = nn.Sequential(norm.drop, norm.act) if _is_exactly(norm, _TIMM_NORM) else nn.Identity()
    # A module may be registered under several names.
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if child is norm:
                setattr(parent, name, rest)


# On a CPU a batch is encoded in pieces, so that the maps of one piece stay in the cache. Images/s as a multiple of
# torchvision's plain module (batches of 32, float32, CPU time of one thread), in pieces of 4, 8, 16, 32: ResNet-18
# 1.40, 1.54, 1.52, 1.43; ResNet-50 1.79, 1.74, 1.91, 1.72. bfloat16 in pieces of 8: 2.9 and 3.9.
CPU_CHUNK = 8


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Frozen copy of a backbone on its device; built by `prepare`.

    Attributes:
        frames: frames of a video that one pass takes; those of a sample are shared out among passes.
    """

    module: nn.Module
    layers: tuple[Layer, ...]
    device: torch.device
    dtype: torch.dtype
    preprocessing: Preprocessing
    frames: int = 1

    def rows(self, images: Tensor) -> list[npt.NDArray[np.float32]]:
        """Return one array (B, D) per layer for decoded images (B, C, H, W)."""
        inputs = transforms.normalise(images.to(self.device, non_blocking=True), self.preprocessing, self.dtype)
        outputs = self(inputs)
        return [outputs[layer.text].float().cpu().numpy() for layer in self.layers]

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Encode normalised images (B, 3, H, W) to {text of the layer: (B, D) float32} on `device`.

        Videos of T frames, (B, T * 3, H, W), have the mean of the features of their frames or clips; of layers that
        keep a vector per token they have all of them, (B, T * N, D). An image is shown in every frame of a clip.
        """
        channels = self.preprocessing.channels * self.frames
        if images.shape[1] >= 2 * channels:
            # As many passes at a time as the batch has samples: the memory of a batch of images.
            every = torch.split(images.reshape(-1, channels, *images.shape[2:]), len(images))
            outputs = [self(part) for part in every]
            return {
                layer.text: _of_sample(torch.cat([output[layer.text] for output in outputs]), len(images))
                for layer in self.layers
            }
        at_scales = []
        for scale in self.preprocessing.scales:
            scaled = _scaled(images, scale).to(self.device, self.dtype, memory_format=torch.channels_last)
            chunk = max(1, CPU_CHUNK // self.frames)
            pieces = torch.split(scaled, chunk) if self.device.type == "cpu" else (scaled,)
            with torch.inference_mode(), arithmetic(self.device):
                outputs = [self._encode(piece) for piece in pieces]
            at_scales.append(
                {layer.text: torch.cat([output[layer.text] for output in outputs]) for layer in self.layers}
                if len(outputs) > 1
                else outputs[0]
            )
        if len(at_scales) == 1:
            return at_scales[0]
        for layer in self.layers:
            if len({features[layer.text].shape[1] for features in at_scales}) > 1:
                raise BackboneError(
                    f"layer '{layer.text}' gives vectors of different lengths at the scales "
                    f"{self.preprocessing.scales}",
                    "Pool it: avg, max, gem(p), cls.",
                )
        return {
            layer.text: torch.stack([features[layer.text] for features in at_scales]).mean(0) for layer in self.layers
        }

    def _encode(self, images: Tensor) -> dict[str, Tensor]:
        """Encode a piece at one scale; layers with `flipped` are means over the images and their mirror images."""
        flipped = [layer for layer in self.layers if layer.flipped]
        plain, *mirrored = (
            # An int8 network returns all layers.
            dict(self.module(inputs))
            if isinstance(self.module, Int8Network)
            else forward_layers(self.module, inputs, layers)
            for inputs, layers in [(images, self.layers), *([(images.flip(-1), flipped)] if flipped else [])]
        )
        for layer in flipped:
            features = mirrored[0][layer.text]
            if layer.grid is not None:  # columns in reverse order
                features = features.reshape(len(features), *layer.grid, -1).flip(2).flatten(1)
            plain[layer.text] = (plain[layer.text] + features) / 2
        return plain

    def twin(self) -> "Encoder":
        """Return an encoder for another thread: its module is its own (passes set hooks), the tensors are shared."""
        # The memo makes deepcopy keep these tensors, so that a twin costs no memory for weights.
        tensors = [*self.module.parameters(), *self.module.buffers()]
        return dataclasses.replace(self, module=copy.deepcopy(self.module, {id(tensor): tensor for tensor in tensors}))

    def state_sha256(self) -> str:
        """Return a hash of parameters and normalisation statistics, to detect that a forward pass changed them.

        Other buffers may move: a module that counts its calls is still frozen.
        """
        state: dict[str, Tensor] = dict(self.module.named_parameters())
        state |= {name: b for name, b in self.module.named_buffers() if name.rpartition(".")[2].startswith("running_")}
        return tensors_sha256({name: tensor.detach().cpu() for name, tensor in state.items()})


def prepare(
    backbone: Backbone, layers: Sequence[Layer], *, device: torch.device, precision: EncodingPrecision = "fp32"
) -> Encoder:
    """Return an encoder built from a copy of the backbone.

    precision: of the forward pass. Pooling and what comes out is float32 in any case.
    -> The encoder: (B, 3, H, W) -> {text of the layer: (B, D) float32}; images of another dtype are converted.
    """
    if len(backbone.preprocessing.scales) > 1 and (by_region := [layer.text for layer in layers if layer.regions > 1]):
        raise UsageError(
            f"layer '{by_region[0]}' has other regions at every scale, so there is no mean over scales",
            "Use the pool rmac, or --scales 1.",
        )
    dtype = DTYPES[precision]
    # Folded in float32 on the CPU, whatever the device: a network has the same weights everywhere.
    module = folded(backbone.module, layers, probe_images(backbone.preprocessing))
    if precision == "int8" and not backbone.kind.pixels:
        module = int8_network(backbone, module, layers, device)
    # Convolutions over frames have five dimensions, which this format does not.
    layout = torch.channels_last if backbone.kind.frames == 1 else torch.preserve_format
    module = module.to(device=device, dtype=dtype, memory_format=layout)  # type: ignore[call-overload]
    layers = tuple(_on_device(layer, device) for layer in layers)
    return Encoder(module, layers, device, dtype, backbone.preprocessing, backbone.kind.frames)


def _of_sample(x: Tensor, samples: int) -> Tensor:
    """Return the mean of vectors (samples * T, D) over the passes of a sample, or all of its tokens."""
    if x.ndim == 2:
        return x.reshape(samples, -1, x.shape[1]).mean(1)
    return x.reshape(samples, -1, x.shape[2])


def _on_device(layer: Layer, device: torch.device) -> Layer:
    """Return a layer whose head, if it has one, is a copy on the device."""
    parts = tuple(_on_device(part, device) for part in layer.parts)
    head = None if layer.head is None else copy.deepcopy(layer.head).to(device)
    return dataclasses.replace(layer, parts=parts, head=head)


def _scaled(images: Tensor, scale: float) -> Tensor:
    """Return images resized by a factor, bilinear without antialiasing, as the published code of retrieval does."""
    if scale == 1.0:
        return images
    height, width = images.shape[2:]
    if int(min(height, width) * scale) < 1:
        raise BackboneError(
            f"images of {width} x {height} pixels have no pixel left at the scale {scale:g}",
            "Give a larger scale with --scales, or larger images with --resize.",
        )
    return F.interpolate(images.float(), scale_factor=scale, mode="bilinear", align_corners=False)
