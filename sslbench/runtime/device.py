"""Device of this process, and precision of the computation on it."""

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.runtime.resources import AskedPrecision, EncodingPrecision, Precision, refuse_unknown_device

DTYPES: dict[EncodingPrecision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.float32,
}
"""dtype of the images for each precision, and but for int8 of the computation."""


def choose_device(name: str) -> torch.device:
    """Return the device of this process for a setting.

    Processes on the same machine get different GPUs.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    refuse_unknown_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cpu":
        return device
    kinds: dict[str, tuple[str, Callable[[], bool]]] = {
        "cuda": ("CUDA GPU", torch.cuda.is_available),
        "mps": ("GPU of Apple", torch.backends.mps.is_available),
        "xpu": ("GPU of Intel", torch.xpu.is_available),
    }
    kind, available = kinds[device.type]
    if not available():
        raise UsageError(f"--device {device}: torch finds no {kind} on this machine", "Use --device cpu.")
    if device.type != "cuda":
        return device
    visible, world = torch.cuda.device_count(), this_process().world
    # Of several processes on a machine each has its own GPU.
    if device.index is None:
        return device if world == 1 else torch.device("cuda", local_gpu(visible))
    if device.index >= visible:
        raise UsageError(
            f"--device {device}: there {'is 1 GPU' if visible == 1 else f'are {visible} GPUs'} on this machine",
            f"Use {' or '.join(f'cuda:{number}' for number in range(min(visible, 8)))}.",
        )
    # With one visible GPU the launcher may have set CUDA_VISIBLE_DEVICES for each process.
    if world > 1 and visible > 1:
        raise UsageError(
            f"--device {device} names one GPU, but {world} processes were started",
            "Use --device cuda: each process uses its own GPU.",
        )
    return device


def choose_precision(asked: AskedPrecision, device: torch.device) -> Precision:
    """Return the precision of a training: with 'auto' bf16 on a GPU whose units compute in it, else fp32.

    >>> choose_precision("auto", torch.device("cpu")), choose_precision("bf16", torch.device("cpu"))
    ('fp32', 'bf16')
    """
    if asked != "auto":
        refuse_imitated(asked, device)
        return asked
    # From compute capability 8.0 on; older GPUs imitate bf16 slowly.
    native = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if native else "fp32"


def refuse_imitated(precision: EncodingPrecision, device: torch.device) -> None:
    """Refuse fp16 on a processor, where torch computes it a hundred times slower than fp32."""
    if precision == "fp16" and device.type == "cpu":
        raise UsageError("precision fp16 is for GPUs: processors imitate it", "Use precision bf16 or fp32.")


def local_gpu(visible: int) -> int:
    """Return the index of this process's GPU among the visible ones."""
    # The processes of a machine take the GPUs in turn. Under `srun --gpus-per-task=1` each process sees a different
    # GPU, always with index 0.
    local = this_process().local
    # torchrun sets LOCAL_WORLD_SIZE; srun does not, but some process of a machine is beyond its GPUs.
    own = "SLURM_GPUS_PER_TASK" in os.environ  # each process sees others
    local_world = 1 if own else max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), local + 1)
    if 1 < visible < local_world:
        raise UsageError(
            f"{local_world} processes were started on this machine, which has {visible} visible GPUs",
            f"Start one for each GPU: torchrun --nproc-per-node {visible}, or srun --ntasks-per-node={visible}.",
        )
    return local % visible


def widest_float(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device: float64, but float32 on GPUs of Apple.

    >>> widest_float(torch.device("cpu"))
    torch.float64
    """
    return torch.float32 if device.type == "mps" else torch.float64


def check_precision(
    precision: Precision, device: torch.device, module: nn.Module, size: int, *, channels: int = 3
) -> None:
    """Refuse bf16 on a CPU for images so small that a map of one cell meets a strided convolution."""
    # Then torch (to 2.15 at least) leaves a part of the gradient of the kernel uninitialised on processors with
    # AVX512-BF16: weights of 1e30 and nan without any other sign. A ResNet of stride 32 has such maps up to 16 pixels.
    if device.type == "cpu" and precision == "bf16" and _strides_over_one_cell(module, size, channels):
        raise UsageError(
            f"precision bf16 on the CPU with images of {size} pixels: torch computes wrong gradients of strided "
            "convolutions on maps of one cell, which this network has",
            "Use precision fp32, or larger images.",
        )


def _strides_over_one_cell(module: nn.Module, size: int, channels: int) -> bool:
    """Return true if a convolution with a kernel wider than its stride above 1 gets maps of one cell."""
    strided = [
        layer
        for layer in module.modules()
        if isinstance(layer, nn.Conv2d) and layer.kernel_size[0] > layer.stride[0] > 1
    ]
    if not strided:
        return False
    found = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(max(inputs[0].shape[-2:]) == 1)

    hooks = [layer.register_forward_pre_hook(note) for layer in strided]
    mode = module.training
    module.eval()  # the statistics of BatchNorm stay
    try:
        with torch.no_grad():
            module(torch.zeros(1, channels, size, size))
    finally:
        module.train(mode)
        for hook in hooks:
            hook.remove()
    return any(found)
