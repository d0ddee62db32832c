"""Checkpoint files: each appears whole or not at all, the last few are kept, none needs unpickling of code.

They are zip files, as `torch.save` writes them, with a checksum of each part. `torch.load` does not look at it; `check`
does.
"""

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
    """The file is a checkpoint, or was one, and its content is not what was written."""


def write(folder: Path, step: int, content: dict[str, Any], *, keep: int) -> Path:
    """One checkpoint, and the oldest ones beyond `keep` removed afterwards.

    Args:
        folder: made when it is not there.
        step: optimizer updates done.
        content: tensors, numbers, text in dicts, lists and tuples.
        keep: how many stay.

    Raises:
        SslbenchError: the folder or disk does not take it; checkpoints that are there stay.
    """
    path = folder / f"step_{step:09d}.ckpt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            write_torch(temporary, {"format": FORMAT, "version": VERSION, "step": step, **content})
    except (OSError, SslbenchError) as error:
        kept = newest(folder)
        remedy = f"The last whole checkpoint is {kept}." if kept else "No checkpoint was written yet."
        message = error.message if isinstance(error, SslbenchError) else f"cannot write {path}: {error}"
        raise SslbenchError(message, f"Free some space. {remedy}") from error
    for old in files(folder)[: -max(keep, 1)]:
        old.unlink(missing_ok=True)
    return path


def files(folder: Path) -> list[Path]:
    """Checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step_*.ckpt") if _NAME.fullmatch(path.name))


def newest(folder: Path) -> Path | None:
    """The last one, None when there is none."""
    found = files(folder)
    return found[-1] if found else None


def check(path: Path) -> str:
    """Return a digest of what the file holds, after comparing every part with its checksum.

    Raises:
        DamagedError: it is cut off, or a part is not what was written.
        WeightsError: the file system does not give it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
            parts = [f"{part.filename} {part.file_size} {part.CRC}" for part in archive.infolist()]
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # whatever a flipped byte makes zipfile stumble over
        raise DamagedError(f"{path} is damaged: {error}", "Remove it to use the one before.") from error
    if wrong is not None:
        raise DamagedError(f"{path} is damaged: the checksum of {wrong} is wrong", "Remove it to use the one before.")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """Return what `write` wrote; `check` finds a file that is damaged.

    Raises:
        WeightsError: it cannot be read, or is something else.
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
        raise WeightsError(f"{path} is not a checkpoint of sslbench", "Weights are given with --init.")
    if content["version"] != VERSION:
        raise WeightsError(
            f"{path} was written by another version of sslbench (format {content['version']}, not {VERSION})",
            "Continue with that version, or begin anew in another --out.",
        )
    return content


def set_aside(folder: Path, *, after: int) -> list[Path]:
    """Rename the checkpoints of later updates, so that nothing continues from them: training goes on before them.

    Args:
        folder: where they lie.
        after: updates done.

    Returns:
        What they are called now.
    """
    later = [path for path in files(folder) if int(path.stem.removeprefix("step_")) > after]
    return [path.replace(path.with_name(f"{path.name}.set-aside")) for path in later]


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of a process that was killed while it wrote."""
    for leftover in folder.glob(".*.part.*"):  # as weights.save.new_file names them
        leftover.unlink(missing_ok=True)
