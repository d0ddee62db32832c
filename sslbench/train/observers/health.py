"""Warnings during a run: collapse, slow data loading, unreadable images."""

import logging

from sslbench.train.meter import LogRecord
from sslbench.train.observers import Observer, RunInfo

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
