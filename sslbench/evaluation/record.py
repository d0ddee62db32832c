"""Result record of a protocol's outcome: weights, data, settings, metrics, versions."""

import dataclasses
import itertools
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from sslbench import names, protocols, user_code
from sslbench.arithmetic import float32_rounding
from sslbench.arrays import Matrix
from sslbench.backbones import named
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import head_layers
from sslbench.errors import UsageError
from sslbench.evaluation import floors
from sslbench.evaluation.beside import write_predicted
from sslbench.evaluation.file_classifier import with_classifier
from sslbench.evaluation.groups import UNNAMED, groups_of, with_details
from sslbench.evaluation.preparation import Prepared
from sslbench.evaluation.request import FeaturesRequest, Request, Task, written
from sslbench.evaluation.settings import RunSettings
from sslbench.evaluation.trainings import ONE_TRAINING, draws, mean_tables, value_range
from sslbench.features.array import Features
from sslbench.identity import Measurement, groups_digest, record_id
from sslbench.library.benchmarks import Benchmark
from sslbench.library.presets import Preset
from sslbench.metrics.answers import stored_places
from sslbench.metrics.regression import R2
from sslbench.names import did_you_mean
from sslbench.results import (
    BenchmarkUsed,
    Costs,
    DataPart,
    DataUsed,
    ExcludedImage,
    Hardware,
    MetricValue,
    Outcome,
    PresetUsed,
    ProtocolUsed,
    ReferenceCompared,
    RequestedParts,
    Result,
    Stage,
    WeightsUsed,
    as_recorded,
    percent,
    percent_metrics,
    plain,
    records,
)
from sslbench.runtime.device import choose_device
from sslbench.targets.classes import Classes
from sslbench.train.optimizers.optimizer import code_of

log = logging.getLogger("sslbench")
Named = TypeVar("Named", BenchmarkUsed, PresetUsed)
_ROWS = 4096
"""Rows of features in memory at a time."""


