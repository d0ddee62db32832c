"""Names of formats as typed, `FORMAT[:NETWORK][:PLACE]`, and files to write, checked without torch."""

import dataclasses
from pathlib import Path

from sslbench import names
from sslbench.errors import UsageError

# Suffixes that may be taken for formats.
CONTAINERS = ("safetensors", "pkl", "pth", "pickle", "torch")


# Suffixes of exported networks.
EXPORTS = (".onnx", ".pt2")


@dataclasses.dataclass(frozen=True)
class FormatName:
    """Format that exists, by its name.

    Attributes:
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
    """Raise if there is no format `to`."""
    if to in CONTAINERS and to not in names.list_names("format"):
        raise UsageError(
            f"'{to}' is a container, not a format; the suffix of OUT selects it",
            f"Name the format of the keys, such as: OUT.{to} --to torchvision.",
        )
    find_format(to)


def check_target(path: Path, *, overwrite: bool, remedy: str = "say that it may be overwritten") -> None:
    """Raise if a file cannot be written at `path`."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "Give the name of a file.")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists already", f"Give another name, or {remedy}.")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: the folder {path.parent} does not exist")


def check_conversion(src: Path, dst: Path, *, overwrite: bool) -> None:
    """Raise if a conversion of `src` cannot be written at `dst`."""
    dst = dst.expanduser()
    check_target(dst, overwrite=overwrite, remedy="replace it with --force")
    if dst.exists() and src.exists() and dst.samefile(src):
        raise UsageError(f"{dst} is the input file", "Give another name for the converted file.")


def check_export(out: Path, *, overwrite: bool) -> None:
    """Raise if a network cannot be exported to `out`."""
    if out.suffix not in EXPORTS:
        raise UsageError(f"{out}: exported files end in {' or '.join(EXPORTS)}", "Name it net.onnx or net.pt2.")
    check_target(out, overwrite=overwrite, remedy="replace it with --force")
