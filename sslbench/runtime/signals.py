"""Signals that ask a run to stop: recorded, so that the run can save a checkpoint first."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import torch

from sslbench.distributed.collectives import barrier, max_, world_size
from sslbench.errors import SslbenchError

SIGNAL_INTERVAL = 10
"""Updates between two comparisons of the signals that several processes received."""


class StoppedError(SslbenchError):
    """End of a run on request by a signal, after everything was saved."""

    def __init__(self, number: int, position: str) -> None:
        """Set the message, and the exit code that shells expect for the signal."""
        message = f"stopped by signal {number} after {position}; everything is saved"
        super().__init__(message, "Run the same command again to continue.")
        self.exit_code = 128 + number


def stop_together(number: int, position: str) -> NoReturn:
    """End a run of which every process has done its part of the saving; arguments as for `StoppedError`."""
    barrier()
    raise StoppedError(number, position)


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """Record SIGTERM, SIGINT and SIGUSR1 during a block instead of ending the process.

    Yields a function that returns the signal received by this process, or 0. A second Ctrl-C stops at once. In threads
    other than the main thread nothing is recorded, because Python handles signals in the main thread only.
    """
    received = [0]
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return

    def record(number: int, frame: FrameType | None) -> None:
        # The second Ctrl-C: the user does not want to wait for the checkpoint.
        if number == signal.SIGINT and received[0]:
            raise KeyboardInterrupt
        received[0] = number

    handled = [signal.SIGTERM, signal.SIGINT, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
    previous = {number: signal.signal(number, record) for number in handled}
    try:
        yield lambda: received[0]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    # The block ended by itself after the signal; on several processes these agree on it in the block.
    if received[0] and world_size() == 1:
        raise StoppedError(received[0], "the last update")


def signal_on_any_process(signal_number: Callable[[], int], device: torch.device, *, compare: bool) -> int:
    """Return the signal that any process received, or 0; every process gets the same answer."""
    if world_size() == 1:
        return signal_number()
    return int(max_(torch.tensor(signal_number(), device=device))) if compare else 0
