"""Convolutions with a norm, and the norms of a backbone: frozen, trained, or synchronised over all GPUs."""

import logging
from typing import Literal, cast

import torch
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import FrozenBatchNorm2d

from sslbench.distributed.collectives import world_size

log = logging.getLogger("sslbench")

Norm = Literal["none", "layer", "group", "frozen", "batch", "sync"]
GROUPS = 32
"""Groups of a group norm (Wu & He 2018, arXiv 1803.08494)."""


class Conv(nn.Conv2d):
    """Convolution of stride 1 and equal size, with an optional norm (in place of the bias) and ReLU."""

    def __init__(self, channels: int, out: int, kernel: int, *, norm: Norm = "none", relu: bool = False) -> None:
        super().__init__(channels, out, kernel, padding=kernel // 2, bias=norm == "none")
        self.norm = make_norm(norm, out)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, out, H, W) of (B, channels, H, W)."""
        x = super().forward(x)
        if self.norm is not None:
            x = self.norm(x)
        return functional.relu(x) if self.relu else x


def make_norm(kind: Norm, channels: int) -> nn.Module | None:
    """Return a norm over (B, channels, H, W); 'sync' is plain until `synchronised` converts the network."""
    if kind == "none":
        return None
    if kind == "layer":
        return LayerNorm2d(channels)  # over the channels at each place, epsilon 1e-6
    if kind == "group":
        return nn.GroupNorm(GROUPS, channels)
    return FrozenBatchNorm2d(channels) if kind == "frozen" else nn.BatchNorm2d(channels)


def xavier(layer: nn.Conv2d | nn.Linear) -> None:
    """Initialise with Caffe2's XavierFill, as Detectron2's pyramids and box heads: uniform, variance 1 / fan-in."""
    nn.init.kaiming_uniform_(layer.weight, a=1)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def msra(layer: nn.Conv2d | nn.ConvTranspose2d) -> None:
    """Initialise with Caffe2's MSRAFill (He et al. 2015), as the convolutions of Detectron2's heads."""
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def freeze_norms(module: nn.Module) -> nn.Module:
    """Return the module with every BatchNorm in it (or itself) frozen; the remaining tensors keep their names.

    A frozen norm lacks the counter num_batches_tracked, as torchvision's and Detectron2's do.
    """
    if isinstance(module, nn.BatchNorm2d):
        frozen = FrozenBatchNorm2d(module.num_features, eps=module.eps)
        state = module.state_dict()
        frozen.load_state_dict({name: state[name] for name in frozen.state_dict()})
        return cast(nn.Module, frozen)
    for name, child in module.named_children():
        setattr(module, name, freeze_norms(child))
    return module


def freeze(module: nn.Module) -> nn.Module:
    """Return the module without gradients and with frozen norms."""
    module.requires_grad_(False)
    return freeze_norms(module)


def synchronised(module: nn.Module, device: torch.device) -> nn.Module:
    """Return the module with BatchNorm statistics over all processes; on the CPU, where torch cannot, per process."""
    if device.type == "cpu":
        alone = world_size() == 1
        log.log(
            logging.INFO if alone else logging.WARNING,
            "norm=sync needs GPUs; on the CPU, each process uses its own BatchNorm statistics"
            + (", which is the same for a single one" if alone else ""),
        )
        return module
    return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(module))  # type: ignore[no-untyped-call]
