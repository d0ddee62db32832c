"""Names of formats as typed, `FORMAT[:NETWORK][:PREFIX.]`, without torch."""

import dataclasses
from pathlib import Path
from typing import overload

from sslbench import names


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
