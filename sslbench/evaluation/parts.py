"""What a protocol looks at: labels or not, train and test or one part only."""

import dataclasses

from sslbench import names
from sslbench.data.labels import no_labels
from sslbench.data.source import Labels, Source
from sslbench.data.splits import TrainTest, label_problems
from sslbench.evaluation.request import Task
from sslbench.features.array import Features


def needs_labels(task: Task) -> bool:
    """Whether a protocol can do without labels is said by its module: `NEEDS_LABELS = False`."""
    return bool(getattr(names.find_module("protocol", task.protocol), "NEEDS_LABELS", True))


def is_on_images(task: Task) -> bool:
    """Return whether a protocol takes images in place of features: `ON_IMAGES = True`."""
    return bool(getattr(names.find_module("protocol", task.protocol), "ON_IMAGES", False))


def only_part(task: Task) -> str | None:
    """'train' or 'test' where a protocol, with these settings, looks at one part only (its function `part`)."""
    part = getattr(names.find_module("protocol", task.protocol), "part", None)
    name: str | None = None if part is None else part(task.settings)
    return name


def without_useless_labels(data: TrainTest) -> TrainTest:
    """Data for protocols that need no labels: those of the two parts stay only if they go together."""
    if not label_problems(data.train, data.test):
        return data
    train, test = (_unlabelled(part) for part in (data.train, data.test))
    return dataclasses.replace(
        data, train=train, test=test, whole=None if data.whole is None else _unlabelled(data.whole)
    )


def fitted_labels(task: Task, data: TrainTest) -> Labels:
    """The labels of what a protocol learns from, for its `check`."""
    return data.whole.labels if only_part(task) and data.whole is not None else data.train.labels


def one_part(data: TrainTest, part: str) -> TrainTest:
    """The data with one part in the place of both; data that was split for want of parts is taken whole."""
    if data.whole is not None:
        return dataclasses.replace(data, train=data.whole, test=data.whole, how=f"all of {data.whole.name}, not split")
    source = data.train if part == "train" else data.test
    return dataclasses.replace(data, train=source, test=source, how=f"{source.name} alone")


def one_part_of_features(
    train: Features, test: Features, whole: Features | None, task: Task
) -> tuple[Features, Features]:
    """The same for features."""
    part = only_part(task)
    if part is None:
        return train, test
    chosen = whole if whole is not None else train if part == "train" else test
    return chosen, chosen


def _unlabelled(source: Source) -> Source:
    return dataclasses.replace(source, labels=no_labels(len(source)))
