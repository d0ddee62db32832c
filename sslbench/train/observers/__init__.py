"""Observers of a pretraining run: files, plots, warnings.

An observer receives log records and evaluations on the first process, and changes nothing of the run.
"""

from pathlib import Path
from typing import Protocol

from torch import nn

from sslbench.train.meter import Line


class Run(Protocol):
    """What an observer is told when a run starts."""

    @property
    def out(self) -> Path:
        """Folder of the run."""
        ...

    @property
    def method(self) -> nn.Module:
        """What is trained; its gradients are those of the last update whenever a line comes."""
        ...

    @property
    def steps(self) -> int:
        """Updates in all."""
        ...

    @property
    def per_epoch(self) -> int:
        """Updates in an epoch."""
        ...

    @property
    def start(self) -> int:
        """Updates done before: more than 0 when the run continues."""
        ...

    @property
    def images_per_update(self) -> int:
        """Of all processes together."""
        ...


def scalars(line: Line) -> dict[str, float | int]:
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
        "embedding_std": line.spread.std,
        "effective_rank": line.spread.effective_rank,
        "replaced": line.replaced,
        "memory": line.memory,
        **line.parts,
        **{f"images/{name}": n for name, n in sorted(line.origins.items())},
    }
    return {name: value for name, value in values.items() if value is not None}
