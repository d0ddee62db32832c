"""Nearest class mean: an image has the class with the closest mean of training features."""

import dataclasses

import numpy as np

from sslbench.config import setting
from sslbench.features.array import Features
from sslbench.metrics.summary import summarise
from sslbench.protocols.protocol import OnFeatures, Protocol
from sslbench.results import Outcome
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the nearest class mean."""

    normalise: bool = setting(True, "divide each feature vector by its length first")


def check(settings: Settings, train: Target) -> None:
    """Refuse settings and labels that do not go together; here all do."""


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Score each test image by its negative distance from the mean of every class."""

    def vectors(features: Features) -> np.ndarray:
        x = np.asarray(features.x, np.float64)
        return x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12) if settings.normalise else x

    x, classes = vectors(train), np.asarray(train.target.values)
    means = np.stack([x[classes == c].mean(axis=0) for c in range(len(train.target.classes))])
    scores = -np.linalg.norm(vectors(test)[:, None] - means[None], axis=2)
    metrics, leading, per_class = summarise(
        Classes, test.target.classes, test.target.values, scores, seed=seed, groups=test.groups
    )
    return Outcome(metrics=metrics, headline=leading, per_class=per_class, scores=scores)


PROTOCOL = Protocol(
    version=1,
    summary="Nearest class mean.",
    settings=Settings,
    kind=OnFeatures(check, run, takes=(Classes,)),
)
