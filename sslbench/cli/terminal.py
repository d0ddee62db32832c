"""Messages, warnings and progress of a running command, all on stderr."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import click

from sslbench.cli.echo import echo_text, is_quiet, is_verbose, note
from sslbench.distributed import this_process
from sslbench.runtime.progress import ProgressBars, Rate, TrainingLine
from sslbench.steps import Advance, shown_by


class _Lines(logging.Handler):
    """Messages on stderr, each once per command; with --verbose as often as they come, with time and module."""

    def __init__(self) -> None:
        super().__init__()
        self.printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        # What was said of one network or image holds for the next; what the verdict tells comes with the table.
        if not is_verbose() and (message in self.printed or getattr(record, "in_verdict", False)):
            return
        self.printed.add(message)
        warning = click.style("warning: ", fg="yellow", bold=True) if record.levelno >= logging.WARNING else ""
        origin = f"{time.strftime('%H:%M:%S')} {record.module}: " if is_verbose() else ""
        echo_text(message, err=True, before=f"{origin}{warning}")


def show_messages() -> None:
    """Print log messages of sslbench (INFO and above) on stderr.

    With --quiet only warnings; with --verbose also details, with time and module. Of several processes only the first
    prints information; all print warnings.
    """
    logger = logging.getLogger("sslbench")
    logger.handlers = [_Lines()]
    level = logging.DEBUG if is_verbose() else logging.INFO
    logger.setLevel(logging.WARNING if is_quiet() or this_process().rank != 0 else level)
    # The root logger may have handlers of a library, which would print each message again.
    logger.propagate = False


class ProgressLines:
    """Progress without a terminal: at most one line every ten seconds, which keeps log files short."""

    def __init__(self) -> None:
        self.rates: dict[str, Rate] = {}
        self.last = time.monotonic()

    def __call__(self, title: str, done: int, total: int) -> None:
        """Report `done` of `total` images of one job."""
        now = time.monotonic()
        rate = self.rates.setdefault(title, Rate())(done)
        if done >= total:  # its result follows; the next job may have the same title
            del self.rates[title]
        elif now - self.last >= QUIET:
            self.last = now
            left = f", {rate:.0f} images/s, {duration((total - done) / rate)} left" if rate else ""
            note(f"{title}: {done} of {total}{left}")

    def line(self, line: TrainingLine) -> None:
        """Report the state of a training when it is time, and its end."""
        last = line.iteration == line.iterations
        if last or time.monotonic() - self.last >= QUIET:
            self.last = time.monotonic()
            left = "" if last else f"  {duration(line.left)} left"
            note(f"iteration {line.iteration} of {line.iterations}: {line.summary()}{left}")

    @contextmanager
    def steps(self, title: str, unit: str, total: int) -> Iterator[Advance]:
        """Write a line every 30 seconds while a solver is at work; see `sslbench.steps`."""
        done, started, ended = 0, time.monotonic(), threading.Event()

        def repeat() -> None:
            while not ended.wait(STEPS_EVERY):
                elapsed = time.monotonic() - started
                left = f", about {duration(elapsed * (total - done) / done)} left" if done else ""
                note(f"{title}: {done} of {total} {unit} after {duration(elapsed)}{left}")

        def advance(steps: int) -> None:
            nonlocal done
            done += steps

        # A thread, since a solver may take minutes for one of the steps that it reports.
        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield advance
        finally:
            ended.set()
            thread.join()


@contextmanager
def progress() -> Iterator["ProgressLines | ProgressBars | None"]:
    """Provide a callable (what, done, total): bars on a terminal, lines otherwise.

    None on other processes than the first, and with --quiet.
    """
    if this_process().rank != 0 or is_quiet():
        yield None
        return
    if not sys.stderr.isatty():
        lines = ProgressLines()
        with shown_by(lines.steps):
            yield lines
        return
    with closing(ProgressBars()) as bars, shown_by(bars.steps):
        yield bars


QUIET = 10.0  # shortest time between two lines of a log file, in seconds
STEPS_EVERY = 30.0  # time between two lines of a solver in a log file, in seconds


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
