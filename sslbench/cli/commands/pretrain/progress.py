"""Progress of a pretraining run on stderr: a bar on a terminal, lines otherwise."""

import sys
import time
from typing import TYPE_CHECKING, Any

from sslbench.cli.echo import is_quiet, note
from sslbench.cli.terminal import QUIET, duration
from sslbench.runtime.progress import make_bars

if TYPE_CHECKING:
    from sslbench.train.meter import LogRecord
    from sslbench.train.observers import RunInfo

_SCORES = {
    "knn_top1": ("kNN top1", 2),
    "knn_mAP": ("kNN mAP", 2),
    "online_top1": ("online linear top1", 2),
    "rankme": ("RankMe", 1),
    "alpha_req": ("alpha-ReQ", 3),
}
"""Scores of an evaluation: title and number of digits."""
QUIET_AT_EPOCH = 2.0  # seconds; shorter epochs get no line of their own


def training_progress() -> "TrainingBar | TrainingLines":
    """Return a bar on a terminal, lines otherwise."""
    return TrainingBar() if sys.stderr.isatty() and not is_quiet() else TrainingLines()


class _Clock:
    """Elapsed and remaining time, from the updates of this run."""

    def __init__(self, run: "RunInfo") -> None:
        self.run, self.began = run, time.monotonic()

    def left(self, step: int) -> str:
        elapsed = time.monotonic() - self.began
        return duration(elapsed / max(step - self.run.start, 1) * (self.run.steps - step))

    def elapsed(self) -> str:
        return duration(time.monotonic() - self.began)


def summary(line: "LogRecord") -> str:
    """Return a line such as 'loss 5.4321  lr 0.0300  310 images/s  1.2 GiB'."""
    parts = [f"loss {line.loss:.4f}", f"lr {line.lr:.3g}", *(f"{k} {v:.4g}" for k, v in line.parts.items())]
    parts.append(f"{line.images_per_second:.0f} images/s")
    if line.memory is not None:
        parts.append(f"{line.memory / 2**30:.1f} GiB")
    return "  ".join(parts)


def scores(record: dict[str, float | int]) -> str:
    """Return a line such as 'epoch 10: kNN top1 85.32  online linear top1 87.01  RankMe 41.2  alpha-ReQ 1.13'."""
    shown = "  ".join(
        f"{title} {record[name]:.{digits}f}" for name, (title, digits) in _SCORES.items() if name in record
    )
    return f"epoch {record['epoch']:.4g}: {shown}"


class TrainingLines:
    """Progress as lines: at most one every ten seconds, and one at the end of each epoch."""

    def started(self, run: "RunInfo") -> None:
        """Start the clock."""
        self.run, self.clock = run, _Clock(run)
        self.last, self.step = time.monotonic(), run.start

    def line(self, line: "LogRecord") -> None:
        """Print a line if one is due."""
        quiet = time.monotonic() - self.last
        epoch_ended = line.step // self.run.per_epoch > self.step // self.run.per_epoch
        self.step = line.step
        if quiet < (QUIET_AT_EPOCH if epoch_ended else QUIET) and line.step < self.run.steps:
            return
        self.last = time.monotonic()
        epochs = round(self.run.steps / self.run.per_epoch, 2)
        position = f"epoch {line.epoch:.2f} of {epochs:g}  update {line.step} of {self.run.steps}"
        note(f"{position}  {summary(line)}  {self.clock.left(line.step)} left")

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Print the scores of an evaluation."""
        note(scores(record))

    def finished(self) -> None:
        """Print the duration."""
        note(f"trained in {self.clock.elapsed()}")

    def close(self) -> None:
        """Do nothing; a bar closes its terminal here."""


class TrainingBar:
    """Progress as one bar: update, epoch, loss, learning rate, images per second, memory, time left."""

    def __init__(self) -> None:
        self.bar = make_bars(24)
        self.task: Any = None

    def started(self, run: "RunInfo") -> None:
        """Show the bar."""
        self.run, self.clock = run, _Clock(run)
        self.task = self.bar.add_task(self._epoch(run.start), total=run.steps, completed=run.start, text="")
        self.bar.start()

    def line(self, line: "LogRecord") -> None:
        """Advance the bar."""
        text = f"{summary(line)}  {self.clock.left(line.step)} left"
        self.bar.update(self.task, completed=line.step, text=text, description=self._epoch(line.step))

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Print the scores above the bar."""
        self.bar.console.print(scores(record), highlight=False)

    def finished(self) -> None:
        """Print the duration."""
        self.bar.console.print(f"trained in {self.clock.elapsed()}", highlight=False)

    def close(self) -> None:
        """Stop the bar and restore the terminal."""
        self.bar.stop()

    def _epoch(self, step: int) -> str:
        epochs = round(self.run.steps / self.run.per_epoch, 2)
        return f"epoch {min(step // self.run.per_epoch + 1, -(-self.run.steps // self.run.per_epoch))}/{epochs:g}"
