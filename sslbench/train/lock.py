"""Lock of a folder: two runs must not write checkpoints into the same one."""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from sslbench import locks
from sslbench.distributed.collectives import from_first
from sslbench.errors import UsageError
from sslbench.paths import naming, not_written

NAME = "lock"
"""Lock file; it remains in the folder and names the last owner of the lock."""
REQUEUE_SECONDS = 120.0
"""Time for which a requeued job waits for the lock of its earlier part: file servers notice a lost machine late."""


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a folder during a block; every process of a run calls this."""
    # The first process holds a POSIX lock, which the operating system releases however the process ends. Unlike a lock
    # by flock, it is not inherited by worker processes that live longer, and it works between machines on NFS.
    with contextlib.ExitStack() as stack:
        from_first(lambda: stack.enter_context(_locked(folder)))
        yield


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows
        locks.warn_unsupported(folder)
        yield
        return
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UsageError(not_written(path, error)) from error
    with os.fdopen(handle, "r+", encoding="utf-8", errors="replace") as file:
        deadline = time.monotonic() + REQUEUE_SECONDS
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (*locks.UNSUPPORTED, errno.EINVAL):
                    locks.warn_unsupported(folder)
                    break
                _wait_or_refuse(path, deadline)
            else:
                break
        with naming(path):
            file.truncate(0)
            job = os.environ.get("SLURM_JOB_ID")
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(
                f"process {os.getpid()} on {socket.gethostname()}"
                + (f", SLURM job {job}" if job else "")
                + f", since {since}\n"
            )
            file.flush()
        yield


def _wait_or_refuse(path: Path, deadline: float) -> None:
    """Sleep for a second if the owner is an earlier part of this SLURM job; raise UsageError otherwise."""
    holder = path.read_text(encoding="utf-8", errors="replace").strip()
    job = os.environ.get("SLURM_JOB_ID")
    if job and f", SLURM job {job}," in holder and time.monotonic() < deadline:
        time.sleep(1)
        return
    raise UsageError(
        f"{path.parent} is in use by another run: {holder or 'unknown owner'}",
        "Wait for it or stop it; or give another --out.",
    )
