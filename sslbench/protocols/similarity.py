"""Similarity of images as persons see it, by frozen features without training: two-alternative forced choice.

Each triplet is a reference, two candidates and the candidate that persons find more similar. The candidate whose
features are more similar to those of the reference is chosen, by their cosine. The score is the share of triplets with
the choice of persons; 50 % at random. Equal similarities count one half.

Fu et al., DreamSim, NeurIPS 2023 (the data NIGHTS); Chen, Marks and Cheng, 2024 (arXiv 2411.17474) and VisBench compare
networks so. Intervals are over triplets, those of one reference together. Time: one pass over the images.
"""

import dataclasses
from typing import Literal

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.config import setting
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.metrics.summary import summarise
from sslbench.protocols._parts.selection import check_features
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, ProtocolSettings, Shapes, test_part
from sslbench.results import Outcome
from sslbench.targets.target import Target
from sslbench.targets.triplets import Triplets

_ROWS = 4096  # triplets at a time, so that memory-mapped features are never copied whole in float64


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of the comparison of similarities."""

    similarity: Literal["cosine", "euclidean"] = setting(
        "cosine", "cosine of the features, or the negative of their Euclidean distance"
    )


def check(settings: Settings, labels: Target) -> None:
    """Refuse data that are no triplets."""
    if not isinstance(labels, Triplets):
        raise DataError(
            f"similarity needs triplets of images, and these samples have {labels.title}",
            "Give NIGHTS, a table with the columns ref, left, right and choice, or triplets:PLACE.",
        )


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Compare the candidates of every triplet of test.

    `test`: (N, 3 * D): reference, left and right candidate.
    """
    check(settings, test.target)
    check_features(train, test)
    scores = preferences(test, settings)[:, None].astype(np.float32)
    metrics, headline, _ = summarise(
        Triplets, test.target.classes, test.target.values, scores, seed=seed, groups=test.groups
    )
    ties = int((scores == 0).sum())
    notes = (f"{ties:,} of {len(test):,} triplets have equal similarities and count one half.",) if ties else ()
    return Outcome(metrics=metrics, headline=headline, scores=scores, per_class={}, chance={headline: 0.5}, notes=notes)


def preferences(features: Features, settings: Settings) -> FloatArray:
    """Return the similarity of reference and right candidate minus that of reference and left candidate, (N,)."""
    found = np.empty(len(features))
    for start in range(0, len(features), _ROWS):
        block = features.x[start : start + _ROWS].astype(np.float64)
        vectors = block.reshape(len(block), 3, -1)
        if settings.similarity == "euclidean":
            left, right = (np.linalg.norm(vectors[:, 0] - vectors[:, k], axis=1) for k in (1, 2))
            found[start : start + _ROWS] = left - right
            continue
        lengths = np.linalg.norm(vectors, axis=2, keepdims=True)
        # A vector of zeros stays one: its cosine with any other is 0.
        vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
        found[start : start + _ROWS] = np.einsum("nd,nd->n", vectors[:, 0], vectors[:, 2] - vectors[:, 1])
    return found


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count passes over the three vectors of each triplet, in double precision."""
    block = 8.0 * min(shapes.test, _ROWS) * shapes.width
    return Cost(passes=64.0 * shapes.test * shapes.width, memory=3 * block, scores=4.0 * shapes.test)


PROTOCOL = Protocol(
    version=1,
    summary="similarity as persons see it (NIGHTS): choice between two candidates, without training.",
    settings=Settings,
    kind=OnFeatures(check, run, cost=cost, takes=(Triplets,), part=test_part, own_classes=True),
)
