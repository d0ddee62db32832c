"""Counts of images per source, in runs that mix several sources: the effect of the data's weights."""

import logging
from collections import Counter

from sslbench.train.meter import LogRecord
from sslbench.train.observers import Observer, RunInfo

log = logging.getLogger("sslbench")


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
