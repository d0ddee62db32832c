"""Similarity of images as persons see it, by frozen features without training: choices and ratings.

Each triplet is a reference, two candidates and the candidate that persons find more similar. The candidate whose
features are more similar to those of the reference is chosen, by their cosine. The score is the share of triplets with
the choice of persons; 50 % at random. Equal similarities count one half. Fu et al., DreamSim, NeurIPS 2023 (the data
NIGHTS); Chen, Marks and Cheng, 2024 (arXiv 2411.17474) and VisBench compare networks so.

Each rated pair is two images and the similarity that persons gave them. The score is Spearman's rank correlation of the
ratings and the cosines. Xiao et al. 2024 (arXiv 2402.08183) render the sentences of STS so, and MIEB (Xiao et al. 2025,
arXiv 2504.10471) takes these data as visual STS.

Intervals are over triplets or pairs, those of one first image together. Time: one pass over the images.
"""

import dataclasses
from typing import Literal

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.config import setting
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.metrics.catalog import find
from sslbench.protocols._parts.selection import check_features
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, ProtocolSettings, Shapes, test_part
from sslbench.results import Outcome
from sslbench.targets.target import Target
from sslbench.targets.triplets import Compared, RatedPairs, Triplets

_ROWS = 4096  # samples at a time, so that memory-mapped features are never copied whole in float64


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of the comparison of similarities."""

    similarity: Literal["cosine", "euclidean"] = setting(
        "cosine", "cosine of the features, or the negative of their Euclidean distance"
    )


def check(settings: Settings, labels: Target) -> None:
    """Refuse data that are neither triplets nor rated pairs."""
    if not isinstance(labels, Compared):
        raise DataError(
            f"similarity needs triplets or rated pairs of images, and these samples have {labels.title}",
            "Give NIGHTS, a table with the columns ref, left, right and choice, one with image1, image2 and score, or "
            "triplets:PLACE.",
        )


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Compare the images of every sample of test.

    `test`: (N, n * D): reference and candidates of triplets, or both images of pairs.
    """
    check(settings, test.target)
    check_features(train, test)
    kind = Compared.of(test.target)
    scores = kind.score(similarities(test, settings)).astype(np.float32)
    level = find(kind.metric).chance
    return Outcome.of(
        kind,
        scores[:, None],
        seed=seed,
        groups=test.groups,
        chance={kind.metric: level} if isinstance(level, float) else {},
        notes=kind.notes(scores.astype(np.float64)),
    )


def similarities(features: Features, settings: Settings) -> FloatArray:
    """Return the similarities of the first image of each sample to its others, (N, n - 1)."""
    images = features.regions
    found = np.empty((len(features), images - 1))
    for start in range(0, len(features), _ROWS):
        block = features.x[start : start + _ROWS].astype(np.float64)
        vectors = block.reshape(len(block), images, -1)
        if settings.similarity == "euclidean":
            found[start : start + _ROWS] = -np.linalg.norm(vectors[:, :1] - vectors[:, 1:], axis=2)
            continue
        lengths = np.linalg.norm(vectors, axis=2, keepdims=True)
        # A vector of zeros stays one: its cosine with any other is 0.
        vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
        found[start : start + _ROWS] = np.einsum("nd,nkd->nk", vectors[:, 0], vectors[:, 1:])
    return found


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count passes over the vectors of each sample, in double precision."""
    block = 8.0 * min(shapes.test, _ROWS) * shapes.width
    return Cost(passes=64.0 * shapes.test * shapes.width, memory=3 * block, scores=4.0 * shapes.test)


PROTOCOL = Protocol(
    version=1,
    summary="similarity as persons see it: choices between candidates (NIGHTS), ratings of pairs (STS).",
    settings=Settings,
    kind=OnFeatures(check, run, cost=cost, takes=(Triplets, RatedPairs), part=test_part, own_classes=True),
)
