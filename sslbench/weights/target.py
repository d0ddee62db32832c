"""Files to write, checked without torch before any weights are read."""

from pathlib import Path

from sslbench.errors import UsageError

EXPORTS = (".onnx", ".pt2")
"""Suffixes of exported networks."""


def check_target(path: Path, *, overwrite: bool, remedy: str = "say that it may be overwritten") -> None:
    """Raise if a file cannot be written at `path`.

    Raises:
        UsageError: the file exists already, is a folder, or its folder does not exist.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "Give the name of a file.")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists already", f"Give another name, or {remedy}.")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: the folder {path.parent} does not exist")


def check_conversion(src: Path, dst: Path, *, overwrite: bool) -> None:
    """Raise if a conversion of `src` cannot be written at `dst`.

    Raises:
        UsageError: see `check_target`; or `dst` is `src`.
    """
    dst = dst.expanduser()
    check_target(dst, overwrite=overwrite, remedy="replace it with --force")
    if dst.exists() and src.exists() and dst.samefile(src):
        raise UsageError(f"{dst} is the input file", "Give another name for the converted file.")


def check_export(out: Path, *, overwrite: bool) -> None:
    """Raise if a network cannot be exported to `out`.

    Raises:
        UsageError: another suffix, or see `check_target`.
    """
    if out.suffix not in EXPORTS:
        raise UsageError(f"{out}: exported files end in {' or '.join(EXPORTS)}", "Name it net.onnx or net.pt2.")
    check_target(out, overwrite=overwrite, remedy="replace it with --force")
