"""Checkpoint files: written atomically, the last few kept, readable without unpickling code.

They are zip files, as `torch.save` writes them, with a checksum of each part. `torch.load` ignores the checksums;
`check` compares them.
"""

import dataclasses
import hashlib
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from sslbench.errors import SslbenchError, WeightsError
from sslbench.weights.save import CHECKPOINT_FORMAT, new_file, write_torch

FORMAT = CHECKPOINT_FORMAT
VERSION = 1
_NAME = re.compile(r"step_(\d{9})\.ckpt")


class DamagedError(WeightsError):
    """Damaged checkpoint: the content differs from what was written."""


def write(folder: Path, step: int, content: dict[str, Any], *, keep: int) -> Path:
    """Write a checkpoint, then remove the oldest ones beyond `keep`.

    Args:
        folder: folder of the checkpoints, created if missing.
        step: optimizer updates done.
        content: tensors, numbers and text in dicts, lists and tuples.
        keep: number of checkpoints to keep.

    Raises:
        SslbenchError: the checkpoint cannot be written; earlier checkpoints are kept.
    """
    path = folder / f"step_{step:09d}.ckpt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            write_torch(temporary, {"format": FORMAT, "version": VERSION, "step": step, **content})
    except (OSError, SslbenchError) as error:
        previous = newest(folder)
        remedy = f"The last complete checkpoint is {previous}." if previous else "No checkpoint was written yet."
        message = error.message if isinstance(error, SslbenchError) else f"cannot write {path}: {error}"
        raise SslbenchError(message, f"Free disk space. {remedy}") from error
    for old in files(folder)[: -max(keep, 1)]:
        old.unlink(missing_ok=True)
    return path


def files(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step_*.ckpt") if _NAME.fullmatch(path.name))


@dataclasses.dataclass(frozen=True)
class Position:
    """Position of a checkpoint in its run: updates done, and epochs; None for files that do not record them."""

    step: int
    epoch: float | None


def position(path: Path) -> Position:
    """Return the position of a checkpoint in its run; its tensors are not read."""
    step = int(path.stem.removeprefix("step_"))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return Position(step, float(content["metadata"]["epochs"]))
    except Exception:  # noqa: BLE001  a damaged file is reported where its tensors are read
        return Position(step, None)


def run_name(folder: Path) -> str:
    """Return the name of the run that a folder of checkpoints belongs to.

    >>> run_name(Path("runs/a/checkpoints")), run_name(Path("copied"))
    ('a', 'copied')
    """
    whole = folder.absolute()
    return whole.parent.name if whole.name == "checkpoints" else whole.name


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint in a folder, or None."""
    found = files(folder)
    return found[-1] if found else None


def check(path: Path) -> str:
    """Compare every part of a checkpoint with its checksum, and return a digest of the whole.

    Raises:
        DamagedError: the file is cut off, or a checksum is wrong.
        WeightsError: the file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
            parts = [f"{part.filename} {part.file_size} {part.CRC}" for part in archive.infolist()]
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # a flipped byte makes zipfile raise many kinds
        raise DamagedError(f"{path} is damaged: {error}", "Remove it to use the previous one.") from error
    if wrong is not None:
        raise DamagedError(f"{path} is damaged: the checksum of {wrong} is wrong", "Remove it to use the previous one.")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint; use `check` first to find damage.

    Raises:
        WeightsError: the file cannot be read, or is no checkpoint.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise WeightsError(f"{path} cannot be read as a checkpoint: {error}") from error
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":
            raise
        raise WeightsError(
            f"{path} is not a checkpoint of sslbench", "It holds more than tensors and numbers."
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise WeightsError(f"{path} is not a checkpoint of sslbench", "Pass weights with --init.")
    if content["version"] != VERSION:
        raise WeightsError(
            f"{path} was written by another version of sslbench (format {content['version']}, not {VERSION})",
            "Continue with that version, or start a new run in another --out.",
        )
    return content


def set_aside(folder: Path, *, after: int) -> list[Path]:
    """Rename the checkpoints of later updates, so that no run continues from them.

    Args:
        folder: folder of the checkpoints.
        after: update from which training continues.

    Returns:
        The renamed files.
    """
    later = [path for path in files(folder) if int(path.stem.removeprefix("step_")) > after]
    return [path.replace(path.with_name(f"{path.name}.set-aside")) for path in later]


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of a process that was killed while writing."""
    for leftover in folder.glob(".*.part.*"):  # as weights.save.new_file names them
        leftover.unlink(missing_ok=True)