def compare_references(
    benchmark: Benchmark | None, weights: WeightsUsed, metrics: Mapping[str, MetricValue]
) -> tuple[ReferenceCompared, ...]:
    """Return the published values for these weights on a benchmark beside the measured ones."""
    if benchmark is None or weights.partial or weights.untrained:
        return ()
    found = []
    for each in benchmark.reference:
        # Without a digest startswith would be true of all weights; a given one may be shortened.
        if weights.name not in each.files and not (each.sha256 and weights.sha256.startswith(each.sha256)):
            continue
        value = metrics[each.metric].value if each.metric in metrics else None
        difference = None if value is None else value - each.value
        found.append(
            ReferenceCompared(
                weights=each.weights,
                metric=each.metric,
                published=each.value,
                source=each.source,
                tolerance=each.tolerance,
                difference=difference,
                within=difference is not None and abs(difference) <= each.tolerance,
            )
        )
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Features of both parts for every layer, with time and costs; `whole` where both were cut from one source."""

    train: dict[str, Features]
    test: dict[str, Features]
    unreadable: tuple[ExcludedImage, ...]
    seconds: float
    decoded: int
    costs: Costs | None = None
    whole: dict[str, Features] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Subject:
    """Measurement without the protocol: the parts of a record that all results on a layer share.

    Attributes:
        groups: column of the manifest -> the group of every test sample that is scored.
        members: column -> digest of the group of every test sample, scored or not (`identity.groups_digest`).
        calibration: digest of the images that decide the ranges of int8.
        request: the evaluation; None where weights or data are objects of Python.
    """

    weights: WeightsUsed
    layer: str
    preprocessing: dict[str, Any]
    precision: str
    feature_dtype: str
    data: DataUsed
    run: RunSettings
    command: str
    timings: dict[str, float]
    groups: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    members: Mapping[str, str] = dataclasses.field(default_factory=dict)
    costs: Costs | None = None
    calibration: str | None = None
    notes: tuple[str, ...] = ()
    request: Request | FeaturesRequest | None = None


def measurement(subject: Subject, task: Task) -> Measurement:
    """Return what a protocol measures of a subject; `identity.record_id` names it."""
    definition, optimizer = protocols.find(task.protocol), getattr(task.settings, "optimizer", None)
    # As with a built-in protocol, the version of an installed plug-in's stands for its code.
    own = [names.find_module("protocol", task.protocol)] if "." in task.protocol else []
    read = task.kind.reads_trained_side(task.settings)
    return Measurement(
        weights=subject.weights,
        layer=subject.layer,
        # Of several protocols that run together, one may read a value that another does not.
        preprocessing={name: value for name, value in subject.preprocessing.items() if name != "trained_side" or read},
        precision=subject.precision,
        # Protocols on images store no features.
        feature_dtype="float32" if task.kind.needs_images else subject.feature_dtype,
        protocol=ProtocolUsed(
            name=task.protocol,
            version=definition.version,
            settings=plain(definition.recorded(task.settings)),
            code=user_code.sha256([*own, *(code_of(optimizer) if optimizer else [])]),
        ),
        benchmark=_as_used(BenchmarkUsed, task.benchmark),
        preset=_as_used(PresetUsed, task.preset),
        data=subject.data,
        seed=subject.run.seed,
        seeds=subject.run.seeds if task.kind.trains else None,
        calibration=subject.calibration,
    )


def _as_used(form: type[Named], definition: Benchmark | Preset | None) -> Named | None:
    """Return a benchmark or preset as records name it."""
    fields = [field.name for field in dataclasses.fields(form)]
    return None if definition is None else form(**{name: getattr(definition, name) for name in fields})


def asked(subject: Subject, task: Task) -> RequestedParts:
    """Return what the record of a subject is asked to hold beside its metrics."""
    run = subject.run
    baseline = run.baseline and task.kind.baseline
    return RequestedParts(groups=dict(subject.members), overlaps=run.overlaps, floors=run.floors, baseline=baseline)


def written_request(subject: Subject, task: Task) -> dict[str, Any] | None:
    """Return the request of one record: its protocol alone, and one training where several were asked for."""
    if subject.request is None:
        return None
    run, base = subject.run, subject.data.split_seed
    if base is not None:  # a later one of several trainings, on the split of the first
        run = dataclasses.replace(run, seed=base, seeds=run.seed - base + 1, only_seed=run.seed)
    elif not task.kind.trains:  # evaluated beside one that trains
        run = dataclasses.replace(run, seeds=1, only_seed=None)
    # The records of further sets have a task of their own, which does not open them.
    tasks = subject.request.tasks if len(subject.request.tasks) == 1 else (task,)
    return written(dataclasses.replace(subject.request, tasks=tasks), run)


def unscored(
    measured: Measurement,
    run: RunSettings,
    command: str,
    notes: tuple[str, ...],
    *,
    headline: str,
    request: dict[str, Any] | None = None,
) -> Result:
    """Return a record without results, whose id is known before anything is computed."""
    return Result(
        **{field.name: getattr(measured, field.name) for field in dataclasses.fields(measured)},
        id=record_id(measured),
        created=records.now(),
        command=command,
        request=request,
        headline=headline,
        metrics={},
        versions=records.versions() | names.plugin_version(measured.protocol.name),
        hardware=hardware(run),
        working_folder=records.working_folder(),
        by=os.environ.get("SSLBENCH_WHO") or None,
        notes=notes,
    )


def recorded(
    subject: Subject,
    task: Task,
    outcome: Outcome,
    train: Features,
    test: Features,
    *,
    seconds: float,
    stage: Stage | None = None,
) -> tuple[Result, records.Scores]:
    """Return the record of an outcome, without groups; nothing is written yet."""
    outcome = _with_headline(task.benchmark, outcome)
    numbers = [part.n_groups for part in (train, test)]
    if numbers != [None, None]:
        written = " and ".join(
            f"{len(part):,} {name} samples of {len(part) if n is None else n:,} groups"
            for part, name, n in zip((train, test), ("train", "test"), numbers, strict=True)
        )
        note = f"Groups are kept together in selections and intervals: {written}."
        outcome = dataclasses.replace(outcome, notes=(*outcome.notes, note))
    if task.kind.trains and draws(task) == 1:
        outcome = dataclasses.replace(outcome, notes=(*outcome.notes, ONE_TRAINING))
    for note in outcome.notes:
        # Nobody asked for the defaults that train is too small for; a note on a floor reads as one on the weights.
        unasked = subject.weights.is_floor or note.startswith("Default values of ")
        log.log(logging.DEBUG if unasked else logging.INFO, f"{task.protocol}: {note}")
    if same := _without_differences(outcome, train, test):
        log.warning(f"{task.protocol} on {subject.weights.name}: {same}")
        outcome = dataclasses.replace(outcome, notes=(*outcome.notes, same))
    costs, stage = subject.costs or Costs(), stage or Stage(seconds=round(seconds, 3))
    ranked = None  # for each draw the number of classes ranked before the true one
    if outcome.draws and isinstance(test.target, Classes):
        ranked = stored_places(test.target.values, outcome.draws)
    notes = (*outcome.notes, *subject.notes)
    result = dataclasses.replace(
        unscored(
            measurement(subject, task),
            subject.run,
            subject.command,
            notes,
            headline=outcome.headline,
            request=written_request(subject, task),
        ),
        asked=asked(subject, task),
        metrics=percent_metrics(outcome, len(test)),
        per_class={
            name: R2.recorded(value) if test.target.of_numbers else percent(value)
            for name, value in outcome.per_class.items()
        },
        train=as_recorded(outcome.headline, outcome.train, outcome.absolute),
        probabilities=outcome.probabilities,
        selected=plain(outcome.selected),
        variants={
            name: {metric: as_recorded(metric, value, outcome.absolute) for metric, value in values.items()}
            for name, values in outcome.variants.items()
        },
        converged=outcome.converged,
        floors=_guessing(outcome, train, test) if subject.run.floors else {},
        timings={**subject.timings, task.protocol: round(seconds, 3)},
        costs=dataclasses.replace(costs, stages={**costs.stages, task.protocol: stage}),
    )
    data = dataclasses.replace(
        result.data,
        train=dataclasses.replace(result.data.train, groups=numbers[0]),
        test=dataclasses.replace(result.data.test, groups=numbers[1]),
        train_part=outcome.train_part,
    )
    references = compare_references(task.benchmark, subject.weights, result.metrics)
    result = dataclasses.replace(result, data=data, references=references)
    scores = records.Scores(
        test.ids,
        outcome.scores,
        test.target.values,
        test.target.classes,
        test.groups,
        outcome.draws,
        ranked,
        outcome.neighbours,
        outcome.means,
        weights=outcome.weights,
    )
    return with_details(result, scores, {}), scores


def _without_differences(outcome: Outcome, train: Features, test: Features) -> str:
    """Return a warning if all samples have the same features, or the same scores; else ''."""
    same = [name for name, part in (("train", train), ("test", test)) if part.x.shape[1] and _is_constant(part.x)]
    if same:
        zeros = ", all zeros" if not np.asarray(test.x[0] if "test" in same else train.x[0]).any() else ""
        return (
            f"All samples of {' and of '.join(same)} have the same features{zeros}, so the score says nothing of the "
            "network: check the weights, the layer and the images."
        )
    of_classes = test.target.of_classes and outcome.scores.shape[1] == len(test.target.classes)
    if of_classes and _is_constant(outcome.scores):
        return "All test samples have the same scores: what is predicted does not depend on the images."
    return ""


def _is_constant(x: Matrix) -> bool:
    """Return True if all of several rows are equal; of others, a few rows are read."""
    # Two rows first: as a rule they differ, and nothing else is read.
    steps = [2, *range(_ROWS, len(x) + _ROWS, _ROWS)]
    return len(x) > 1 and all((x[a:b] == x[:1]).all() for a, b in itertools.pairwise((0, *steps)))


def _guessing(outcome: Outcome, train: Features, test: Features) -> dict[str, dict[str, float | None]]:
    """Return the floors that need no backbone: those that the protocol states, or those of guessing classes."""
    own = dict(outcome.floors) if outcome.chance is None else {**outcome.floors, "chance": outcome.chance}
    if not own:
        return floors.guessing(train.target, test.target)
    return {
        floor: {name: as_recorded(name, value, outcome.absolute) for name, value in values.items()}
        for floor, values in own.items()
    }


def _with_headline(benchmark: Benchmark | None, outcome: Outcome) -> Outcome:
    """Return the outcome with the benchmark's metric first; the score on train is known for the usual one only."""
    metric = benchmark.metric if benchmark is not None else ""
    if not metric or metric == outcome.headline:
        return outcome
    if benchmark is not None and metric not in outcome.metrics:
        raise UsageError(
            f"{benchmark.name}: no result has the metric '{metric}'", did_you_mean(metric, outcome.metrics)
        )
    return dataclasses.replace(outcome, headline=metric, train=float("nan"))


