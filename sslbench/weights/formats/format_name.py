"""Names of formats as typed, `FORMAT[:NETWORK][:PLACE]`, without torch."""

import dataclasses
from pathlib import Path

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
        place: dotted path of the dict in the file, or prefix of the keys; '' where none is named.
    """

    name: str
    path: Path
    network: str | None
    place: str = ""


def find_format(text: str) -> FormatName:
    """Return the format of a name, or of the path of a .yaml file.

    A single word behind the name may be a network, a variant or a place: only the table and the file tell.

    >>> find_format("moco:key").network, find_format("moco:key:net.").place, find_format("timm:net.").place
    ('key', 'net.', 'net.')

    Raises:
        UsageError: there is no such format.
    """
    name, colon, rest = text.partition(":")
    if len(name) == 1 and rest.startswith(("/", "\\")):  # a drive of Windows
        drive, (name, colon, rest) = name, rest.partition(":")
        name = f"{drive}:{name}"
    path = names.find_file("format", name)
    name = path.stem if name.endswith(".yaml") else name
    network, second, place = rest.partition(":")
    if not second and rest.endswith("."):
        return FormatName(name, path, None, rest)
    return FormatName(name, path, network if colon else None, place)


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
