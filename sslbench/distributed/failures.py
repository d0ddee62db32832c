"""End of all processes when one fails: none waits in a collective operation for one that has ended.

Every process leaves a heartbeat, and the reason of its failure, in the store of torch's process group.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator

from torch._C._distributed_c10d import PrefixStore, Store

from sslbench.distributed import Process
from sslbench.errors import SslbenchError

BEAT_SECONDS = 2.0
GONE_SECONDS = 120.0
"""Age of a heartbeat from which on its process counts as dead: a compiler may hold the interpreter for a minute."""
GRACE_SECONDS = 30.0
"""Time for which a process may end by itself after another one has failed."""
_LINGER_SECONDS = 10.0  # of the first process, which may serve the store to the others
_REMEDY = "The same command continues from the last checkpoint."
_LOST = ("Connection closed", "Connection reset", "Broken pipe", "NCCL", "Socket", "recvBytes")

log = logging.getLogger("sslbench")


class OtherProcessError(SslbenchError):
    """End of this process because of another one."""


@contextlib.contextmanager
def ending_together(process: Process, store: Store) -> Iterator[None]:
    """End all processes if this block fails in one of them; every process calls this.

    The process that failed shows its error as usual. The others leave by an error that is not printed, and those that
    wait in a collective operation are ended after a while.

    Args:
        process: this process, one of several.
        store: store that all processes reach.

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
        if watch.wait_for_reason(seconds=3 * BEAT_SECONDS if lost else 0.0):
            raise watch.error(printed=True) from error
        if lost and watch.report(str(error)):
            raise watch.error(printed=False) from error
        watch.report(f"{type(error).__name__}: {error}")
        raise
    finally:
        watch.leave()
        thread.join(2 * BEAT_SECONDS)


class _Watch:
    """Heartbeat of this process, and its view of the others."""

    def __init__(self, process: Process, store: Store) -> None:
        self.process = process
        self.store = PrefixStore("sslbench", store)
        self.left = threading.Event()
        self._seen: dict[int, tuple[bytes, float]] = {}

    def run(self) -> None:
        """Watch until this process leaves, and end it if another has failed and it cannot leave."""
        number = 0
        while not self.left.wait(BEAT_SECONDS):
            number += 1
            try:
                self.store.set(f"beat{self.process.rank}", str(number))
                if (dead := self._dead()) is not None and self._claim(f"process {dead} has died"):
                    log.error(f"process {dead} gives no sign of life for {GONE_SECONDS:.0f} s: all processes end")
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
        """End the heartbeat; the first process stays until the others have left, at most for some seconds."""
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

    def _dead(self) -> int | None:
        """Return a process whose heartbeat has stopped; the first process looks at all, the others at the first."""
        now = time.monotonic()
        ranks = range(1, self.process.world) if self.process.rank == 0 else range(1)
        for rank in ranks:
            if not self.store.check([f"beat{rank}"]) or self.store.check([f"left{rank}"]):
                continue
            beat = self.store.get(f"beat{rank}")
            before, since = self._seen.get(rank, (b"", now))
            self._seen[rank] = (beat, since if beat == before else now)
            if now - self._seen[rank][1] > GONE_SECONDS:
                return rank
        return None
