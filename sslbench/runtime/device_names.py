"""Names of devices and precisions, without torch."""

import re
from typing import Literal

from sslbench.errors import UsageError

Precision = Literal["fp32", "bf16", "fp16"]
"""Precision of a forward pass."""
EncodingPrecision = Literal["fp32", "bf16", "fp16", "int8"]
"""Precision of a forward pass that nothing is trained through."""
AskedPrecision = Literal["auto", "fp32", "bf16", "fp16"]
"""Precision that may be left to the device."""

_DEVICE = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d{1,2})?")


def refuse_unknown_device(name: str) -> None:
    """Refuse a word that names no device; this machine may still lack the device.

    Raises:
        UsageError: it names none.
    """
    if not _DEVICE.fullmatch(name):
        raise UsageError(f"there is no device called '{name}'", "Use auto, cpu, cuda, cuda:1, mps or xpu.")


def float_precision(precision: EncodingPrecision) -> Precision:
    """Return the precision of a network that is trained or gives maps.

    Raises:
        UsageError: the precision is int8.
    """
    if precision == "int8":
        raise UsageError(
            "precision int8 is for protocols on features, such as linear and knn, and for extract",
            "Use --precision bf16 or fp32.",
        )
    return precision
