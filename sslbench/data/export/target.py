"""Manifest to write, checked before any data are opened."""

from pathlib import Path

from sslbench.errors import UsageError

SUFFIXES = (".json", ".kwcoco.zip")


def check_manifest(out: Path, *, overwrite: bool) -> None:
    """Refuse a manifest that cannot be written.

    Raises:
        UsageError: it has another suffix or exists, or its folder does not.
    """
    if not out.name.lower().endswith(SUFFIXES):
        raise UsageError(f"{out} should end in .kwcoco.json, .json or .kwcoco.zip")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists already", "Give another name, or --overwrite.")
    if not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist")