def finish(
    result: Result,
    scores: records.Scores,
    floor_results: Mapping[str, Sequence[tuple[Result, records.Scores]]],
    missing: Mapping[str, str],
    out: Path,
) -> Result:
    """Add the floors to a result, warn when it is not clearly above the untrained backbones, and write the record.

    `floor_results`: floor -> the result and scores of each of its networks, whose mean is the floor.
    """
    floors_, ranges = dict(result.floors.items()), {}
    for name, found in floor_results.items():
        own = [{metric: value.value for metric, value in floor.metrics.items()} for floor, _ in found]
        (floors_[name],) = mean_tables([{name: values} for values in own]).values()
        if len(own) > 1:
            ranges[name] = {metric: value_range([values.get(metric) for values in own]) for metric in own[0]}
    notes = list(result.notes)
    if below := floors.warn_if_below_chance(dataclasses.replace(result, floors=floors_)):
        log.warning(below)
        notes.append(below)
    if "untrained" in floor_results and (
        warning := floors.warn_if_at_floor(result, floor_results["untrained"], scores)
    ):
        log.warning(warning, extra={"in_verdict": True})
        notes.append(warning)
    lacking = {name: reason for name, reason in missing.items() if name not in floors_}
    result = dataclasses.replace(
        result, floors=floors_, floor_ranges=ranges, missing_floors=lacking, notes=tuple(notes)
    )
    written = floors.write(result, scores, out)
    write_predicted(written, scores)
    return written


