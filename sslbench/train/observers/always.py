"""Observers of every run of pretraining, and those that a setting asks for."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sslbench.data.checks.sheets import contact_sheet
from sslbench.errors import UsageError
from sslbench.train.meter import LogRecord
from sslbench.train.method import Batch
from sslbench.train.observers import Observer, RunInfo
from sslbench.train.observers.json_lines import CurvePlot, JsonLines
from sslbench.train.observers.tensorboard import TensorBoard
from sslbench.train.observers.wandb import Wandb

ROWS = 8


class Views(Observer):
    """Contact sheet of the first batch that the method receives."""

    def __init__(self, path: Path, *, mean: Sequence[float], std: Sequence[float]) -> None:
        """Store the arguments; the file is written with the first batch."""
        self.path = path
        self.mean, self.std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def started(self, run: RunInfo) -> None:
        """Register a hook on the first forward pass; a run that continues has its picture already."""
        self.hook = None if run.start else run.method.register_forward_pre_hook(self._look)

    def _look(self, method: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.hook is not None:
            self.hook.remove()
        batch: Batch = inputs[0]
        sheets = []
        for view in batch.views:
            values = view[:ROWS].detach().float().cpu()
            if values.shape[1] == 3:
                pixels = (values * self.std + self.mean) * 255
            else:
                # The first channel as grey, or the first three as red, green and blue, with two standard deviations
                # below and above the mean as black and white.
                shown = values[:, :3] if values.shape[1] > 3 else values[:, :1].expand(-1, 3, -1, -1)
                pixels = (shown / 4 + 0.5) * 255
            sheets.append(pixels.round().clamp(0, 255).to(torch.uint8))
        contact_sheet(sheets, self.path, rows=ROWS)


class Origins(Observer):
    """Report of the images per source after every epoch; nothing is reported for a single source."""

    def __init__(self) -> None:
        self.run: RunInfo
        self.shown: Counter[str] = Counter()

    def started(self, run: RunInfo) -> None:
        """Start counting."""
        self.run, self.first, self.step = run, run.start, run.start

    def line(self, line: LogRecord) -> None:
        """Add the images since the previous record."""
        self.shown.update(line.origins)
        if line.step // self.run.per_epoch > self.step // self.run.per_epoch:
            self._report(line.step)
        self.step = line.step

    def finished(self) -> None:
        """Report the images since the last report."""
        self._report(self.step)

    def _report(self, step: int) -> None:
        """Report the images since the last report."""
        total = self.shown.total()
        if total:
            shares = ", ".join(f"{name} {n:,} ({n / total:.1%})" for name, n in sorted(self.shown.items()))
            log.info(f"images shown in updates {self.first + 1} to {step}: {shares}")
        self.shown.clear()
        self.first = step


log = logging.getLogger("sslbench")

MAX_WAITING = 0.3  # fraction of the time spent waiting for batches
RECORDS_IN_A_ROW = 3  # the first batches of a run always cause waiting


class Health(Observer):
    """Warnings that name a problem, its meaning and a remedy, each given once."""

    def __init__(self) -> None:
        self.run: RunInfo
        self.collapsed = self.slow_data = False
        self.waiting_in_a_row = 0
        self.replaced = self.images = 0

    def started(self, run: RunInfo) -> None:
        """Start counting."""
        self.run, self.step = run, run.start

    def line(self, line: LogRecord) -> None:
        """Check a log record."""
        if line.spread is not None and line.spread.collapsed and line.epoch >= 0.1 and not self.collapsed:
            self.collapsed = True
            log.warning(
                f"update {line.step}: the embeddings of different images are nearly the same (standard deviation "
                f"{line.spread.std:.3f}, where 1 is spread evenly; effective rank {line.spread.effective_rank:.1f}). "
                "If it stays so, training has collapsed: try a lower optimizer.lr, more schedule.warmup_epochs, a "
                "larger batch_size, or the temperature and momentum of the recipe"
            )
        self.waiting_in_a_row = self.waiting_in_a_row + 1 if line.waiting > MAX_WAITING else 0
        if self.waiting_in_a_row >= RECORDS_IN_A_ROW and not self.slow_data:
            self.slow_data = True
            log.warning(
                f"update {line.step}: {line.waiting:.0%} of the time is spent waiting for images: give more --workers "
                "if cores are idle, or smaller images (resize them once to 256 to 512 pixels)"
            )
        self.replaced += line.replaced
        self.images += (line.step - self.step) * self.run.images_per_update
        if line.step // self.run.per_epoch > self.step // self.run.per_epoch:
            self._report_replaced()
        self.step = line.step

    def finished(self) -> None:
        """Report the unreadable images since the last report."""
        self._report_replaced()

    def _report_replaced(self) -> None:
        """Report the unreadable images since the last report."""
        if self.replaced:
            rate = self.replaced / max(self.images, 1)
            log.warning(
                f"{self.replaced} of the last {self.images} images ({rate:.2%}) were unreadable and replaced by others "
                "(sslbench check-data --decode lists them)"
            )
        self.replaced = self.images = 0


def requested(settings: Any, folder: Path, config: Mapping[str, Any]) -> list[Observer]:
    """Return the observers that a protocol's settings `tensorboard`, `wandb` and, if it has it, `histograms` name.

    Nothing is written before the training starts; `config` is shown by Weights & Biases.
    """
    histograms = getattr(settings, "histograms", False)
    if histograms and not (settings.tensorboard or settings.wandb):
        raise UsageError("histograms needs TensorBoard or Weights & Biases", "Add --tensorboard or --wandb PROJECT.")
    events: list[Observer] = [TensorBoard(folder, histograms=histograms)] if settings.tensorboard else []
    return [*events, Wandb(settings.wandb, settings=config, histograms=histograms)] if settings.wandb else events


def always(out: Path, *, mean: Sequence[float], std: Sequence[float]) -> list[Observer]:
    """Return the observers for metrics.jsonl, views.png, warnings, origins of images, and curve.png."""
    views = Views(out / "views.png", mean=mean, std=std)
    return [JsonLines(out / "metrics.jsonl"), views, Health(), Origins(), CurvePlot()]
