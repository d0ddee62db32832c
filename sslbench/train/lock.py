"""Exclusive use of a folder: two trainings must not write checkpoints into one."""

import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from sslbench.distributed.collectives import from_first
from sslbench.errors import UsageError

NAME = "lock"
"""The file in the folder; it stays there, and says who has or had the lock."""
REQUEUE_SECONDS = 120.0
"""How long a job waits for its own earlier piece: a file server notices only after a while that a machine went down."""

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
log = logging.getLogger("sslbench")


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder for the time of the block; every process of this run calls this.

    The first process holds a POSIX lock, which the operating system releases however the process ends. Unlike a lock by
    flock it is not inherited by worker processes that live longer, and NFS knows it between machines.

    Args:
        folder: made when it is not there.

    Raises:
        UsageError: another run has it (the message names it), or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        from_first(lambda: stack.enter_context(_locked(folder)))
        yield


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows
        log.warning(f"{folder} cannot be locked on this system; start no second run in it")
        yield
        return
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
    with os.fdopen(handle, "r+", encoding="utf-8", errors="replace") as file:
        patience = time.monotonic() + REQUEUE_SECONDS
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    log.warning(f"{folder}: its file system has no locks ({error.strerror}); start no second run in it")
                    break
                _wait_or_refuse(path, patience)
            else:
                break
        file.truncate(0)
        file.write(_own_description())
        file.flush()
        yield


def _own_description() -> str:
    job = os.environ.get("SLURM_JOB_ID")
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"process {os.getpid()} on {socket.gethostname()}"
        + (f", SLURM job {job}" if job else "")
        + f", since {since}\n"
    )


def _wait_or_refuse(path: Path, patience: float) -> None:
    holder = path.read_text(encoding="utf-8", errors="replace").strip()
    job = os.environ.get("SLURM_JOB_ID")
    if job and f", SLURM job {job}," in holder and time.monotonic() < patience:
        time.sleep(1)
        return
    raise UsageError(
        f"{path.parent} is in use by another run: {holder or 'it does not say which'}",
        "Wait for it or stop it; or give another --out.",
    )
