"""Waiting for what another process or thread does, however busy the machine is."""

import time
from collections.abc import Callable

SECONDS = 600
"""Deadline of a test that would hang otherwise."""


def until(true: Callable[[], object], still: Callable[[], bool] = lambda: True) -> None:
    """Wait for a condition; fail if it cannot come true any more because `still` returns False."""
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, "it has not happened"
        assert still() or true(), "it ended before"
        time.sleep(0.01)
