"""From which of several sources the images of a run came: what the data's weights came to."""

import logging
from collections import Counter

from sslbench.distributed.collectives import world_size
from sslbench.train.meter import Line
from sslbench.train.observers import Run

log = logging.getLogger("sslbench")


class Origins:
    """Says after every epoch how many images of each source were shown; silent where there is one source."""

    def __init__(self) -> None:
        self.run: Run
        self.shown: Counter[str] = Counter()

    def started(self, run: Run) -> None:
        """Counts from here."""
        self.run, self.first, self.step = run, run.start, run.start

    def line(self, line: Line) -> None:
        """Adds what was shown since the line before."""
        self.shown.update(line.origins)
        if line.step // self.run.per_epoch > self.step // self.run.per_epoch:
            self._tell(line.step)
        self.step = line.step

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Scores are for others."""

    def finished(self) -> None:
        """What has not been told yet."""
        self._tell(self.step)

    def _tell(self, step: int) -> None:
        total = self.shown.total()
        if total:
            shares = ", ".join(f"{name} {n:,} ({n / total:.1%})" for name, n in sorted(self.shown.items()))
            where = " by the first process" if world_size() > 1 else ""
            log.info(f"images shown in updates {self.first + 1} to {step}{where}: {shares}")
        self.shown.clear()
        self.first = step
