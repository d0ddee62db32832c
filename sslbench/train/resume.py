"""The checkpoint that a training continues from: the first process chooses it, and all must read the same one."""

import logging
import socket
from pathlib import Path
from typing import Any

from sslbench.distributed.collectives import from_first, on_all, rank
from sslbench.errors import WeightsError
from sslbench.train import checkpoints

log = logging.getLogger("sslbench")


def newest_whole(folder: Path, *, given: Path | None = None) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint to continue from and its content, or None where there is none; every process calls this.

    Damaged ones are passed over with a warning. What an earlier process left half-written is removed. Call
    `continue_from` once it is certain that the training goes on from there.

    Args:
        folder: of the checkpoints.
        given: the one that the user named; None: the newest whole one of the folder.

    Raises:
        WeightsError: the named one cannot be read, every one of the folder is damaged, or one of the processes sees
            another file than the first.
    """
    choice = from_first(lambda: _choose(folder, given))
    if choice is None:
        return None
    path, digest = choice
    return path, on_all(lambda: _read_same(path, digest))


def continue_from(folder: Path, path: Path, step: int) -> None:
    """Set later checkpoints aside and say where training goes on; every process calls this.

    Args:
        folder: of the checkpoints.
        path: what is continued from.
        step: updates done there.
    """
    for later in from_first(lambda: checkpoints.set_aside(folder, after=step)):
        log.info(f"renamed to {later}: training continues from an earlier checkpoint")
    log.info(f"continuing from {path} after update {step}")


def _choose(folder: Path, given: Path | None) -> tuple[Path, str] | None:
    checkpoints.remove_leftovers(folder)
    if given is not None:
        return given, checkpoints.check(given)
    damaged = []
    for path in reversed(checkpoints.files(folder)):
        try:
            digest = checkpoints.check(path)
        except checkpoints.DamagedError as error:
            log.warning(f"{error.message}; trying the one before")
            damaged.append(path.name)
        else:
            return path, digest
    if damaged:
        raise WeightsError(
            f"every checkpoint in {folder} is damaged: {', '.join(damaged)}",
            "Look after the disk; remove them to begin anew.",
        )
    return None


def _read_same(path: Path, digest: str) -> dict[str, Any]:
    """Return the content on this process, if it is what the first one chose."""
    remedy = "All processes have to see the same --out, on a file system that their machines share."
    who = f"process {rank()} on {socket.gethostname()}"
    try:
        own = digest if rank() == 0 else checkpoints.check(path)
    except WeightsError as error:
        raise WeightsError(f"{who}: {error.message}", remedy) from error
    if own != digest:
        raise WeightsError(f"{path} is another file for {who} than for the first process", remedy)
    return checkpoints.read(path)
