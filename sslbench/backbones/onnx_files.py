"""Networks as ONNX files, and the optional packages for them."""

import importlib.metadata
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.errors import UsageError

log = logging.getLogger("sslbench")

_LARGEST = 1.9e9


def need_onnx(purpose: str, otherwise: str) -> None:
    """Refuse what the packages of ONNX are needed for where one is missing.

    Args:
        purpose: users of the packages, in the plural.
        otherwise: remedy without them.

    Raises:
        UsageError: one cannot be imported.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise UsageError(
            f"{purpose} need the packages onnx, onnxscript and onnxruntime: {error}",
            f"pip install 'sslbench[onnx]', or {otherwise}",
        ) from error
    log.debug(f"onnx {onnx.__version__}, onnxscript {onnxscript.__version__}, onnxruntime {onnxruntime.__version__}")


def quantiser() -> str:
    """Return the library that rounds networks to 8 bits, with its version."""
    return f"onnxruntime {importlib.metadata.version('onnxruntime')}"


def refuse_large(backbone: Backbone, remedy: str) -> None:
    """Refuse a network whose tensors one ONNX file cannot hold.

    Raises:
        UsageError: it has more than 1.9 GB of them.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in backbone.module.state_dict().values())
    if size > _LARGEST:
        raise UsageError(f"{backbone.name} has {size / 1e9:.1f} GB of tensors; one ONNX file holds 2 GB", remedy)


def any_batch() -> dict[int, Any]:
    """Return the dynamic shape of images (B, C, H, W) of any number."""
    return {0: torch.export.Dim("batch", min=1, max=2**31 - 1)}  # without an end torch below 2.8 refuses


def write_onnx(
    network: nn.Module, images: Tensor, path: Path, input_name: str, outputs: Sequence[str], facts: Mapping[str, str]
) -> None:
    """Write a network as one ONNX file for any number of images.

    Args:
        network: images (B, C, H, W) -> one or several tensors.
        images: an example, two at least.
        path: of the file.
        input_name: name of the images, that of the argument of `network.forward`.
        outputs: names of the outputs, in their order.
        facts: stored in the file.

    Raises:
        RuntimeError: torch returns no program, or an error of its own for a network that it cannot trace.
    """
    program = torch.onnx.export(
        network,
        (images,),
        dynamo=True,
        dynamic_shapes={input_name: any_batch()},
        input_names=[input_name],
        output_names=list(outputs),
        verbose=False,
    )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    program.model.metadata_props.update(facts)
    program.save(path)


def cause_of(error: BaseException) -> str:
    """Return the first line of the error that caused the others; torch's exporter says only in which step it failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:300]}"
