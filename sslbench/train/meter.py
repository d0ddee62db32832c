"""What the log learns about training, and the clock behind it."""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from sslbench.data.loading.pretraining import RawBatch
from sslbench.distributed.collectives import world_size
from sslbench.train.collapse import Spread, spread
from sslbench.train.method import Loss


@dataclasses.dataclass(frozen=True)
class Line:
    """What the log learns about an update.

    Attributes:
        step: updates done, this one included.
        epoch: the same in epochs.
        loss: of this update, averaged over processes.
        lr: learning rate.
        weight_decay: of the groups that have any; None when it does not change.
        images_per_second: since the line before, all processes together.
        waiting: share of that time in which no batch was ready.
        gradient_norm: before clipping; None when it was not computed.
        spread: of the embeddings of the first process's batch.
        replaced: unreadable images that others stood in for, since the line before.
        parts: further scalars of the method.
        memory: bytes on the GPU at most (None on a CPU).
        origins: of several sources at once, the images of each that this process saw since the line before.
    """

    step: int
    epoch: float
    loss: float
    lr: float
    weight_decay: float | None
    images_per_second: float
    waiting: float
    gradient_norm: float | None
    spread: Spread
    replaced: int
    parts: dict[str, float]
    memory: int | None
    origins: dict[str, int] = dataclasses.field(default_factory=dict)


class Meter:
    """Time since the last log line, and how much of it went into waiting for batches."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._restart()

    def _restart(self) -> None:
        self.started = time.perf_counter()
        self.waited, self.images, self.replaced = 0.0, 0, 0
        self.origins: Counter[str] = Counter()

    def wait_for(self, batches: Iterator[RawBatch]) -> RawBatch:
        """The next batch."""
        began = time.perf_counter()
        raw = next(batches)
        self.waited += time.perf_counter() - began
        self.images += len(raw.indices)
        self.replaced += raw.replaced
        self.origins.update(raw.origins)
        return raw

    def line(
        self,
        epoch: float,
        step: int,
        loss: Loss,
        value: float,
        rates: tuple[float, float | None],
        norm: Tensor | None,
    ) -> Line:
        """A line about the update that just ended; the clock starts again."""
        seconds = max(time.perf_counter() - self.started, 1e-9)
        line = Line(
            step=step,
            epoch=epoch,
            loss=value,
            lr=rates[0],
            weight_decay=rates[1],
            images_per_second=self.images * world_size() / seconds,
            waiting=self.waited / seconds,
            gradient_norm=None if norm is None else float(norm),
            spread=spread(loss.embeddings),
            replaced=self.replaced,
            parts={name: float(part) for name, part in loss.parts.items()},
            memory=torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
            origins=dict(self.origins),
        )
        self._restart()
        return line
