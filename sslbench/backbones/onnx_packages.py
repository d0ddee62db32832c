"""Packages of ONNX, which are optional, and their versions."""

import importlib.metadata
import logging

from sslbench.errors import UsageError

log = logging.getLogger("sslbench")


def need_onnx(purpose: str, otherwise: str) -> None:
    """Refuse what the packages of ONNX are needed for where one is missing.

    Args:
        purpose: what needs them, in the plural.
        otherwise: what to do without them.

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
