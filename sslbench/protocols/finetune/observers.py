"""Observers of a training: TensorBoard, Weights & Biases."""

import dataclasses
from pathlib import Path

from sslbench.errors import UsageError
from sslbench.protocols.finetune.recipe import Rates
from sslbench.protocols.finetune.settings import Settings
from sslbench.train.observers import Observer
from sslbench.train.observers.tensorboard import TensorBoard
from sslbench.train.observers.wandb import Wandb


def make_observers(settings: Settings, rates: Rates, folder: Path) -> list[Observer]:
    """Return the observers that the settings name; nothing is written before the training starts.

    Args:
        settings: of the protocol.
        rates: of the training.
        folder: for the event files of TensorBoard.

    Raises:
        UsageError: a library is not installed, or `histograms` is set without `tensorboard`.
    """
    if settings.histograms and not settings.tensorboard:
        raise UsageError("finetune: histograms needs TensorBoard", "Add --tensorboard.")
    observers: list[Observer] = []
    if settings.tensorboard:
        observers.append(TensorBoard(folder, histograms=settings.histograms))
    if settings.wandb:
        observers.append(Wandb(settings.wandb, settings=dataclasses.asdict(settings) | dataclasses.asdict(rates)))
    return observers
