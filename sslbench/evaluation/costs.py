"""Costs of an evaluation: size and work of the backbone, time and peak memory of every stage."""

import contextlib
import dataclasses
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from sslbench.backbones.backbone import Backbone, probe_images
from sslbench.results import Costs, Stage

log = logging.getLogger("sslbench")

_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class Meter:
    """Measured stage; filled in when the stage has ended."""

    def __init__(self) -> None:
        self.stage = Stage(seconds=0.0)


@contextlib.contextmanager
def measured(device: torch.device) -> Iterator[Meter]:
    """Measure time and peak memory of the block.

    Linux tells the peak of a stage; elsewhere it is that of the process from its start to the end of the stage.

    `device`: device of the work; if it is a CUDA device, its memory counts as the GPU's.
    """
    meter = Meter()
    # Some containers mount /proc read-only; the peak then counts from the start of the process.
    with contextlib.suppress(OSError):
        # proc(5): writing 5 sets the peak (VmHWM) back to the present size.
        _RESET.write_text("5")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    yield meter
    seconds = time.perf_counter() - started
    gpu = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    meter.stage = Stage(
        seconds=round(seconds, 3), ram_mib=round(_peak(), 1), gpu_mib=None if gpu is None else round(gpu, 1)
    )


def _peak() -> float:
    """Return the peak memory of the process in MiB; on macOS and Windows that since its start."""
    with contextlib.suppress(OSError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        # The kernel writes kB and means 1,024 bytes.
        return int(line.split()[1]) / 2**10
    try:
        import resource
    except ImportError:
        import psutil  # type: ignore[import-untyped]

        return int(getattr(psutil.Process().memory_info(), "peak_wset")) / 2**20  # noqa: B009 - Windows has it
    # ru_maxrss: bytes on macOS, KiB elsewhere.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def encoding_costs(backbone: Backbone, *, decoded: int, seconds: float, stage: Stage, work: bool) -> Costs:
    """Return the costs of encoding."""
    return Costs(
        parameters=sum(parameter.numel() for parameter in backbone.module.parameters()),
        gflops=gflops(backbone) if work else None,
        images_per_second=round(decoded / seconds, 2) if decoded and seconds > 0 else None,
        stages={"extract": stage},
    )


def gflops(backbone: Backbone) -> float | None:
    """10^9 floating-point operations for an image of the size that the backbone takes, at all scales: `work_of`."""
    height, width = probe_images(backbone.preprocessing).shape[2:]
    work = work_of(backbone, [(int(height * scale), int(width * scale)) for scale in backbone.preprocessing.scales])
    return None if work is None else work.gflops


@dataclasses.dataclass(frozen=True)
class Work:
    """Work of forward passes.

    Attributes:
        gflops: 10^9 floating-point operations, a multiply-add counting as two.
        activations: numbers that convolutions and linear layers give (Radosavovic et al. 2020, arXiv 2003.13678).
    """

    gflops: float
    activations: int


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counted operations of forward passes in which matrix products and convolutions are not computed, but zeros.

    The numbers are those of PyTorch's FlopCounterMode, which needs FakeTensorMode, whose import takes two seconds.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, PyTorch imports it

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count a step, and run it unless it is a product."""
        aten, step = torch.ops.aten, func.overloadpacket
        # Only a mask among the indices makes a shape depend on values.
        by_number = step is aten.index and not any(i is not None and i.dtype is torch.bool for i in args[1])
        if not by_number and {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags}:
            raise RuntimeError("its steps depend on values")
        if step is aten.convolution:
            image, weight = args[:2]
            shape = _convolved(*args)
            inputs = image.shape if args[6] else shape
            self.operations += 2 * weight.numel() * inputs[0] * math.prod(inputs[2:])
            return image.new_zeros(shape)
        if step in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
            left, right = args[-2:]
            shape = (*left.shape[:-1], right.shape[-1])
            self.operations += 2 * math.prod(shape) * left.shape[-1]
            return left.new_zeros(shape)
        return func(*args, **(kwargs or {}))


def _convolved(  # noqa: PLR0913  the arguments of aten.convolution
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> tuple[int, ...]:
    """Return the shape of a convolution's output."""
    per_side = zip(image.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding, strict=True)
    if transposed:
        sides = [(n - 1) * s - 2 * p + d * (k - 1) + more + 1 for n, k, s, p, d, more in per_side]
        return (len(image), weight.shape[1] * groups, *sides)
    return (len(image), len(weight), *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in per_side))


def work_of(backbone: Backbone, sizes: Sequence[tuple[int, int]]) -> Work | None:
    """Return the work of one image of each size, (height, width) in pixels.

    Matrix products, convolutions and attention are counted, which is nearly all. None for a module whose steps depend
    on values.
    """
    image, module = probe_images(backbone.preprocessing), backbone.module
    device = next(module.parameters(), image).device
    # Copies, so that changes of buffers do not reach the real ones.
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    counter, outputs = _Counter(), [0]

    def add(layer: nn.Module, inputs: object, output: Tensor) -> None:
        outputs[0] += output.numel()

    def add_attention(layer: nn.Module, inputs: object, output: tuple[Tensor, ...]) -> None:
        outputs[0] += 4 * output[0].numel()  # queries, keys, values and the output are linear layers inside it

    layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.conv._ConvNd | nn.Linear)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    attentions = [layer for layer in module.modules() if isinstance(layer, nn.MultiheadAttention)]
    hooks += [layer.register_forward_hook(add_attention) for layer in attentions]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operation, of which nothing is counted
    try:
        # As matrix products: the fused kernel of processors is not counted.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            for size in sizes:
                torch.func.functional_call(module, buffers, (torch.zeros(1, image.shape[1], *size, device=device),))
    except (RuntimeError, TypeError, ValueError) as error:
        log.info(f"{backbone.name}: operations could not be counted ({str(error).splitlines()[0]})")
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for hook in hooks:
            hook.remove()
    return Work(counter.operations / 1e9, outputs[0])