def describe(prepared: Prepared, backbone: Backbone, layer: str, encoded: Encoded, command: str) -> Subject:
    """Return the description of a backbone (the evaluated one, or a floor) on the data at one layer."""
    request = prepared.request
    own = backbone is prepared.backbone
    given = request.weights if own else ("pixels" if backbone.kind.pixels else "random")
    used_weights = weights_used(backbone, given, request.name if own else None)
    weights = with_classifier(weights_at(layer, backbone, used_weights), prepared.classifier)
    data = prepared.data
    parts = [
        DataPart(
            name=part.name,
            fingerprint=part.fingerprint(),
            n=len(part),
            n_used=len(features[layer]),
            classes=part.target.classes,
        )
        for part, features in ((data.train, encoded.train), (data.test, encoded.test))
    ]
    used = DataUsed(
        train=parts[0], test=parts[1], how=data.how, labels=data.train.target.name, unreadable=encoded.unreadable
    )
    effective, read = {"origin", *prepared.preprocessing_origins}, request.as_read(backbone.preprocessing)
    preprocessing = {name: value for name, value in read.record().items() if name in effective}
    precision = "fp32" if prepared.run.precision == "int8" and backbone.kind.pixels else prepared.run.precision
    timings = {"extract": round(encoded.seconds, 3), "images decoded": float(encoded.decoded)}
    columns = {name: [text or UNNAMED for text in data.test.attributes[name]] for name in request.groups}
    can_be_written = not (prepared.in_memory or prepared.backbone.kind.in_memory)
    return Subject(
        weights,
        layer,
        preprocessing,
        precision,
        prepared.run.feature_dtype,
        used,
        prepared.run,
        command,
        timings,
        groups_of(data.test, encoded.test[layer].ids, request.groups),
        groups_digest(data.test.ids, columns),
        encoded.costs,
        backbone.calibration_sha256[:16] or None,
        prepared.notes,
        request_for(request, given, backbone) if can_be_written else None,
    )


def request_for(request: Request, weights: str, backbone: Backbone) -> Request:
    """Return the request for the weights of a floor or baseline, which is evaluated on the same images."""
    if weights == request.weights:
        return request
    pixels = backbone.kind.pixels
    return dataclasses.replace(
        request,
        weights=backbone.name if pixels else weights,
        backbone=None if pixels else backbone.name,
        layers=() if pixels else request.layers,
        preprocessing={key: value for key, value in backbone.preprocessing.values().items() if key != "origin"},
        format=None,
        stem=None,
        name=None,
        baselines=(),
    )


def weights_at(layer: str, backbone: Backbone, weights: WeightsUsed) -> WeightsUsed:
    """Return the weights that a layer (or several, joined by '+') depends on: without heads, unless it is in one."""
    if not backbone.heads or not head_layers(backbone).keys().isdisjoint(layer.split("+")):
        return weights
    return dataclasses.replace(weights, code=backbone.own_identity)


def weights_used(backbone: Backbone, given: str, name: str | None = None) -> WeightsUsed:
    """Return the weights of a backbone as a record holds them.

    `name`: of the weights in tables; None: that of their file, or of the backbone.
    """
    trained = not backbone.kind.pixels and given != "random"
    total = len(backbone.module.state_dict())
    fetched = named.local(given) if trained and not backbone.kind.in_memory and named.is_named(given) else None
    path = Path(given).resolve() if fetched is None else fetched.path
    usual = named.weights_name(given) if trained else backbone.title
    return WeightsUsed(
        name=name or usual,
        path=str(path) if trained and not backbone.kind.in_memory else None,
        source=fetched.source if fetched is not None else "",
        sha256=backbone.weights_sha256,
        format=backbone.format or given,
        backbone=backbone.name,
        loaded=backbone.report.loaded if backbone.report else 0,
        total=backbone.report.total if backbone.report else total,
        partial=backbone.report.partial if backbone.report else False,
        untrained=backbone.untrained,
        changed=backbone.report.casts if backbone.report else (),
        code=backbone.identity,
    )


def hardware(run: RunSettings) -> Hardware:
    """Return device, processor, number of threads and the rounding of float32 arithmetic."""
    device = choose_device(run.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    cpu, threads = platform.processor() or platform.machine(), torch.get_num_threads()
    return Hardware(device=name, cpu=cpu, threads=threads, float32=float32_rounding())
