"""Progress of a detector's training and evaluation, on stderr."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sslbench.cli.echo import is_quiet, note
from sslbench.cli.terminal import QUIET, ProgressLines, duration
from sslbench.distributed import this_process
from sslbench.runtime.progress import Rate, make_bars

if TYPE_CHECKING:
    from sslbench.detection.log import DetectionLogLine


class DetectionLines:
    """Progress without a terminal: a line every ten seconds at most, and the last one."""

    def __init__(self) -> None:
        self.images = ProgressLines()
        self.last = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report `done` of `total` images."""
        self.images(what, done, total)

    def line(self, line: "DetectionLogLine") -> None:
        """Report an iteration when it is time."""
        now = time.monotonic()
        if now - self.last >= QUIET or line.iteration == line.iterations:
            self.last = now
            note(f"iteration {line.iteration} of {line.iterations}: {_text(line, whole=True)}")


class DetectionBars:
    """Progress on a terminal: a bar for each training and each evaluation."""

    def __init__(self) -> None:
        self.bars = make_bars(16)
        self.open: dict[str, tuple[Any, Rate]] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Move the bar of the images."""
        self._move(what, done, total, None)

    def line(self, line: "DetectionLogLine") -> None:
        """Move the bar of the training."""
        self._move("training", line.iteration, line.iterations, _text(line, whole=False))

    def _move(self, what: str, done: int, total: int, text: str | None) -> None:
        self.bars.start()
        if what not in self.open:
            self.open[what] = (self.bars.add_task(what, total=total, text=""), Rate())
        task, rate_at = self.open[what]
        rate = rate_at(done)
        self.bars.update(task, completed=done, text=text or ("" if rate is None else f"{rate:.0f} images/s"))
        if done >= total:  # the next training, or the next search, gets a bar of its own
            del self.open[what]

    def close(self) -> None:
        """Restore the terminal."""
        self.bars.stop()


def _text(line: "DetectionLogLine", *, whole: bool) -> str:
    return line.summary(whole=whole) + (f"  {duration(line.left)} left" if line.iteration < line.iterations else "")


@contextlib.contextmanager
def detection_progress() -> Iterator[DetectionLines | DetectionBars | None]:
    """Yield bars on a terminal, lines otherwise; None on processes other than the first."""
    if this_process().rank != 0:
        yield None
        return
    if not sys.stderr.isatty() or is_quiet():
        yield DetectionLines()
        return
    bars = DetectionBars()
    try:
        yield bars
    finally:
        bars.close()
