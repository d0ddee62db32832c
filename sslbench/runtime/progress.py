"""Progress callbacks, and bars on a terminal and in notebooks."""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sslbench.distributed import this_process

if TYPE_CHECKING:
    from rich import progress as rich_progress

Progress = Callable[[str, int, int], None]
"""Callback with (name of the stage, images done, images in all)."""

StageProgress = Callable[[int, int], None]
"""Callback of a single stage with (images done, images in all)."""


def stage_progress(progress: Progress | None, stage: str) -> StageProgress | None:
    """Return the callback of one stage, or None if there is no callback.

    >>> stage_progress(print, "encode")(3, 10)
    encode 3 10

    Args:
        progress: callback of all stages.
        stage: name of the stage.
    """
    return None if progress is None else lambda done, total: progress(stage, done, total)


def make_bars(width: int, *, time_left: bool = False) -> "rich_progress.Progress":
    """Return bars on stderr: description, bar, done of total, the field `text`, and the time left on request."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=width),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        *([TimeRemainingColumn()] if time_left else []),
        console=Console(stderr=True),
    )


class ProgressBars:
    """Progress on a terminal or in a notebook: one bar per job, with images per second and the time left."""

    def __init__(self) -> None:
        self.bars = make_bars(24, time_left=True)
        self.tasks: dict[str, tuple[int, float]] = {}

    def __call__(self, title: str, done: int, total: int) -> None:
        """Report `done` of `total` images of one job."""
        from rich.progress import TaskID

        self.bars.start()  # without effect after the first time
        if title not in self.tasks:
            self.tasks[title] = (self.bars.add_task(title, total=total, text=""), time.monotonic())
        task, started = self.tasks[title]
        elapsed = time.monotonic() - started
        text = f"{done / elapsed:.0f} img/s" if elapsed > 0.5 else ""
        self.bars.update(TaskID(task), completed=done, text=text)
        if done >= total:
            del self.tasks[title]

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
def interactive() -> Iterator[Progress | None]:
    """Provide the progress of calls from Python: bars on a terminal and in notebooks, None elsewhere.

    Processes other than the first have none.
    """
    notebook = "ipykernel" in sys.modules
    if this_process().rank != 0 or not (notebook or sys.stderr.isatty()):
        yield None
        return
    if notebook and importlib.util.find_spec("ipywidgets") is None:  # rich draws through it there
        yield ProgressLine()
        return
    bars = ProgressBars()
    try:
        yield bars
    finally:
        bars.close()
