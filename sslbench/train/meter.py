"""Log records of training, the clock behind them, and the spread of embeddings that shows a collapse."""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from sslbench.data.loading.pretraining import RawBatch
from sslbench.distributed.collectives import gather_objects, world_size
from sslbench.runtime.device import widest_float
from sslbench.train.method import Loss


@dataclasses.dataclass(frozen=True)
class Spread:
    """Diversity of the embeddings of a batch.

    Attributes:
        std: standard deviation of the L2-normalised embeddings per dimension, times sqrt(d): about 1 for directions
            that are spread evenly, 0 for equal embeddings (Chen & He 2021, section 4.1).
        effective_rank: exp of the entropy of the normalised singular values of the centred embeddings (Roy & Vetterli
            2007), from 1 to min(n - 1, d).
    """

    std: float
    effective_rank: float

    @property
    def collapsed(self) -> bool:
        """True if the embeddings hardly differ."""
        return self.std < 0.05 or self.effective_rank < 1.5


@torch.no_grad()
def spread(embeddings: Tensor) -> Spread:
    """Return the diversity of (n, d) embeddings, n at least 2; the lowest if one is not finite."""
    x = functional.normalize(embeddings.detach().float(), dim=1)
    if not torch.isfinite(x).all():
        return Spread(0.0, 1.0)
    std = x.std(dim=0, correction=0).mean() * x.shape[1] ** 0.5
    x = (x - x.mean(dim=0)).to(widest_float(x.device))
    # The eigenvalues of the smaller Gram matrix are the squares of the singular values, in a tenth of the time.
    values = torch.linalg.eigvalsh(x @ x.T if len(x) <= x.shape[1] else x.T @ x)
    singular = values.clamp_min(0).sqrt()
    p = singular / singular.sum().clamp_min(1e-12)
    entropy = -(p * p.clamp_min(1e-12).log()).sum()
    return Spread(float(std), float(entropy.exp()))


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class LogRecord:
    """Log record of an update.

    Attributes:
        step: updates done, including this one.
        epoch: epochs done.
        loss: loss of this update, averaged over processes.
        lr: learning rate.
        weight_decay: weight decay of the groups that have any; None if it is constant.
        images_per_second: throughput of all processes since the previous record.
        waiting: fraction of that time in which no batch was ready, on the process that waited longest.
        gradient_norm: norm of the gradients before clipping; None if they are not clipped.
        spread: diversity of the embeddings of this process's batch; None if there are none.
        replaced: unreadable images that were replaced by others since the previous record, on all processes.
        parts: further scalars of the method.
        memory: peak memory on a GPU in bytes, on the process with the largest; None on a CPU.
        origins: images of each source that all processes saw since the previous record, if sources are mixed.
        gradient_norms: norm of the gradients of each network of the method in this update, before clipping.
        gpu: load of the first process's GPU; None on a CPU, or where it is unknown.
    """

    step: int
    epoch: float
    loss: float
    lr: float
    weight_decay: float | None
    images_per_second: float
    waiting: float
    gradient_norm: float | None
    spread: Spread | None
    replaced: int
    parts: dict[str, float]
    memory: int | None
    origins: dict[str, int] = dataclasses.field(default_factory=dict)
    gradient_norms: dict[str, float] = dataclasses.field(default_factory=dict)
    gpu: "GpuLoad | None" = None


@dataclasses.dataclass(frozen=True)
class GpuLoad:
    """Load of the first process's GPU.

    Attributes:
        utilisation: share of the last second in which it computed, in percent.
        temperature: in degrees Celsius.
    """

    utilisation: int
    temperature: int


def gpu_load(device: torch.device) -> GpuLoad | None:
    """Return the load of a GPU; None for another device, and without NVML (pip install nvidia-ml-py)."""
    if device.type != "cuda":
        return None
    try:
        return GpuLoad(torch.cuda.utilization(device), torch.cuda.temperature(device))
    except Exception:  # noqa: BLE001  NVML has errors of its own, and a log is not worth a run
        return None


class TrainingMeter:
    """Clock since the previous log record: total time, and time spent waiting for batches."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._restart()

    def _restart(self) -> None:
        self.started = time.perf_counter()
        self.waited, self.images, self.replaced = 0.0, 0, 0
        self.origins: Counter[str] = Counter()

    def wait_for(self, batches: Iterator[T]) -> T:
        """Return the next batch; the time until it is ready counts as waiting."""
        began = time.perf_counter()
        raw = next(batches)
        self.waited += time.perf_counter() - began
        if isinstance(raw, RawBatch):
            self.images += len(raw.indices)
            self.replaced += raw.replaced
            self.origins.update(raw.origins)
        elif isinstance(raw, tuple):  # images and targets of a detector
            self.images += len(raw[0])
        return raw

    def line(
        self,
        epoch: float,
        step: int,
        loss: Loss,
        value: float,
        rates: tuple[float, float | None],
        norm: Tensor | None,
        norms: Mapping[str, Tensor],
    ) -> LogRecord:
        """Return the record of the update that has just ended, and restart the clock; every process calls it."""
        seconds = max(time.perf_counter() - self.started, 1e-9)
        memory = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
        # The slowest process decides how long an update takes, so its waiting time counts.
        counts = gather_objects((self.replaced, dict(self.origins), self.waited, memory))
        line = LogRecord(
            step=step,
            epoch=epoch,
            loss=value,
            lr=rates[0],
            weight_decay=rates[1],
            images_per_second=self.images * world_size() / seconds,
            waiting=max(waited for _, _, waited, _ in counts) / seconds,
            gradient_norm=None if norm is None else float(norm),
            spread=None if loss.embeddings is None else spread(loss.embeddings),
            replaced=sum(replaced for replaced, *_ in counts),
            parts={name: float(part) for name, part in loss.parts.items()},
            memory=max(peak for *_, peak in counts) or None,
            gpu=gpu_load(self.device),
            origins=dict(sum((Counter(origins) for _, origins, *_ in counts), Counter[str]())),
            gradient_norms=dict(zip(norms, torch.stack(list(norms.values())).tolist(), strict=True)) if norms else {},
        )
        self._restart()
        return line
