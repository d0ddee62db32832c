"""Protocols on several sets of images: their features, and the records of test and of each recorded set."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from sslbench import protocols
from sslbench.data.source import Source
from sslbench.evaluation.costs import measured
from sslbench.evaluation.preparation import Prepared
from sslbench.evaluation.record import Subject, recorded
from sslbench.evaluation.request import Task
from sslbench.features.array import Features
from sslbench.protocols import FileClassifier, ImageSet, OnSets
from sslbench.results import DataPart, DataUsed, ExcludedImage, Result, records

NO_PIXELS = "the images of this floor have 8 x 8 pixels, too few to be changed"
NO_OTHER_CLASSIFIER = "the classifier of the weights file takes features of its own backbone only"
NO_UNTRAINED = "baseline=true also encodes all sets with the untrained backbone, in twice the time"


@dataclasses.dataclass(frozen=True)
class EncodedSets:
    """Features of further sets.

    Attributes:
        features: name of a set -> layer -> features.
        unreadable: name of a set -> images that were left out.
        seconds: time of their extraction.
    """

    features: Mapping[str, Mapping[str, Features]]
    unreadable: Mapping[str, tuple[ExcludedImage, ...]]
    seconds: float


def is_on_sets(task: Task) -> bool:
    """Return True for a protocol on several sets of images."""
    return isinstance(protocols.find(task.protocol).kind, OnSets)


def sets_of(prepared: Prepared, task: Task) -> Mapping[str, ImageSet]:
    """Return the further sets of a task; {} for other protocols."""
    return prepared.sets[prepared.request.tasks.index(task)]


def row_subjects(subject: Subject, task: Task, sets: Mapping[str, ImageSet]) -> dict[str, tuple[Subject, Task]]:
    """Return subject and task of each record: '' for test, and the names of recorded sets.

    The record on test names all sets that it depends on. That of a set is the same whatever else is scored.
    """
    further = tuple(
        DataPart(name=name, fingerprint=each.fingerprint, n=len(each.source), n_used=len(each.source), classes=())
        for name, each in sets.items()
    )
    rows = {"": (dataclasses.replace(subject, data=dataclasses.replace(subject.data, further=further)), task)}
    kind = _kind(task)
    for name, each in sets.items():
        if each.recorded:
            settings = kind.of_a_set(task.settings)
            data = _data_of_set(subject, name, each.source, alone=kind.part(settings) == "test")
            rows[name] = (
                dataclasses.replace(subject, data=data, groups={}, members={}),
                dataclasses.replace(task, settings=settings, benchmark=None, preset=None),
            )
    return rows


def _data_of_set(subject: Subject, name: str, source: Source, *, alone: bool) -> DataUsed:
    """Return a set as the test part of its own record; `alone`: it stands for train too, which is not used."""
    part = DataPart(
        name=name, fingerprint=source.fingerprint(), n=len(source), n_used=len(source), classes=source.labels.classes
    )
    if alone:
        how = f"{name} ({source.name}) alone"
        return dataclasses.replace(subject.data, train=part, test=part, how=how, unreadable=())
    how = f"{subject.data.train.name} against {name} ({source.name})"
    return dataclasses.replace(subject.data, test=part, how=how, unreadable=())


def score_sets(
    subject: Subject,
    task: Task,
    parts: tuple[Features, Features],
    sets: Mapping[str, ImageSet],
    encoded: EncodedSets,
    classifier: FileClassifier | None = None,
) -> dict[str, tuple[Result, records.Scores]]:
    """Run a protocol on several sets and return its records by name; nothing is written yet.

    Args:
        subject: subject of the measurement, with the test part.
        task: the protocol.
        parts: features of train and test.
        sets: the further sets.
        encoded: features of the further sets.
        classifier: that of the weights file, where the task chooses it.
    """
    train, test = parts
    features = {name: layers[subject.layer] for name, layers in encoded.features.items()}
    run = subject.run
    with measured(run.torch_device()) as meter:
        device = str(run.torch_device())
        outcomes = _kind(task).run(
            train, test, features, task.settings, seed=run.seed, device=device, classifier=classifier
        )
    found = {}
    for name, (own, own_task) in row_subjects(subject, task, sets).items():
        scored = test if not name else features[name]
        further = tuple(dataclasses.replace(part, n_used=len(features[part.name])) for part in own.data.further)
        data = dataclasses.replace(own.data, further=further)
        if name:
            used = dataclasses.replace(data.test, n_used=len(scored))
            alone = data.train == data.test
            train_part = used if alone else data.train
            data = dataclasses.replace(data, train=train_part, test=used, unreadable=encoded.unreadable[name])
        own = dataclasses.replace(own, data=data)
        seconds = meter.stage.seconds
        found[name] = recorded(own, own_task, outcomes[name], train, scored, seconds=seconds, stage=meter.stage)
    return found


def rows_of_set(features: Features, source: Source) -> Features:
    """Return stored features with the labels of a set."""
    readable = set(features.ids)
    labelled = source.select(np.array([i for i, name in enumerate(source.ids) if name in readable], dtype=np.int64))
    return dataclasses.replace(features, labels=labelled.labels)


def _kind(task: Task) -> OnSets[Any]:
    kind = protocols.find(task.protocol).kind
    if not isinstance(kind, OnSets):
        raise TypeError(f"{task.protocol} does not run on several sets")
    return kind
