"""Checkpoints in a folder, by their names and without torch."""

import re
from pathlib import Path

from sslbench.errors import UsageError

CHECKPOINT = re.compile(r"step_(\d{9})\.ckpt")
"""Name of a checkpoint, with its number of updates."""


def files(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step_*.ckpt") if CHECKPOINT.fullmatch(path.name))


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint in a folder, or None."""
    found = files(folder)
    return found[-1] if found else None


def no_checkpoint(path: str) -> UsageError:
    """Return the error for a checkpoint of --resume-from that does not exist."""
    return UsageError(
        f"there is no checkpoint {path}",
        "Leave out --resume-from to continue from the newest checkpoint in --out.",
    )
