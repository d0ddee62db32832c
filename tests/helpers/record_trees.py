"""Small records to make tables of."""

import dataclasses

import numpy as np

from sslbench.identity import record_id
from sslbench.results import DataPart, DataUsed, MetricValue, ProtocolUsed, Result, WeightsUsed, records

CLASSES = ("a", "b", "c")
IDS = tuple(f"{i:03d}.png" for i in range(200))
LABELS = np.arange(200) % 3
PREPROCESSING = {"resize": 256, "crop": [224, 224], "interpolation": "bilinear", "origin": "torchvision"}


def change(thing, **changes):
    """A dataclass with nested fields changed: `weights__name='x'` changes `thing.weights.name`."""
    for name, value in changes.items():
        first, _, rest = name.partition("__")
        thing = dataclasses.replace(thing, **{first: change(getattr(thing, first), **{rest: value}) if rest else value})
    return thing


def make(name="a.torch", top1=80.0, protocol="knn", **changes):
    """A record of `name` with that top-1; the id is made from what was measured."""
    test = DataPart(name="photos/ (test)", fingerprint="3f2a" * 8, n=200, n_used=200, classes=CLASSES)
    result = Result(
        id="",
        created="2026-01-31T12:00:00+00:00",
        command="sslbench eval",
        weights=WeightsUsed(
            name=name,
            path=None,
            sha256=name.encode().hex().ljust(64, "0"),
            format="torchvision",
            backbone="resnet50",
            loaded=318,
            total=318,
        ),
        layer="avgpool",
        preprocessing=PREPROCESSING,
        precision="fp32",
        protocol=ProtocolUsed(name=protocol, version=1, settings={"k": [20], "temperature": 0.07}),
        data=DataUsed(
            train=dataclasses.replace(test, name="photos/ (train)", fingerprint="77bb" * 8, n=800, n_used=800),
            test=test,
            how="train/ against test/",
            labels="single",
        ),
        headline="top1",
        metrics={
            "top1": MetricValue(
                value=top1, low=None if top1 is None else top1 - 2, high=None if top1 is None else top1 + 3
            ),
            "balanced_accuracy": MetricValue(value=top1),
        },
        seed=0,
    )
    result = change(result, **changes)
    return dataclasses.replace(result, id=record_id(result))


def write(result, right, folder, ids=IDS, labels=LABELS):
    """Write a record whose scores are right where `right` is True; returns it as it is read back."""
    scores = np.zeros((len(ids), 3), np.float32)
    scores[np.arange(len(ids)), np.where(right, labels, (labels + 1) % 3)] = 1.0
    result = change(result, metrics={"top1": MetricValue(value=100.0 * float(np.mean(right)), n=len(ids))})
    return records.read(records.write(result, scores, ids, labels, folder).file)


def body(board):
    """The rows that are no floors."""
    return [row for row in board.rows if not row.floor]


def labels(board):
    """Their labels, in order."""
    return [row.label for row in body(board)]
