"""Messages, warnings and progress of a running command, all on stderr."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from sslbench.cli.echo import echo, is_quiet, is_verbose, note
from sslbench.distributed import this_process
from sslbench.runtime.progress import ProgressBars


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warning = click.style("warning: ", fg="yellow", bold=True) if record.levelno >= logging.WARNING else ""
        origin = f"{time.strftime('%H:%M:%S')} {record.module}: " if is_verbose() else ""
        echo(record.getMessage(), err=True, before=f"{origin}{warning}")


def show_messages() -> None:
    """Print log messages of sslbench (INFO and above) on stderr.

    With --quiet only warnings; with --verbose also details, with time and module. Of several processes only the first
    prints information; all print warnings.
    """
    logger = logging.getLogger("sslbench")
    logger.handlers = [_Lines()]
    level = logging.DEBUG if is_verbose() else logging.INFO
    logger.setLevel(logging.WARNING if is_quiet() or this_process().rank != 0 else level)
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
        note(f"{title}: {done} of {total}{rate}")
        if done >= total:  # the next job may have the same title: the untrained network is finetuned alike
            del self.started[title]


@contextmanager
def progress() -> Iterator["ProgressLines | ProgressBars | None"]:
    """Provide a callable (what, done, total): bars on a terminal, lines otherwise.

    None on other processes than the first, and with --quiet.
    """
    if this_process().rank != 0 or is_quiet():
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
