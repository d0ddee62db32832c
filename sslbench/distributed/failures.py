"""End of all processes when one fails: none waits in a collective operation for one that has ended.

A process that fails leaves the reason in the store of torch's process group, where the others look for it. One that is
killed is noticed when its connections close, by gloo at once; torchrun and `srun --kill-on-bad-exit` end the others.
One that is frozen, or whose machine is, no longer counts in the store: the first process watches all others, the second
one the first. A thread counts, so a main thread that waits for a file system is not noticed here, but by the time limit
of the collective operation in which the others wait.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator

from torch._C._distributed_c10d import Store

from sslbench.distributed import Process
from sslbench.errors import SslbenchError

log = logging.getLogger("sslbench")
LOOK_SECONDS = 2.0
"""Interval at which a process looks for the reason of another."""
GRACE_SECONDS = 30.0
"""Time for which a process may end by itself after another one has failed."""
SILENT_SECONDS = 600.0
"""Time after which a process that no longer counts is taken for frozen."""
_LINGER_SECONDS = 10.0  # for the others to end as well; the first process may serve the store to them
_REMEDY = "The same command continues from the last checkpoint."
_LOST = ("Connection closed", "Connection reset", "Broken pipe", "NCCL", "Socket", "recvBytes")


class OtherProcessError(SslbenchError):
    """End of this process because of another one."""


@contextlib.contextmanager
def ending_together(process: Process, store: Store) -> Iterator[None]:
    """End all processes if this block fails in one of them; every process calls this.

    The process that failed shows its error as usual. The others leave by an error that is not printed, and those that
    wait in a collective operation are ended after a while.
    """
    watch = _Watch(process, store)
    thread = threading.Thread(target=watch.run, daemon=True)
    thread.start()
    try:
        yield
        watch.wait_for_others()
    except SslbenchError as error:
        watch.report(str(error))
        raise
    except BaseException as error:
        # A broken connection is mostly the trace of another process, whose reason follows a moment later.
        lost = isinstance(error, RuntimeError) and any(word in str(error) for word in _LOST)
        if watch.wait_for_reason(seconds=3 * LOOK_SECONDS if lost else 0.0):
            raise watch.error(printed=True) from error
        if lost and watch.report(str(error)):
            raise watch.error(printed=False) from error
        watch.report(f"{type(error).__name__}: {error}")
        raise
    finally:
        watch.leave()
        thread.join(2 * LOOK_SECONDS)


class _Watch:
    """View of the other processes."""

    def __init__(self, process: Process, store: Store) -> None:
        self.process = process
        self.store = store
        self.left = threading.Event()
        self.counts: dict[int, int] = {}
        self.silent: dict[int, float] = {}

    def run(self) -> None:
        """Watch until this process leaves, and end it if another has failed and it cannot leave."""
        with contextlib.suppress(RuntimeError):
            self.store.set(f"host{self.process.rank}", socket.gethostname())
        while not self.left.wait(LOOK_SECONDS):
            try:
                self.look_for_frozen()
                failed = self.store.check(["reason"])
                if not failed and self.store.check(["left0"]):
                    return
            except RuntimeError:  # the process that serves the store has ended
                failed = True
            if failed:
                if not self.left.wait(GRACE_SECONDS):
                    os._exit(1)  # the main thread waits in a collective operation, which nothing else interrupts
                return

    def look_for_frozen(self) -> None:
        """Count on, and leave a reason if a process that this one watches has not counted for long."""
        # The time is that of the looks: one that was itself suspended, with the whole job, has not looked meanwhile.
        self.store.add(f"count{self.process.rank}", 1)
        # The first process watches all others, and the second one the first: few requests, and nobody unwatched.
        watched = range(1, self.process.world) if self.process.rank == 0 else [0] if self.process.rank == 1 else []
        for rank in watched:
            count = self.store.add(f"count{rank}", 0)
            still = self.counts.get(rank) == count and not self.store.check([f"left{rank}"])
            self.silent[rank] = self.silent.get(rank, 0.0) + LOOK_SECONDS if still else 0.0
            self.counts[rank] = count
            if self.silent[rank] >= SILENT_SECONDS:
                host = self.store.get(f"host{rank}").decode() if self.store.check([f"host{rank}"]) else "a machine"
                reason = f"process {rank} on {host} has not answered for {self.silent[rank]:.0f} s"
                if self._claim(reason):
                    log.error(f"{reason}; ending all processes. {_REMEDY}")

    def report(self, reason: str) -> bool:
        """Leave the reason of a failure for the others; return whether it is the first one."""
        try:
            return self._claim(f"process {self.process.rank}: {reason}")
        except RuntimeError:
            return True

    def wait_for_reason(self, *, seconds: float) -> bool:
        """Return whether another process left a reason, at the latest after some seconds."""
        end = time.monotonic() + seconds
        while True:
            try:
                if self.store.check(["reason"]):
                    return not self.store.get("reason").decode().startswith(f"process {self.process.rank}:")
            except RuntimeError:
                return False
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)

    def wait_for_others(self) -> None:
        """Say that this process is done, and wait until the others are, at most for some seconds."""
        # The connections close then: one that is slow may still be in the last collective operation.
        others = [f"done{rank}" for rank in range(self.process.world)]
        end = time.monotonic() + _LINGER_SECONDS
        with contextlib.suppress(RuntimeError):
            self.store.set(f"done{self.process.rank}", "")
            while not self.store.check(others) and not self.store.check(["reason"]) and time.monotonic() < end:
                time.sleep(0.02)

    def error(self, *, printed: bool) -> OtherProcessError:
        """Return the error of a process that ends because of another."""
        error = OtherProcessError(
            "another process of this run, or its launcher, has ended; its own message says why", _REMEDY
        )
        error.printed_by_rank_0 = printed
        return error

    def leave(self) -> None:
        """End the watch; the first process stays until the others have left, at most for some seconds."""
        self.left.set()
        with contextlib.suppress(RuntimeError):
            self.store.set(f"left{self.process.rank}", "")
            if self.process.rank == 0:
                others = [f"left{rank}" for rank in range(1, self.process.world)]
                end = time.monotonic() + _LINGER_SECONDS
                while not self.store.check(others) and time.monotonic() < end:
                    time.sleep(0.05)

    def _claim(self, reason: str) -> bool:
        """Set the reason unless there is one; return whether it was set."""
        return bool(self.store.compare_set("reason", "", reason).decode() == reason)
