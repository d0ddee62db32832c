"""Progress callbacks, and bars on a terminal and in notebooks."""

import importlib.util
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Protocol

from sslbench.distributed import this_process
from sslbench.steps import Advance, shown_by

if TYPE_CHECKING:
    from rich import progress as rich_progress

Progress = Callable[[str, int, int], None]
"""Callback with (name of the stage, images done, images in all)."""

StageProgress = Callable[[int, int], None]
"""Callback of a single stage with (images done, images in all)."""


class TrainingLine(Protocol):
    """State of a training after an update."""

    @property
    def iteration(self) -> int:
        """Number of updates."""

    @property
    def iterations(self) -> int:
        """Number of all updates."""

    @property
    def left(self) -> float:
        """Estimated seconds to the end."""

    def summary(self, *, whole: bool = True) -> str:
        """Return loss, rate and pace; `whole`: with the parts of the loss."""


def stage_progress(progress: Progress | None, stage: str) -> StageProgress | None:
    """Return the callback of one stage, or None if there is no callback.

    >>> stage_progress(print, "encode")(3, 10)
    encode 3 10
    """
    return None if progress is None else lambda done, total: progress(stage, done, total)


STEPS_AFTER = 2.0
"""Seconds after which the steps of a solver are shown."""
_WINDOW = 10.0  # seconds that a rate is measured over
_NUMBERS = 46  # columns of the terminal for done of total, rate and time left
_SHORTEST = 0.5  # seconds below which a rate is unknown


class Rate:
    """Images or steps per second, over the last ten seconds: what came before (loading, a pause) does not count."""

    def __init__(self) -> None:
        self.seen: deque[tuple[float, int]] = deque()

    def __call__(self, done: int) -> float | None:
        """Take note of the number done so far; return the rate, None within the first half second."""
        now = time.monotonic()
        self.seen.append((now, done))
        while len(self.seen) > 2 and self.seen[1][0] < now - _WINDOW:
            self.seen.popleft()
        since, before = self.seen[0]
        return (done - before) / (now - since) if now - since >= _SHORTEST else None


def pace(rate: float | None) -> str:
    """Format steps per second; seconds per step where a step takes longer than one.

    >>> pace(12.34), pace(0.05), pace(None)
    ('12.3/s', '20.0 s each', '')
    """
    if not rate:
        return ""
    return f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"


def make_bars(width: int, *, time_left: bool = False) -> "rich_progress.Progress":
    """Return bars on stderr: description, bar, done of total, the field `text`, and the time left on request."""
    # On a narrow terminal the bar is shorter and a long description ends in an ellipsis, so the numbers stay visible.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(stderr=True)
    bar = min(width, console.width // 8)
    description = Column(no_wrap=True, overflow="ellipsis", max_width=max(16, console.width - bar - _NUMBERS))
    return Progress(
        TextColumn("{task.description}", table_column=description),
        BarColumn(bar_width=bar),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        *([TimeRemainingColumn()] if time_left else []),
        console=console,
    )


class ProgressBars:
    """Progress on a terminal or in a notebook: one bar per job, with images per second and the time left."""

    def __init__(self) -> None:
        self.bars = make_bars(24, time_left=True)
        self.tasks: dict[str, tuple[int, Rate]] = {}

    def __call__(self, title: str, done: int, total: int) -> None:
        """Report `done` of `total` images of one job."""
        self._move(title, done, total, "")

    def line(self, line: TrainingLine) -> None:
        """Report the state of a training."""
        self._move("training", line.iteration, line.iterations, line.summary(whole=False))

    def _move(self, title: str, done: int, total: int, text: str) -> None:
        from rich.progress import TaskID

        self.bars.start()  # without effect after the first time
        if title not in self.tasks:
            self.tasks[title] = (self.bars.add_task(title, total=total, text=""), Rate())
        task, rate_at = self.tasks[title]
        rate = rate_at(done)
        text = text or ("" if rate is None else f"{rate:.0f} images/s")
        self.bars.update(TaskID(task), completed=done, text=text)
        if done >= total:  # its result follows; the next training has a bar of its own
            self.bars.remove_task(TaskID(task))
            del self.tasks[title]

    @contextmanager
    def steps(self, title: str, unit: str, total: int) -> Iterator[Advance]:
        """Show the steps of a solver that takes longer than two seconds; see `sslbench.steps`."""
        task = self.bars.add_task(title, total=total, text=unit, visible=False)

        def show() -> None:
            self.bars.update(task, visible=True)
            self.bars.start()

        timer = threading.Timer(STEPS_AFTER, show)
        timer.daemon = True
        timer.start()
        done, rate_at = 0, Rate()
        rate_at(0)

        def advance(steps: int) -> None:
            nonlocal done
            done += steps
            self.bars.update(task, completed=done, text=f"{unit} {pace(rate_at(done))}")

        try:
            yield advance
        finally:
            timer.cancel()
            timer.join()  # it may be showing the bar just now
            self.bars.remove_task(task)

    def close(self) -> None:
        """Stop the bars, if there are any, and restore the terminal."""
        self.bars.stop()


class ProgressLine:
    """Progress in a notebook without ipywidgets: one line on stderr, overwritten at most twice a second."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, title: str, done: int, total: int) -> None:
        """Report `done` of `total` images of one job."""
        now = time.monotonic()
        if done >= total or now - self.last > 0.5:
            self.last = now
            sys.stderr.write(f"\r{title}: {done} of {total}" + ("\n" if done >= total else ""))
            sys.stderr.flush()

    @contextmanager
    def steps(self, title: str, unit: str, total: int) -> Iterator[Advance]:
        """Show the steps of a solver after those that end two seconds after its start; see `sslbench.steps`."""
        done, started, shown = 0, time.monotonic(), False

        def advance(steps: int) -> None:
            nonlocal done, shown
            done += steps
            if time.monotonic() - started > STEPS_AFTER:
                shown = True
                sys.stderr.write(f"\r{title}: {done} of {total} {unit}")
                sys.stderr.flush()

        yield advance
        if shown:
            sys.stderr.write("\n")


@contextmanager
def interactive() -> Iterator[Progress | None]:
    """Provide the progress of calls from Python: bars on a terminal and in notebooks, None elsewhere.

    Processes other than the first have none.
    """
    notebook = "ipykernel" in sys.modules
    if this_process().rank != 0 or not (notebook or sys.stderr.isatty()):
        yield None
        return
    if notebook and importlib.util.find_spec("ipywidgets") is None:  # rich draws through it there
        line = ProgressLine()
        with shown_by(line.steps):
            yield line
        return
    with closing(ProgressBars()) as bars, shown_by(bars.steps):
        yield bars
