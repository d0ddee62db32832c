"""One record with every field filled in, and its scores."""

import dataclasses

import numpy as np

from sslbench.identity import record_id
from sslbench.results import (
    BenchmarkUsed,
    DataPart,
    DataUsed,
    ExcludedImage,
    Hardware,
    MetricValue,
    ProtocolUsed,
    Result,
    WeightsUsed,
)

IDS = ("a/über 1.png", "a/2.png", "b/3.png", "b/4.png")
LABELS = np.array([0, 0, 1, 1])
SCORES = np.array([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.4, 0.6]], dtype=np.float32)
PREPROCESSING = {"resize": 256, "crop": [224, 224], "interpolation": "bilinear", "origin": "torchvision"}


def identified(result: Result) -> Result:
    """The result with the id that belongs to it."""
    return dataclasses.replace(result, id=record_id(result))


def sample():
    """The record."""
    train = DataPart(name="photos/ (train)", fingerprint="aa" * 16, n=40, n_used=39, classes=("cat", "dog"))
    return identified(
        Result(
            id="",
            created="2026-01-31T12:00:00+00:00",
            command="sslbench eval knn --weights 'my net.torch'",
            weights=WeightsUsed(
                name="my net.torch",
                path="/data/my net.torch",
                sha256="cd" * 32,
                format="vissl",
                backbone="resnet50",
                loaded=318,
                total=318,
            ),
            layer="avgpool",
            preprocessing=PREPROCESSING,
            precision="fp32",
            protocol=ProtocolUsed(name="knn", version=1, settings={"k": [20, 200], "temperature": 0.07}),
            benchmark=BenchmarkUsed(name="knn/photos", version=2, sha256="ef" * 32, modified=True),
            data=DataUsed(
                train=train,
                test=dataclasses.replace(train, name="photos/ (test)", fingerprint="bb" * 16, n=4, n_used=4),
                how="train/ against test/",
                labels="single",
                unreadable=(ExcludedImage(id="b/9.png", path="photos/b/9.png", reason="truncated"),),
            ),
            headline="top1",
            metrics={"top1": MetricValue(value=75.0, low=25.0, high=100.0, n=4), "top5": MetricValue(value=None, n=4)},
            per_class={"cat": 50.0, "dog": None},
            train=100.0,
            selected={"k": 20, "on": "held-out 10 % of train", "score": 0.9},
            variants={"k=200": {"top1": 50.0, "top5": None}},
            converged=None,
            floors={"chance": {"top1": 50.0}},
            seed=0,
            versions={"python": "3.12.1", "sslbench": "0.1.0"},
            hardware=Hardware(device="cpu", cpu="some cpu", threads=2),
            timings={"knn": 0.5},
            notes=("one image was left out",),
        )
    )
