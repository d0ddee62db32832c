"""Messages, warnings and progress of a running command, all on stderr."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from sslbench.cli.echo import echo
from sslbench.distributed import this_process
from sslbench.runtime.progress import ProgressBars


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warning = click.style("warning: ", fg="yellow", bold=True) if record.levelno >= logging.WARNING else ""
        echo(record.getMessage(), err=True, before=warning)


def show_messages() -> None:
    """Print log messages of sslbench (INFO and above) on stderr.

    Of several processes only the first prints information; all print warnings.
    """
    logger = logging.getLogger("sslbench")
    logger.handlers = [_Lines()]
    logger.setLevel(logging.INFO if this_process().rank == 0 else logging.WARNING)
    logger.propagate = False


class ProgressLines:
    """Progress without a terminal: at most one line every ten seconds, which keeps log files short."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.last = 0.0

    def __call__(self, title: str, done: int, total: int) -> None:
        """Report `done` of `total` images of one job."""
        now = time.monotonic()
        started = self.started.setdefault(title, now)
        if done < total and now - self.last < 10:
            return
        self.last = now
        rate = f", {done / (now - started):.0f} images/s" if now > started else ""
        echo(f"{title}: {done} of {total}{rate}", err=True)
        if done >= total:  # the next job may have the same title: the untrained network is finetuned alike
            del self.started[title]


@contextmanager
def progress() -> Iterator["ProgressLines | ProgressBars | None"]:
    """Provide a callable (what, done, total): bars on a terminal, lines otherwise; None except on the first process."""
    if this_process().rank != 0:
        yield None
        return
    if not sys.stderr.isatty():
        yield ProgressLines()
        return
    bars = ProgressBars()
    try:
        yield bars
    finally:
        bars.close()


QUIET = 10.0  # shortest time between two lines of a log file, in seconds


def duration(seconds: float) -> str:
    """Format a duration.

    Example:
        >>> duration(42), duration(11100), duration(2 * 86400 + 3 * 3600)
        ('0:42', '3:05:00', '2d 03:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
