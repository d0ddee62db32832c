"""From a protocol's outcome to the result record: what was measured, on what, with what, how."""

import dataclasses
import logging
import platform
import time
from pathlib import Path
from typing import Any

import torch

from sslbench import names, records
from sslbench.backbones.backbone import Backbone
from sslbench.evaluation import floors
from sslbench.evaluation.prepare import Prepared
from sslbench.evaluation.request import RunSettings, Task
from sslbench.features.array import Features
from sslbench.results import (
    BenchmarkUsed,
    DataPart,
    DataUsed,
    Hardware,
    ProtocolUsed,
    Result,
    Unreadable,
    WeightsUsed,
    measurement_id,
    percent,
    percent_metrics,
    plain,
)

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Features of both parts for every layer, and what it took."""

    train: dict[str, Features]
    test: dict[str, Features]
    unreadable: tuple[Unreadable, ...]
    seconds: float
    decoded: int


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is measured, but for the protocol: the parts of a record that all its results share."""

    weights: WeightsUsed
    layer: str
    preprocessing: dict[str, Any]
    data: DataUsed
    run: RunSettings
    command: str
    timings: dict[str, float]


def score(subject: Subject, task: Task, train: Features, test: Features) -> tuple[Result, records.Scores]:
    """Runs one protocol and makes the record of it; nothing is written yet."""
    started = time.perf_counter()
    outcome = names.find_module("protocol", task.protocol).run(train, test, task.settings, seed=subject.run.seed)
    seconds = time.perf_counter() - started
    for note in outcome.notes:
        log.info(f"{task.protocol}: {note}")
    benchmark = task.benchmark
    result = Result(
        id=identity(subject, task),
        created=records.now(),
        command=subject.command,
        weights=subject.weights,
        layer=subject.layer,
        preprocessing=subject.preprocessing,
        precision=subject.run.precision,
        protocol=_protocol(task),
        benchmark=None
        if benchmark is None
        else BenchmarkUsed(
            name=benchmark.name, version=benchmark.version, sha256=benchmark.sha256, modified=benchmark.modified
        ),
        data=subject.data,
        headline=outcome.headline,
        metrics=percent_metrics(outcome, len(test)),
        per_class={name: percent(value) for name, value in outcome.per_class.items()},
        train=percent(outcome.train),
        selected=plain(outcome.selected),
        variants={
            name: {metric: percent(value) for metric, value in values.items()}
            for name, values in outcome.variants.items()
        },
        converged=outcome.converged,
        floors=floors.guessing(train.labels, test.labels) if subject.run.floors else {},
        seed=subject.run.seed,
        versions=records.versions(),
        hardware=hardware(subject.run),
        timings={**subject.timings, task.protocol: round(seconds, 3)},
        notes=outcome.notes,
    )
    return result, records.Scores(test.ids, outcome.scores, test.labels.values, test.labels.classes)


def _protocol(task: Task) -> ProtocolUsed:
    version = names.find_module("protocol", task.protocol).VERSION
    return ProtocolUsed(name=task.protocol, version=version, settings=plain(task.settings))


def identity(subject: Subject, task: Task) -> str:
    """The id of the record that `score` would make."""
    return measurement_id(
        weights=subject.weights,
        layer=subject.layer,
        preprocessing=subject.preprocessing,
        precision=subject.run.precision,
        protocol=_protocol(task),
        data=subject.data,
        seed=subject.run.seed,
    )


def describe(prepared: Prepared, backbone: Backbone, layer: str, encoded: Encoded, command: str) -> Subject:
    """What is measured when a backbone (the one in question, or a floor) meets the data at one layer."""
    request = prepared.request
    own = backbone is prepared.backbone
    given = request.weights if own else ("pixels" if backbone.builder == "pixels" else "random")
    weights = weights_used(backbone, given)
    data = prepared.data
    parts = [
        DataPart(
            name=part.name,
            fingerprint=part.fingerprint(),
            n=len(part),
            n_used=len(features[layer]),
            classes=part.labels.classes,
        )
        for part, features in ((data.train, encoded.train), (data.test, encoded.test))
    ]
    used = DataUsed(
        train=parts[0], test=parts[1], how=data.how, labels=data.train.labels.kind, unreadable=encoded.unreadable
    )
    preprocessing = dataclasses.asdict(backbone.preprocessing)
    timings = {"extract": round(encoded.seconds, 3), "images decoded": float(encoded.decoded)}
    return Subject(weights, layer, preprocessing, used, prepared.run, command, timings)


def weights_used(backbone: Backbone, given: str) -> WeightsUsed:
    """The weights of a backbone as a record holds them; `given` is what --weights said."""
    trained = given not in ("random", "pixels")
    total = len(backbone.module.state_dict())
    name = Path(given).name if trained else f"{backbone.name} untrained" if given == "random" else backbone.name
    return WeightsUsed(
        name=name,
        path=str(Path(given).resolve()) if trained else None,
        sha256=backbone.weights_sha256,
        format=backbone.format or given,
        backbone=backbone.name,
        loaded=backbone.report.loaded if backbone.report else 0,
        total=backbone.report.total if backbone.report else total,
        partial=backbone.report.partial if backbone.report else False,
        untrained=given == "random",
        changed=backbone.report.casts if backbone.report else (),
    )


def hardware(run: RunSettings) -> Hardware:
    """What it runs on."""
    device = run.torch_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return Hardware(device=name, cpu=platform.processor() or platform.machine(), threads=torch.get_num_threads())
