"""Signals that ask a run to stop: remembered, so that it can save first."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """A function that gives the signal that asked this process to stop, or 0; a second Ctrl-C stops at once.

    SIGTERM, SIGINT and SIGUSR1 are remembered for the time of the block, in the main thread only: Python allows no
    other thread to.
    """
    received = [0]
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return

    def remember(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and received[0]:
            raise KeyboardInterrupt
        received[0] = number

    handled = [signal.SIGTERM, signal.SIGINT, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
    previous = {number: signal.signal(number, remember) for number in handled}
    try:
        yield lambda: received[0]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
