"""Scores on a test part that has only some of the classes of train.

The published way for ImageNet-A and ImageNet-R (Hendrycks et al. 2021, their evaluation code; VISSL's logits mask): the
classifier is trained on all 1,000 classes, and at test time only the 200 that the test part has can be predicted.
"""

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench import names, protocols
from sslbench.errors import UsageError
from sslbench.features.array import Features
from sslbench.metrics.summary import summarise
from sslbench.results import Outcome
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target


def is_subset(train: Target, test: Target) -> bool:
    """Return True if test keeps only its own classes (`match_classes(..., subset=True)`)."""
    return train.classes != test.classes


def check(protocol: str) -> None:
    """Refuse protocols whose metrics cannot be restricted to some classes afterwards, before any work.

    Raises:
        UsageError: it trains on images, or reports a mean over several classifiers.
    """
    if not protocols.find(protocol).kind.class_subsets:
        raise _refused(protocol)


def _refused(protocol: str) -> UsageError:
    able = [name for name in names.list_names("protocol") if protocols.find(name).kind.class_subsets]
    return UsageError(
        f"{protocol} cannot be scored on test data with a subset of train's classes",
        f"Protocols that support it: {', '.join(able)}.",
    )


def widened(train: Target, test: Features) -> Features:
    """Return the test features with labels numbered as train numbers its classes."""
    columns = _columns(train, test.target)
    values: npt.NDArray[np.int64] | npt.NDArray[np.int8]
    if isinstance(test.target, Classes):
        values = columns[test.target.values]
    else:
        values = np.zeros((len(test), len(train.classes)), dtype=np.int8)
        values[:, columns] = test.target.values
    return dataclasses.replace(test, target=test.target.changed(classes=train.classes, values=values))


def restricted(outcome: Outcome, protocol: str, train: Target, test: Features, *, seed: int) -> Outcome:
    """Return an outcome over all of train's classes restricted to the classes of test.

    Args:
        outcome: of the protocol on `widened(train, test)`.
        protocol: its name, for messages.
        train: the labels that it was trained with.
        test: the features with labels of their own classes.
        seed: of the intervals.

    Raises:
        UsageError: the protocol's metrics are not those of its scores (a mean over draws is not), so they cannot be
            restricted afterwards.
    """
    whole = widened(train, test).target
    value = outcome.metrics[outcome.headline][0]
    if outcome.scores.shape != (len(test), len(train.classes)) or not np.isclose(
        value, whole.headline(whole.values, outcome.scores), atol=1e-6, equal_nan=True
    ):
        raise _refused(protocol)
    scores = outcome.scores[:, _columns(train, test.target)]
    # A subset of logits is still logits; a subset of probabilities must be normalised again.
    probabilities: Literal["softmax"] | None = "softmax" if outcome.probabilities == "softmax" else None
    target = test.target
    metrics, name, per_class = summarise(
        type(target), target.classes, target.values, scores, seed=seed, probabilities=probabilities, groups=test.groups
    )
    n = len(test.target.classes)
    note = f"Only the {n:,} of {len(train.classes):,} classes of train that test contains could be predicted."
    # The scores of rejected settings exist for all classes only.
    return dataclasses.replace(
        outcome,
        metrics=metrics,
        headline=name,
        per_class=per_class,
        scores=scores,
        variants={},
        notes=(*outcome.notes, note),
        probabilities=probabilities,
    )


def _columns(train: Target, test: Target) -> npt.NDArray[np.int64]:
    """Return the number in train of each class of test."""
    number = {name: i for i, name in enumerate(train.classes)}
    return np.array([number[name] for name in test.classes], dtype=np.int64)
