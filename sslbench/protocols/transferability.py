"""Transferability: scores of features and labels that predict, without training, the accuracy of a fine-tuned network.

LogME, H-score (plain and with a shrunk covariance), TransRate and GBC take features and classes alone. LEEP and NCE
take the classifier in the weights file, whose source classes may be any: `classifier=file`. One part of the data is
scored, by default train, as the authors do. The floor "shuffled labels" has the scores of the same features with
permuted classes: what a score finds in noise.
"""

import dataclasses
import math
from typing import Literal

import numpy as np

from sslbench.arrays import IntArray
from sslbench.config import setting
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.intervals import Units, Values
from sslbench.metrics.spectrum import drawn_rows
from sslbench.metrics.transferability import LEEP, NCE, SCORES, LabelledFeatures, of_source_classes
from sslbench.protocols._parts.selection import check_finite, reaching_halves
from sslbench.protocols.protocol import (
    Cost,
    FeatureInputs,
    FileClassifier,
    FileClassifierChoice,
    OnFeatures,
    Part,
    Protocol,
    ProtocolSettings,
    Shapes,
)
from sslbench.results import Outcome
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target

_FEWEST = 4


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of transferability."""

    part: Literal["train", "test"] = setting("train", "split that is scored")
    samples: int = setting(100_000, "largest number of samples; of more, a random subset is used", within="[2, inf)")
    classifier: Literal["none", "file"] = setting(
        "none", "file: also LEEP and NCE of the classifier in the weights file, on the layer that it takes"
    )


def part(settings: Settings) -> Part | None:
    """Return 'test' where that is scored; None for train, which is split off as it is for protocols that learn."""
    return "test" if settings.part == "test" else None


def check(settings: Settings, train: Target) -> None:
    """Refuse labels other than one class per sample."""
    if not isinstance(train, Classes):
        raise DataError(
            f"transferability needs one class per sample, and these samples have {train.title}",
            "Name the column of classes with --label-col.",
        )


def file_classifier(settings: Settings) -> FileClassifierChoice | None:
    """Return the choice of the classifier in the weights file, if it is scored."""
    return FileClassifierChoice("", relabels=False) if settings.classifier == "file" else None


def run(
    train: Features,
    test: Features,
    settings: Settings,
    *,
    seed: int,
    device: str = "cpu",
    classifier: FileClassifier | None = None,
) -> Outcome:
    """Score one part.

    Scores that are no rates; there is no score per sample and class: `scores` is (N_test, 0). `classifier`: that of the
    weights file, for LEEP and NCE.
    """
    if settings.classifier == "file" and classifier is None:
        raise UsageError(
            "transferability: classifier=file takes the classifier in a weights file, and these features have none",
            "Leave it out, or give the network: --weights FILE.",
        )
    check_finite(train, "train")
    check_finite(test, "test")
    own, notes = train if settings.part == "train" else test, []
    check(settings, own.target)
    if len(own) > settings.samples:
        notes.append(f"Scored on a random subset of {settings.samples:,} of {len(own):,} samples.")
        own = own.select(np.sort(own.order[drawn_rows(len(own), settings.samples, seed)]))
    labels, units, width = own.target.values, Units.of(len(own), own.groups), own.x.shape[1]
    if len(np.unique(labels)) < 2:
        raise DataError(
            f"transferability: the {len(own):,} {settings.part} samples have one class, and at least 2 are needed",
            "Give data with several classes.",
        )
    if not own.x.any():
        raise DataError(f"transferability: the features of all {len(own):,} {settings.part} samples are 0")
    metrics = _scores(own, labels, classifier)
    # Scores of few samples are too high; those of two halves show by how much, and the intervals reach as far.
    if units.number >= _FEWEST:
        metrics = reaching_halves(
            metrics, units, seed, lambda rows: _scores(own.select(rows), labels[rows], classifier)
        )
    if len(own) < 2 * width:
        notes.append(
            f"There are fewer than two samples ({len(own):,}) per feature ({width:,}), so that LogME, H-score and "
            "TransRate fit labels without meaning, too: compare with shuffled labels."
        )
    # By rank: the permutation does not depend on the order of the rows.
    shuffled = np.empty_like(labels)
    shuffled[own.order] = np.random.default_rng(seed).permutation(labels[own.order])
    floor = _scores(own, shuffled, classifier)
    return Outcome(
        metrics=metrics,
        headline="logme",
        scores=np.zeros((len(test), 0), dtype=np.float32),
        per_class={},
        floors={"shuffled labels": {name: value for name, (value, _, _) in floor.items()}},
        notes=tuple(notes),
        scored=len(own),
    )


def _scores(features: Features, classes: IntArray, classifier: FileClassifier | None) -> Values:
    """Return all scores of features and classes (N,); NaN for a half with one class."""
    if len(np.unique(classes)) < 2:
        return {metric.name: (math.nan,) * 3 for metric in (*(metric for metric, _ in SCORES), LEEP, NCE)}
    labelled = LabelledFeatures.of(features.x, classes, features.groups)
    found = {metric.name: score(labelled) for metric, score in SCORES}
    if classifier is not None:
        found |= of_source_classes(classifier.logits, features.x, classes, features.groups)
    return found


@dataclasses.dataclass(frozen=True)
class _WithSourceClasses(OnFeatures[Settings]):
    """Protocol on features and, where the settings choose it, the classifier of the weights file."""

    def outcomes(self, inputs: FeatureInputs[Settings]) -> dict[str, Outcome]:
        """Score features, classes and source classes."""
        parts = inputs.train, inputs.test, inputs.settings
        return {"": run(*parts, seed=inputs.seed, device=inputs.device, classifier=inputs.classifier)}


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count moments, eigenvalues and influences: of the labels, of two halves and of shuffled labels."""
    rows = float(min(shapes.train if settings.part == "train" else shapes.test, settings.samples))
    rank = min(rows, shapes.width)
    per_class = min(rows / shapes.classes, rank)
    products = rows * rank * (16 * rank + 20 * shapes.classes + 8 * per_class) + 80 * rank**3
    return Cost(6 * products, 320 * rows * shapes.width, 8 * (6 * rank**2 + 4.0 * shapes.classes * shapes.width))


PROTOCOL = Protocol(
    version=2,
    summary="LogME, H-score, TransRate, GBC, LEEP, NCE: predictions of fine-tuning in closed form.",
    settings=Settings,
    kind=_WithSourceClasses(
        check,
        run,
        cost=cost,
        takes=(Classes,),
        part=part,
        own_classes=True,
        own_metric=True,
        file_classifier=file_classifier,
    ),
)
