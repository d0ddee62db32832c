"""Convolutions with a norm, and what is done to the norms of a backbone: freezing, training, over all GPUs."""

import logging
from typing import Literal, cast

import torch
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import FrozenBatchNorm2d

from sslbench.distributed.collectives import world_size

log = logging.getLogger("sslbench")

Norm = Literal["none", "layer", "frozen", "batch", "sync"]


class Conv(nn.Conv2d):
    """A convolution of stride 1 that keeps the size, its norm and, where wanted, a ReLU; a norm makes the bias go."""

    def __init__(self, channels: int, out: int, kernel: int, *, norm: Norm = "none", relu: bool = False) -> None:
        super().__init__(channels, out, kernel, padding=kernel // 2, bias=norm == "none")
        self.norm = make_norm(norm, out)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, out, H, W)."""
        x = super().forward(x)
        if self.norm is not None:
            x = self.norm(x)
        return functional.relu(x) if self.relu else x


def make_norm(kind: Norm, channels: int) -> nn.Module | None:
    """A norm over (B, channels, H, W); 'sync' is plain until `synchronised` has gone over the whole network."""
    if kind == "none":
        return None
    if kind == "layer":
        return LayerNorm2d(channels)  # over the channels at each place, epsilon 1e-6
    return FrozenBatchNorm2d(channels) if kind == "frozen" else nn.BatchNorm2d(channels)


def xavier(layer: nn.Conv2d | nn.Linear) -> None:
    """Caffe2's XavierFill, which Detectron2 starts pyramids and box heads with: uniform, variance 1 / fan-in."""
    nn.init.kaiming_uniform_(layer.weight, a=1)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def msra(layer: nn.Conv2d | nn.ConvTranspose2d) -> None:
    """Caffe2's MSRAFill (He et al. 2015), which Detectron2 starts convolutions of the heads with."""
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def freeze_norms(module: nn.Module) -> nn.Module:
    """The module with every BatchNorm below it (or itself) made constant; what is left of it keeps its names.

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
    """The module without gradients and with constant norms: it does not change in training."""
    module.requires_grad_(False)
    return freeze_norms(module)


def synchronised(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with BatchNorm statistics taken over all processes; on the CPU, where torch cannot, of each one."""
    if device.type == "cpu":
        alone = world_size() == 1
        log.log(
            logging.INFO if alone else logging.WARNING,
            "norm=sync needs GPUs; on the CPU BatchNorm takes the statistics of each process for itself"
            + (", which is the same for a single one" if alone else ""),
        )
        return module
    return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(module))  # type: ignore[no-untyped-call]
