"""Rounding of float32 arithmetic: the only place that changes torch's switches for TensorFloat-32."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def arithmetic(device: "torch.device | str", *, tf32: bool = False, benchmark: bool | None = None) -> Iterator[None]:
    """Choose the rounding of float32 products and convolutions during a block, and restore the caller's choice.

    `benchmark`: let cuDNN try its algorithms for each new shape and keep the fastest; None: as it is.

    >>> with arithmetic("cpu"):
    ...     float32_rounding()
    'ieee'
    """
    # Evaluations compute exactly to float32 on every device, whatever the caller chose: cuDNN's own default,
    # TensorFloat-32, changes features in the third digit. Pretraining has a setting for it.
    import torch

    rounded = tf32 and torch.device(device).type == "cuda"
    cudnn, switches = torch.backends.cudnn, _switches()
    before, before_benchmark = [each.fp32_precision for each in switches], cudnn.benchmark
    products, convolutions = _old_switches()
    try:
        # Both of torch's interfaces are set: after a change by one alone, reading the other raises.
        torch.set_float32_matmul_precision("high" if rounded else "highest")
        cudnn.allow_tf32 = rounded
        for each in switches[:_OF_CUDA] if rounded else switches:
            each.fp32_precision = "tf32" if rounded else "ieee"
        cudnn.benchmark = before_benchmark if benchmark is None else benchmark
        yield
    finally:
        torch.set_float32_matmul_precision(products or "highest")
        cudnn.allow_tf32 = convolutions is not False
        for each, value in zip(switches, before, strict=True):
            each.fp32_precision = value
        cudnn.benchmark = before_benchmark


_OF_CUDA = 3


def _switches() -> list[Any]:
    """Return torch's switches of each library and operation, those of CUDA first; none before torch 2.9."""
    import torch

    backends: Any = torch.backends
    if not hasattr(backends.cuda.matmul, "fp32_precision"):
        return []
    of_cuda = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    return [*of_cuda, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]


def _old_switches() -> tuple[str | None, bool | None]:
    """Return torch's older switches of products and convolutions; None where newer ones were set to other values."""
    import torch

    products = convolutions = None
    with contextlib.suppress(RuntimeError):
        products = torch.get_float32_matmul_precision()
    with contextlib.suppress(RuntimeError):
        convolutions = torch.backends.cudnn.allow_tf32
    return products, convolutions


def float32_rounding() -> str:
    """Return the rounding that is chosen now: 'ieee', or the coarsest of 'tf32' and 'bf16' that any operation has."""
    found = {each.fp32_precision for each in _switches()}
    if not found:
        products, convolutions = _old_switches()
        found = {"bf16" if products == "medium" else "tf32" if products == "high" or convolutions else "ieee"}
    return next((name for name in ("bf16", "tf32") if name in found), "ieee")
