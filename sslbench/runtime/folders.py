"""Output folders."""

import os
import re
from pathlib import Path

from sslbench.errors import UsageError
from sslbench.paths import file_url_path, not_written


def is_address(place: str | Path) -> bool:
    """Return whether a place is on another machine: an address of fsspec, of which click may have made s3:/bucket."""
    return re.match(r"(?!file:|local:)[a-z][a-z0-9+.-]+:/", str(place)) is not None


def refuse_address(place: str | Path) -> None:
    """Refuse an address where a path is needed, which would make a folder 's3:' or 'file:'."""
    if (path := file_url_path(place)) is not None:
        raise UsageError(f"{place} is a URL, and a path is needed", f"Write {path}.")
    if is_address(place):
        raise UsageError(
            f"{re.sub(r':/+', '://', str(place), count=1)} is an address, and a place on this machine is needed",
            "Addresses are for --weights, --data, and --out of eval and sweep; give a folder and copy it afterwards.",
        )


def refuse_unwritable(folder: Path) -> None:
    """Refuse an output folder that cannot be made, without making it."""
    refuse_address(folder)
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not existing.is_dir():
        raise UsageError(f"cannot write into {folder}: {existing} is a file")
    if not os.access(existing, os.W_OK):
        raise UsageError(f"cannot write into {folder}: {existing} does not allow writing")


def refuse_filled_folder(folder: Path) -> None:
    """Refuse an output folder that holds anything, or that cannot be made, without making it."""
    refuse_unwritable(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already and is not empty", "Give another folder.")


def refuse_output_file(file: Path) -> None:
    """Refuse an output file that is a folder, or whose folder cannot be made, without making it."""
    if file.is_dir():
        raise UsageError(f"{file} is a folder", "Give the name of a file.")
    refuse_unwritable(file.parent)


def refuse_missing_folder(file: Path) -> None:
    """Refuse an output file that is a folder, or whose folder does not exist."""
    refuse_address(file)
    if file.is_dir() or not file.parent.is_dir():
        raise UsageError(f"cannot write {file}", "Give a file in an existing folder.")


def check_writable(folder: Path) -> None:
    """Create an output folder, and check that it is writable before hours of work."""
    refuse_address(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".write-test"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(not_written(folder, error)) from error
