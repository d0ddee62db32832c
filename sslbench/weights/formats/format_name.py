"""Names of formats as typed, `FORMAT[:NETWORK][:PREFIX.]`, without torch."""

import dataclasses
from pathlib import Path
from typing import overload

from sslbench import names
from sslbench.errors import UsageError

CONTAINERS = ("safetensors", "pkl", "pth", "pickle", "torch")
"""Suffixes that may be taken for formats."""


@dataclasses.dataclass(frozen=True)
class FormatName:
    """Format that exists, by its name.

    Attributes:
        name: of the format.
        path: its table.
        network: network or variant of the format, which the table may lack; None where none is named.
    """

    name: str
    path: Path
    network: str | None


def find_format(text: str) -> FormatName:
    """Return the format of a name, or of the path of a .yaml file; a prefix behind it is left out.

    >>> find_format("moco:key").network
    'key'

    Raises:
        UsageError: there is no such format.
    """
    text, _ = without_wrapper(text)
    name, colon, network = text.partition(":") if "/" not in text.rpartition(":")[2] else (text, "", "")
    path = names.find_file("format", name)
    return FormatName(Path(name).stem if name.endswith(".yaml") else name, path, network if colon else None)


@overload
def without_wrapper(format: str) -> tuple[str, str]: ...
@overload
def without_wrapper(format: None) -> tuple[None, str]: ...
def without_wrapper(format: str | None) -> tuple[str | None, str]:
    """Divide the name of a format and the prefix behind it, which ends with a dot.

    >>> without_wrapper("torchvision:teacher."), without_wrapper("moco:key")
    (('torchvision', 'teacher.'), ('moco:key', ''))
    """
    if format is None or not format.endswith("."):
        return format, ""
    name, _, prefix = format.rpartition(":")
    return (name, prefix) if name else (format, "")


def check_format(to: str) -> None:
    """Raise if there is no format `to`.

    Raises:
        UsageError: it is none, or a container.
    """
    if to in CONTAINERS and to not in names.list_names("format"):
        raise UsageError(
            f"'{to}' is a container, not a format; the suffix of OUT selects it",
            f"Name the format of the keys, such as: OUT.{to} --to torchvision.",
        )
    find_format(to)
