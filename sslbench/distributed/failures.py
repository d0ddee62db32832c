"""End of all processes when one fails: none waits in a collective operation for one that has ended.

A process that fails leaves the reason in the store of torch's process group, where the others look for it. One that is
killed is noticed when its connections close, by gloo at once; torchrun and `srun --kill-on-bad-exit` end the others.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from torch._C._distributed_c10d import Store

from sslbench.distributed import Process
from sslbench.errors import SslbenchError

LOOK_SECONDS = 2.0
"""Interval at which a process looks for the reason of another."""
GRACE_SECONDS = 30.0
"""Time for which a process may end by itself after another one has failed."""
_LINGER_SECONDS = 10.0  # of the first process, which may serve the store to the others
_REMEDY = "The same command continues from the last checkpoint."
_LOST = ("Connection closed", "Connection reset", "Broken pipe", "NCCL", "Socket", "recvBytes")


class OtherProcessError(SslbenchError):
    """End of this process because of another one."""


@contextlib.contextmanager
def ending_together(process: Process, store: Store) -> Iterator[None]:
    """End all processes if this block fails in one of them; every process calls this.

    The process that failed shows its error as usual. The others leave by an error that is not printed, and those that
    wait in a collective operation are ended after a while.

    Args:
        process: this process, one of several.
        store: store that all processes reach, with no keys of an earlier block.

    Raises:
        OtherProcessError: another process failed or died.
    """
    watch = _Watch(process, store)
    thread = threading.Thread(target=watch.run, daemon=True)
    thread.start()
    try:
        yield
    except SslbenchError as error:
        watch.report(str(error))
        raise
    except BaseException as error:
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

    def run(self) -> None:
        """Watch until this process leaves, and end it if another has failed and it cannot leave."""
        while not self.left.wait(LOOK_SECONDS):
            try:
                failed = self.store.check(["reason"])
                if not failed and self.store.check(["left0"]):
                    return
            except RuntimeError:  # the process that serves the store has ended
                failed = True
            if failed:
                if not self.left.wait(GRACE_SECONDS):
                    os._exit(1)  # the main thread waits in a collective operation, which nothing else interrupts
                return

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

    def error(self, *, printed: bool) -> OtherProcessError:
        """Return the error of a process that ends because of another."""
        error = OtherProcessError("another process of this run has ended; its own message says why", _REMEDY)
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
