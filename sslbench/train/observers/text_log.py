"""File log.txt of a run: its messages and log records as text, with the time of each."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from sslbench.errors import SslbenchError
from sslbench.text import without_secrets
from sslbench.train.meter import LogRecord
from sslbench.train.observers import Observer, RunInfo


class TextLog(Observer):
    """File of lines, to which every run in its folder appends; also the error that ends one.

    A context: messages of sslbench are kept from its start on, and written once the run has its folder.
    """

    def __init__(self, path: Path, command: str) -> None:
        """Store the arguments; `command` is the first line."""
        self.path = path
        self.waiting: list[str] = []
        self.handler = _Lines(self.write)
        self.run: RunInfo
        self.begun = False
        self.write(f"$ {without_secrets(command)}")

    def __enter__(self) -> Self:
        """Listen to messages."""
        logging.getLogger("sslbench").addHandler(self.handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Write the error, and listen no more."""
        logging.getLogger("sslbench").removeHandler(self.handler)
        if error is not None:
            text = str(error).replace("\n", "\n  ")
            self.write(f"error: {text}" if isinstance(error, SslbenchError) else f"ended by {error!r}")

    def write(self, text: str) -> None:
        """Write a message; before the run has started, keep it."""
        self.waiting.append(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        if self.begun:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(self.waiting)
            self.waiting.clear()

    def started(self, run: RunInfo) -> None:
        """Write the messages so far."""
        self.run, self.begun = run, True
        self.write(f"updates {run.start + 1} to {run.steps}")

    def line(self, line: LogRecord) -> None:
        """Write epoch, update, loss, rate, pace."""
        self.write(f"{position(line, self.run)}  {summary(line)}")

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Write the scores."""
        self.write(scores(record))

    def finished(self) -> None:
        """Write the end."""
        self.write("trained")


class _Lines(logging.Handler):
    """Messages of INFO and above, as `write` takes them."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.write = write

    def emit(self, record: logging.LogRecord) -> None:
        self.write(("warning: " if record.levelno >= logging.WARNING else "") + record.getMessage())


def position(line: LogRecord, run: RunInfo) -> str:
    """Return 'epoch 1.50 of 10  update 30 of 200'."""
    return f"epoch {line.epoch:.2f} of {round(run.steps / run.per_epoch, 2):g}  update {line.step} of {run.steps}"


def summary(line: LogRecord) -> str:
    """Return a line such as 'loss 5.4321  lr 0.0300  310 images/s  1.2 GiB  GPU 97 %  61 °C'."""
    parts = [f"loss {line.loss:.4f}", f"lr {line.lr:.3g}", *(f"{k} {v:.4g}" for k, v in line.parts.items())]
    parts.append(f"{line.images_per_second:.0f} images/s")
    if line.memory is not None:
        parts.append(f"{line.memory / 2**30:.1f} GiB")
    if line.gpu is not None:
        parts += [f"GPU {line.gpu.utilisation} %", f"{line.gpu.temperature} °C"]
    return "  ".join(parts)


_SCORES = {
    "knn_top1": ("kNN top1", 2),
    "knn_mAP": ("kNN mAP", 2),
    "online_top1": ("online linear top1", 2),
    "rankme": ("RankMe", 1),
    "alpha_req": ("alpha-ReQ", 3),
}
"""Scores of an evaluation: title and number of digits."""


def scores(record: dict[str, float | int]) -> str:
    """Return a line such as 'epoch 10: kNN top1 85.32  online linear top1 87.01  RankMe 41.2  alpha-ReQ 1.13'."""
    shown = "  ".join(
        f"{title} {record[name]:.{digits}f}" for name, (title, digits) in _SCORES.items() if name in record
    )
    return f"epoch {record['epoch']:.4g}: {shown}"
