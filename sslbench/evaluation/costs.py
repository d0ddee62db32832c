"""Costs of an evaluation: size and work of the backbone, time and peak memory of every stage."""

import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

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


def work_of(backbone: Backbone, sizes: Sequence[tuple[int, int]]) -> Work | None:
    """Return the work of one image of each size, (height, width) in pixels.

    Operations are counted by PyTorch on tensors without values: matrix products, convolutions and attention, which is
    nearly all. None for a module whose steps depend on values.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    image, module = probe_images(backbone.preprocessing), backbone.module
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    counter, outputs = FlopCounterMode(display=False), [0]

    def add(layer: nn.Module, inputs: object, output: torch.Tensor) -> None:
        outputs[0] += output.numel()

    def add_attention(layer: nn.Module, inputs: object, output: tuple[torch.Tensor, ...]) -> None:
        outputs[0] += 4 * output[0].numel()  # queries, keys, values and the output are linear layers inside it

    layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.conv._ConvNd | nn.Linear)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    attentions = [layer for layer in module.modules() if isinstance(layer, nn.MultiheadAttention)]
    hooks += [layer.register_forward_hook(add_attention) for layer in attentions]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operation, of which nothing is counted
    try:
        # As matrix products: the fused kernel of processors is not counted.
        plain = sdpa_kernel(SDPBackend.MATH)
        with torch.no_grad(), plain, counter, FakeTensorMode(allow_non_fake_inputs=True) as fake:
            # The module runs on meta tensors, so that changes of its buffers do not reach the real ones.
            empty: dict[str, torch.Tensor] = {name: fake.from_tensor(tensor) for name, tensor in state.items()}
            for size in sizes:
                seen = image.new_empty(1, image.shape[1], *size)
                torch.func.functional_call(module, empty, (fake.from_tensor(seen),))
    except (RuntimeError, TypeError, ValueError) as error:
        log.info(f"{backbone.name}: operations could not be counted ({str(error).splitlines()[0]})")
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for hook in hooks:
            hook.remove()
    return Work(float(counter.get_total_flops()) / 1e9, outputs[0])
