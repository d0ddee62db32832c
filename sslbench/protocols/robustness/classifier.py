"""Classifier that is scored: a linear probe trained on train, or the classifier of the weights file."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.features.array import Features
from sslbench.protocols.linear import Settings as LinearSettings
from sslbench.protocols.linear import train_probe
from sslbench.protocols.protocol import FileClassifier, FileClassifierChoice, Part
from sslbench.protocols.robustness.settings import Settings


@dataclasses.dataclass(frozen=True)
class ScoredClassifier:
    """Classifier of the C classes of train.

    Attributes:
        logits: function from features (N, D) to (N, C).
        usable: int64, numbers of the classes that it can predict.
        classes: number C.
        on_train: accuracy on train; NaN where it was not trained here.
        selected: settings and data of the choice of its regularisation; empty where nothing was chosen.
        converged: True if the training ended at the optimum; None where it was not trained here.
        notes: sentences about it, for the record.
    """

    logits: Callable[[Matrix], FloatArray]
    usable: IntArray
    classes: int
    on_train: float
    selected: dict[str, Any]
    converged: bool | None
    notes: tuple[str, ...]

    @property
    def gives_probabilities(self) -> bool:
        """True if the softmax of the logits is a probability: a class without an example in train has none."""
        return len(self.usable) == self.classes


def linear_settings(settings: Settings) -> LinearSettings:
    """Return the settings of the linear probe."""
    return LinearSettings(c=settings.c, holdout=settings.holdout)


def file_classifier(settings: Settings) -> FileClassifierChoice | None:
    """Return the choice of the classifier in the weights file; None if a linear probe is trained."""
    return FileClassifierChoice(settings.class_names) if settings.classifier == "file" else None


def used_part(settings: Settings) -> Part | None:
    """Return 'test' where train is neither learnt from nor compared with unknown images, else None: both parts."""
    return "test" if settings.classifier == "file" and not settings.unknown else None


def classifier_of(
    settings: Settings, train: Features, of_file: FileClassifier | None, *, seed: int
) -> ScoredClassifier:
    """Return the classifier that the settings choose."""
    number = len(train.target.classes)
    if of_file is not None:
        note = f"Scored without training: {of_file.description}."
        return ScoredClassifier(of_file.logits, np.arange(number), number, float("nan"), {}, None, (note,))
    probe = train_probe(train, linear_settings(settings), seed=seed)
    return ScoredClassifier(
        lambda x: probe.scores(x, train.target),
        probe.usable,
        number,
        probe.on_train,
        probe.selected,
        probe.model.converged,
        probe.notes,
    )
