"""Checkpoint files: each appears whole or not at all, the last few are kept, none needs unpickling of code."""

import logging
import re
from pathlib import Path
from typing import Any

import torch

from sslbench.errors import SslbenchError, WeightsError
from sslbench.weights.save import new_file

FORMAT = "sslbench checkpoint"
VERSION = 1
_NAME = re.compile(r"step_(\d{9})\.ckpt")
log = logging.getLogger("sslbench")


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
        with new_file(path) as temporary, temporary.open("wb") as file:
            torch.save({"format": FORMAT, "version": VERSION, "step": step, **content}, file)
    except (OSError, RuntimeError, SslbenchError) as error:  # torch reports a full disk as RuntimeError
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


def read(path: Path) -> dict[str, Any]:
    """What `write` wrote.

    Raises:
        WeightsError: it cannot be read, or is something else.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise WeightsError(
            f"{path} cannot be read as a checkpoint: {error}", "Remove it to use the one before."
        ) from error
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":
            raise
        raise WeightsError(
            f"{path} is not a checkpoint of sslbench", "It holds more than tensors and numbers."
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise WeightsError(f"{path} is not a checkpoint of sslbench", "Weights are given with --init.")
    if content["version"] != VERSION:
        raise WeightsError(f"{path} was written by another version of sslbench (format {content['version']})")
    return content


def remove_leftovers(folder: Path) -> None:
    """Temporary files of a process that was killed while it wrote."""
    for leftover in folder.glob(".*.part.*"):  # as weights.save.new_file names them
        leftover.unlink(missing_ok=True)
