"""A frozen backbone made ready for extraction: folded BatchNorm, channels-last, reduced precision when asked for."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.fold import folded
from sslbench.backbones.layers import Layer, forward_layers
from sslbench.backbones.module_identity import probe_images
from sslbench.weights.fill import tensors_sha256

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# On a CPU a batch is encoded in pieces, so that the maps of one piece stay in the cache. Images/s as a multiple of
# torchvision's plain module (batches of 32, float32, CPU time of one thread), in pieces of 4, 8, 16, 32: ResNet-18
# 1.40, 1.54, 1.52, 1.43; ResNet-50 1.79, 1.74, 1.91, 1.72. bfloat16 in pieces of 8: 2.9 and 3.9.
CPU_CHUNK = 8


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A frozen copy of a backbone on its device, ready to encode; `prepare` makes it."""

    module: nn.Module
    layers: tuple[Layer, ...]
    device: torch.device
    dtype: torch.dtype

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W), normalised -> {text of the layer: (B, D) float32}, both on `device`."""
        images = images.to(device=self.device, dtype=self.dtype, memory_format=torch.channels_last)
        pieces = torch.split(images, CPU_CHUNK) if self.device.type == "cpu" else (images,)
        with torch.inference_mode(), _exact_float32(self.device):
            outputs = [forward_layers(self.module, piece, self.layers) for piece in pieces]
        if len(outputs) == 1:
            return outputs[0]
        return {layer.text: torch.cat([output[layer.text] for output in outputs]) for layer in self.layers}

    def state_sha256(self) -> str:
        """Hash of what features must not depend on the order of: parameters and the statistics of normalisations.

        Other buffers may move: a module that counts its calls is still frozen.
        """
        state: dict[str, Tensor] = dict(self.module.named_parameters())
        state |= {name: b for name, b in self.module.named_buffers() if name.rpartition(".")[2].startswith("running_")}
        return tensors_sha256({name: tensor.detach().cpu() for name, tensor in state.items()})


def prepare(
    backbone: Backbone, layers: Sequence[Layer], *, device: torch.device, precision: Precision = "fp32"
) -> Encoder:
    """A function from normalised images to features, made from a copy: the backbone itself is not touched.

    Args:
        backbone: any.
        layers: of this backbone; one forward pass gives them all.
        device: where the copy lives and the images will be.
        precision: of the forward pass. Pooling and what comes out is float32 in any case.

    Returns:
        The encoder: (B, 3, H, W) -> {text of the layer: (B, D) float32}; images of another dtype are converted.

    Raises:
        BackboneError: the module cannot be copied, or a layer cannot be taken (at the latest when images come).
    """
    dtype = DTYPES[precision]
    module = folded(backbone.module, layers, probe_images(backbone.preprocessing))
    module = module.to(device=device, dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Encoder(module, tuple(layers), device, dtype)


@contextlib.contextmanager
def _exact_float32(device: torch.device) -> Iterator[None]:
    """No TensorFloat-32: cuDNN uses it by default, and features would differ from a CPU's in the third digit."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
