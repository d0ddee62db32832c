"""Observers of a pretraining run: files, plots, warnings.

An observer looks at the points of a run on the first process, and changes nothing of it.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from sslbench.train.meter import LogRecord
from sslbench.train.method import Batch, Loss, Step


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """Facts about a run, given to observers at its start.

    Attributes:
        out: folder of the run.
        method: trained module; its gradients are those of the last update whenever a log record arrives.
        steps: updates of the whole run.
        per_epoch: updates per epoch.
        start: updates done before; more than 0 when the run continues.
        images_per_update: images per update, over all processes.
    """

    out: Path
    method: nn.Module
    steps: int
    per_epoch: int
    start: int
    images_per_update: int


class Observer(Protocol):
    """Observer of a run, called on the first process only; subclasses define the methods that they need."""

    def started(self, run: RunInfo) -> None:
        """Prepare for a run, before its first update."""
        return

    def epoch_started(self, step: Step) -> None:
        """Look before the first update of an epoch, or of a run that continues."""
        return

    def forward(self, batch: Batch, step: Step) -> None:
        """Look at this process's part of a batch before a forward pass; there are `accumulate` for an update."""
        return

    def loss(self, loss: Loss, step: Step) -> None:
        """Look at the result of a forward pass, without gradient."""
        return

    def backward(self, step: Step) -> None:
        """Look after a backward pass: with the last of an update, the gradients are those of all processes."""
        return

    def updated(self, step: Step) -> None:
        """Look after an update of parameters, momentum copies and queues."""
        return

    def line(self, line: LogRecord) -> None:
        """Handle a log record, every `log_every` updates."""
        return

    def epoch_ended(self, step: Step) -> None:
        """Look after the last update of an epoch or run, before it is logged, evaluated and saved."""
        return

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Handle the scores of an evaluation, with 'step' and 'epoch'."""
        return

    def finished(self) -> None:
        """Finish after the weights are written."""
        return


class Histograms:
    """Values of parameters and gradients, with the first log record of each interval of updates."""

    def __init__(self, wanted: bool, every: int | None = None) -> None:
        """Store the arguments; `every`: updates of an interval, None: an epoch."""
        self.wanted, self.every, self.last = wanted, every, -1

    def of(self, line: LogRecord, run: RunInfo) -> Iterator[tuple[str, Tensor]]:
        """Yield 'Parameters/NAME' or 'Gradients/NAME' and its finite values, where the interval is a new one."""
        interval = (line.step - 1) // (self.every or run.per_epoch)
        if not self.wanted or interval <= self.last:
            return
        self.last = interval
        for name, parameter in run.method.named_parameters():
            for title, values in (("Parameters", parameter.detach()), ("Gradients", parameter.grad)):
                # Bins cannot hold values that are not finite; fp16 gradients may have some.
                if values is not None and (finite := values[torch.isfinite(values)]).numel():
                    yield f"{title}/{name}", finite.float()


def scalars(line: LogRecord) -> dict[str, float | int]:
    """Return the values of a log record by name, without those that are None."""
    values: dict[str, float | int | None] = {
        "step": line.step,
        "epoch": line.epoch,
        "loss": line.loss,
        "lr": line.lr,
        "weight_decay": line.weight_decay,
        "images_per_second": line.images_per_second,
        "waiting": line.waiting,
        "gradient_norm": line.gradient_norm,
        "embedding_std": None if line.spread is None else line.spread.std,
        "effective_rank": None if line.spread is None else line.spread.effective_rank,
        "replaced": line.replaced,
        "memory": line.memory,
        "gpu_utilisation": None if line.gpu is None else line.gpu.utilisation,
        "gpu_temperature": None if line.gpu is None else line.gpu.temperature,
        **line.parts,
        **{f"gradient_norm/{name}": norm for name, norm in line.gradient_norms.items()},
        **{f"images/{name}": n for name, n in sorted(line.origins.items())},
    }
    return {name: value for name, value in values.items() if value is not None}
