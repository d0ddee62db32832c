"""Scores of a protocol on features: the records of test and, of a protocol on several sets, of each recorded set."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.data.source import Source
from sslbench.evaluation.costs import measured
from sslbench.evaluation.preparation import refused_subset
from sslbench.evaluation.record import Subject, recorded
from sslbench.evaluation.request import Task
from sslbench.features.array import Features
from sslbench.metrics.summary import summarise
from sslbench.protocols import FeatureInputs, FileClassifier, ImageSet
from sslbench.results import DataPart, ExcludedImage, Outcome, Result, records
from sslbench.runtime.device import choose_device
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target


@dataclasses.dataclass(frozen=True)
class FurtherSets:
    """Further sets of images of a task.

    Attributes:
        sets: name -> the images.
        features: name -> layer -> features.
        unreadable: name -> images that were left out.
    """

    sets: Mapping[str, ImageSet] = dataclasses.field(default_factory=dict)
    features: Mapping[str, Mapping[str, Features]] = dataclasses.field(default_factory=dict)
    unreadable: Mapping[str, tuple[ExcludedImage, ...]] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


NO_SETS = FurtherSets()


def score(
    subject: Subject,
    task: Task,
    train: Features,
    test: Features,
    further: FurtherSets = NO_SETS,
    classifier: FileClassifier | None = None,
) -> dict[str, tuple[Result, records.Scores]]:
    """Run one protocol and return its records, without groups: '' for test, and the names of recorded sets."""
    features = {name: layers[subject.layer] for name, layers in further.features.items()}
    run, device = subject.run, choose_device(subject.run.device)
    with measured(device) as meter:
        # No key holds the attributes.
        own_train, own_test = (dataclasses.replace(part, attributes={}) for part in (train, test))
        # With a subset of classes in test no other class can be predicted.
        subset = is_subset(train.target, test.target)
        seen = widened(train.target, own_test) if subset else own_test
        inputs = FeatureInputs(task.settings, run.seed, own_train, seen, features, classifier, str(device))
        outcomes = task.kind.outcomes(inputs)
        if subset:
            outcomes = {"": restricted(outcomes[""], task.protocol, train.target, own_test, seed=run.seed)}
    found, learnt = {}, task.kind.recorded_samples(train)
    for name, (own, own_task) in row_subjects(subject, task, further.sets).items():
        scored = task.kind.recorded_samples(test if not name else features[name])
        parts = tuple(dataclasses.replace(part, n_used=len(features[part.name])) for part in own.data.further)
        data = dataclasses.replace(own.data, further=parts)
        if name:
            used = dataclasses.replace(data.test, n_used=len(features[name]))
            alone = data.train == data.test
            train_part = used if alone else data.train
            data = dataclasses.replace(data, train=train_part, test=used, unreadable=further.unreadable[name])
        own = dataclasses.replace(own, data=data)
        found[name] = recorded(
            own, own_task, outcomes[name], learnt, scored, seconds=meter.stage.seconds, stage=meter.stage
        )
    return found


def row_subjects(subject: Subject, task: Task, sets: Mapping[str, ImageSet]) -> dict[str, tuple[Subject, Task]]:
    """Return subject and task of each record: '' for test, and the names of recorded sets."""
    # The record on test names all sets that it depends on. That of a set is the same whatever else is scored.
    further = tuple(
        DataPart(name=name, fingerprint=each.fingerprint, n=len(each.source), n_used=len(each.source), classes=())
        for name, each in sets.items()
    )
    rows = {"": (dataclasses.replace(subject, data=dataclasses.replace(subject.data, further=further)), task)}
    for name, each in sets.items():
        if each.recorded:
            own = dataclasses.replace(task, settings=task.kind.of_a_set(task.settings), benchmark=None, preset=None)
            source, size, alone = each.source, len(each.source), own.part == "test"
            part = DataPart(
                name=name, fingerprint=source.fingerprint(), n=size, n_used=size, classes=source.target.classes
            )
            # A set that is scored alone stands for train too, which is not used.
            train = part if alone else subject.data.train
            how = f"{name} ({source.name}) alone" if alone else f"{train.name} against {name} ({source.name})"
            data = dataclasses.replace(subject.data, train=train, test=part, how=how, unreadable=())
            rows[name] = dataclasses.replace(subject, data=data, groups={}, members={}), own
    return rows


def rows_of_set(features: Features, source: Source) -> Features:
    """Return stored features with the labels of a set."""
    readable = set(features.ids)
    labelled = source.select(np.array([i for i, name in enumerate(source.ids) if name in readable], dtype=np.int64))
    return dataclasses.replace(features, target=labelled.target)


def is_subset(train: Target, test: Target) -> bool:
    """Return True if test keeps only its own classes (`match_classes(..., subset=True)`)."""
    return train.classes != test.classes


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


# The published way for ImageNet-A and ImageNet-R (Hendrycks et al. 2021; VISSL's logits mask): the classifier is
# trained on all 1,000 classes, and at test time only the 200 that the test part has can be predicted.
def restricted(outcome: Outcome, protocol: str, train: Target, test: Features, *, seed: int) -> Outcome:
    """Return an outcome over all of train's classes restricted to the classes of test.

    `outcome`: of the protocol on `widened(train, test)`.
    """
    whole = widened(train, test).target
    value = outcome.metrics[outcome.headline][0]
    # A protocol whose headline does not follow from these scores alone has nothing that can be restricted.
    if outcome.scores.shape != (len(test), len(train.classes)) or not np.isclose(
        value, whole.headline(whole.values, outcome.scores), atol=1e-6, equal_nan=True
    ):
        raise refused_subset(protocol)
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
        weights=None if outcome.weights is None else outcome.weights.of_classes(target.classes),
    )


def _columns(train: Target, test: Target) -> npt.NDArray[np.int64]:
    """Return the number in train of each class of test."""
    number = {name: i for i, name in enumerate(train.classes)}
    return np.array([number[name] for name in test.classes], dtype=np.int64)
