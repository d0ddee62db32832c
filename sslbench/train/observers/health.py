"""Warnings about what a user should not find out after the last epoch: collapse, starving, unreadable images."""

import logging

from sslbench.distributed.collectives import world_size
from sslbench.train.meter import Line
from sslbench.train.observers import Run

log = logging.getLogger("sslbench")

STARVING = 0.3  # share of the time without a batch from which on it is worth a word
IN_A_ROW = 3  # lines: the first batches of a run always have to be waited for


class Health:
    """Says once what is wrong, what it means and what to try."""

    def __init__(self) -> None:
        self.run: Run
        self.collapsed = self.starved = False
        self.hungry = 0
        self.replaced = self.images = 0

    def started(self, run: Run) -> None:
        """Counts from here."""
        self.run, self.step = run, run.start

    def line(self, line: Line) -> None:
        """Looks at a line."""
        if line.spread.collapsed and line.epoch >= 0.1 and not self.collapsed:
            self.collapsed = True
            log.warning(
                f"update {line.step}: the embeddings of different images are nearly the same (standard deviation "
                f"{line.spread.std:.3f}, where 1 is spread evenly; effective rank {line.spread.effective_rank:.1f}). "
                "If it stays so, training has collapsed: try a lower optimizer.lr, more schedule.warmup_epochs, a "
                "larger batch_size, or the temperature and momentum of the recipe"
            )
        self.hungry = self.hungry + 1 if line.waiting > STARVING else 0
        if self.hungry >= IN_A_ROW and not self.starved:
            self.starved = True
            log.warning(
                f"update {line.step}: {line.waiting:.0%} of the time goes into waiting for images: give more --workers "
                "where there are cores left, or smaller images (prepare them once, at 256 to 512 pixels)"
            )
        self.replaced += line.replaced
        self.images += (line.step - self.step) * self.run.images_per_update // world_size()
        if line.step // self.run.per_epoch > self.step // self.run.per_epoch:
            self._tell_replaced()
        self.step = line.step

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Scores are for others."""

    def finished(self) -> None:
        """What has not been told yet."""
        self._tell_replaced()

    def _tell_replaced(self) -> None:
        if self.replaced:
            rate = self.replaced / max(self.images, 1)
            log.warning(
                f"{self.replaced} of the last {self.images} images ({rate:.2%}) could not be read; others stood in "
                "(sslbench check-data --decode lists them)"
            )
        self.replaced = self.images = 0
