"""Choice of the checkpoint to continue from: the first process chooses it, and all processes must read the same."""

import logging
import socket
from pathlib import Path
from typing import Any

from sslbench.distributed.collectives import from_first, on_all, rank
from sslbench.errors import WeightsError
from sslbench.train import checkpoints

log = logging.getLogger("sslbench")


def newest_whole(folder: Path, *, given: Path | None = None) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint to continue from and its content, or None if there is none; every process calls this.

    Damaged checkpoints are skipped with a warning, and half-written files of earlier processes are removed. Call
    `continue_from` as soon as it is certain that training continues from the returned checkpoint.

    Args:
        folder: folder of the checkpoints.
        given: checkpoint named by the user; None for the newest undamaged one of the folder.

    Raises:
        WeightsError: the named checkpoint cannot be read, all checkpoints of the folder are damaged, or a process sees
            another file than the first process.
    """
    choice = from_first(lambda: _choose(folder, given))
    if choice is None:
        return None
    path, digest = choice
    return path, on_all(lambda: _read_same(path, digest))


def continue_from(folder: Path, path: Path, step: int) -> None:
    """Set later checkpoints aside and log where training continues; every process calls this.

    Args:
        folder: folder of the checkpoints.
        path: checkpoint to continue from.
        step: updates done in it.
    """
    for later in from_first(lambda: checkpoints.set_aside(folder, after=step)):
        log.info(f"renamed to {later}: training continues from an earlier checkpoint")
    log.info(f"continuing from {path} after update {step}")


def _choose(folder: Path, given: Path | None) -> tuple[Path, str] | None:
    """Return the checkpoint to continue from and its digest, on the first process."""
    checkpoints.remove_leftovers(folder)
    if given is not None:
        checkpoints.refuse_other_folder(given)
        return given, checkpoints.check(given)
    damaged = []
    for path in reversed(checkpoints.files(folder)):
        try:
            digest = checkpoints.check(path)
        except checkpoints.DamagedError as error:
            log.warning(f"{error.message}; trying the previous one")
            damaged.append(path.name)
        else:
            return path, digest
    if damaged:
        raise WeightsError(
            f"every checkpoint in {folder} is damaged: {', '.join(damaged)}",
            "Check the disk; remove them to start again.",
        )
    return None


def _read_same(path: Path, digest: str) -> dict[str, Any]:
    """Return the content of a checkpoint, if its digest is that of the first process."""
    remedy = "All processes must see the same --out, on a file system shared by their machines."
    process = f"process {rank()} on {socket.gethostname()}"
    try:
        own = digest if rank() == 0 else checkpoints.check(path, contents=False)
    except WeightsError as error:
        raise WeightsError(f"{process}: {error.message}", remedy) from error
    if own != digest:
        raise WeightsError(f"{path} differs between {process} and the first process", remedy)
    return checkpoints.read(path)
