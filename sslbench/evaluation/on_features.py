"""Protocols on features, from data to record: one extraction for all of them, their scores by layer, and the floors."""

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.distributed import this_process
from sslbench.distributed.collectives import from_first, process_group
from sslbench.evaluation import floors, overlaps
from sslbench.evaluation.beside import write_curves, write_network, write_sheet
from sslbench.evaluation.encode import encode_parts, encode_together, extract_part, rows_of, store_for
from sslbench.evaluation.groups import with_details
from sslbench.evaluation.preparation import (
    Prepared,
    as_scored,
    extract_settings,
    one_part,
    one_part_of_features,
    shared_part,
)
from sslbench.evaluation.record import Encoded, Subject, asked, describe, finish, measurement
from sslbench.evaluation.request import Task
from sslbench.evaluation.score import NO_SETS, FurtherSets, row_subjects, rows_of_set, score
from sslbench.features.array import Features
from sslbench.features.store import note_skipped
from sslbench.identity import record_id
from sslbench.protocols import FileClassifier
from sslbench.results import ExcludedImage, Neighbours, Result, records
from sslbench.runtime.device import choose_device
from sslbench.runtime.progress import Progress

log = logging.getLogger("sslbench")

Rows = dict[str, tuple[Result, records.Scores]]
"""Records by their names, see `score`."""
_NO_OTHER_CLASSIFIER = "the classifier of the weights file takes features of its own backbone only"


@dataclasses.dataclass(frozen=True)
class _Scored:
    """Backbone whose features are scored: the evaluated one, or a floor.

    Attributes:
        further: further sets of each task, by its number; a floor that a task lacks has none of them.
    """

    backbone: Backbone
    parts: Encoded
    further: Mapping[int, FurtherSets]


def evaluate_on_features(
    prepared: Prepared, *, store: Path, out: Path, command: str, progress: Progress | None = None
) -> list[Result]:
    """Encode the images once, then run every protocol on features on every layer; arguments as for `run.evaluate`."""
    tasks = prepared.feature_tasks
    if not tasks:
        return []
    prepared = dataclasses.replace(prepared, data=one_part(prepared.data, shared_part(tasks)))
    _check_targets(prepared, tasks, progress)
    beside = floors_of(prepared, tasks)
    scored: dict[str, list[_Scored]] = {}
    for name, backbones in {"": (prepared.backbone,), **beside.found}.items():
        # Behind the evaluated one, which finds what is wrong with the images or with itself.
        if name == "untrained" and not prepared.run.on_the_fly:
            wanted = [(backbone, prepared.layers) for backbone in backbones]
            encode_together(wanted, prepared.data, prepared.run, store, progress)
        scored[name] = []
        for backbone in backbones:
            own_store = store_for(backbone, store, prepared.run)
            layers = floor_layers(prepared, backbone)
            parts = encode_parts(backbone, prepared.data, layers, prepared.run, own_store, progress, work=not name)
            further = {
                number: _encode_sets(backbone, prepared, task, own_store, progress)
                for number, task in enumerate(tasks)
                if name not in _lacking(prepared, task)
            }
            scored[name].append(_Scored(backbone, parts, further))
    # The other processes help to encode only.
    if this_process().rank != 0:
        return []
    (own,) = scored[""]
    encoded = own.parts
    unreadable = [dataclasses.asdict(image) for image in encoded.unreadable]
    note_skipped(out, {"train": prepared.data.train, "test": prepared.data.test}, unreadable)
    # Colours of a coarse grid do not tell images apart; those of 8 x 8 pixels do.
    with_pixels = "pixels" in scored and prepared.request.view.pixel_cells(prepared.layers) is None
    suspected = overlaps.find(prepared, encoded, scored["pixels"][0].parts if with_pixels else None)
    results = []
    for layer in (layer.text for layer in prepared.layers):
        for number, task in enumerate(tasks):
            for share in (0.0, *prepared.request.noise):
                data, changed = as_scored(prepared, task, share)
                beside_it = {
                    name: [_floor(data, floor, layer, changed, number, out, command, share) for floor in each]
                    for name, each in scored.items()
                    if name and number in each[0].further
                }
                subject, train, test = _describe_parts(data, own, layer, changed, number, command, share)
                measured = measure(
                    subject,
                    changed,
                    train,
                    test,
                    out,
                    further=own.further[number],
                    classifier=prepared.classifier,
                    network=prepared.backbone,
                    beside=beside_it,
                    missing={**beside.missing, **_lacking(prepared, task)},
                    suspected=suspected,
                )
                for result, neighbours in measured:
                    used = one_part(data.data, changed.part)
                    write_sheet(result, neighbours, used, prepared.backbone.preprocessing)
                    write_curves(result, out)
                    results.append(result)
    return results


def measure(  # noqa: PLR0913
    subject: Subject,
    task: Task,
    train: Features,
    test: Features,
    out: Path,
    *,
    missing: Mapping[str, str],
    suspected: overlaps.SuspectedOverlaps | None,
    further: FurtherSets = NO_SETS,
    classifier: FileClassifier | None = None,
    network: Backbone | None = None,
    beside: Mapping[str, Sequence[Rows]] | None = None,
) -> list[tuple[Result, tuple[Neighbours, ...]]]:
    """Score one protocol on one layer and write its records with the floors.

    `network`: backbone of the features, for which a trained probe is written; None: they were made elsewhere.
    """
    written = []
    for row, (result, scores) in score(subject, task, train, test, further, classifier).items():
        result = with_details(result, scores, {} if row else subject.groups)
        if network is not None:
            result = write_network(result, scores, network, out)
        if not row:
            result = overlaps.with_overlaps(result, scores, suspected, task, out)
        floor_rows = {name: [rows[row] for rows in each] for name, each in (beside or {}).items()}
        written.append((finish(result, scores, floor_rows, missing, out), scores.neighbours))
    return written


def _check_targets(prepared: Prepared, tasks: Sequence[Task], progress: Progress | None) -> None:
    """Read the targets that lie in files, on the first of several processes."""
    data, run = prepared.data, prepared.run
    parts = (data.train,) if data.train is data.test else (data.train, data.test)
    checks = [
        functools.partial(task.kind.check_targets, task.settings, parts)
        for task in tasks
        if task.kind.check_targets is not None
    ]
    if checks:
        with process_group(choose_device(run.device)):
            for check in checks:
                from_first(functools.partial(check, engine=extract_settings(run), progress=progress))


def floors_of(prepared: Prepared, tasks: Sequence[Task]) -> floors.FloorBackbones:
    """Return the backbones whose features are scored beside those of the evaluated one."""
    lacking = [task.kind.lacking_floors(baseline=prepared.run.baseline) for task in tasks]
    if not prepared.run.floors or all({"pixels", "untrained"} <= each.keys() for each in lacking):
        return floors.FloorBackbones({}, {})
    # A floor that is expensive, and scored on request only, is one network.
    expensive = any("untrained" in task.kind.lacking_floors(baseline=False) for task in tasks)
    seeds = floors.UNTRAINED_SEEDS[: 1 if expensive and prepared.run.baseline else None]
    is_floor = prepared.request.weights == "random"
    deep = floors.sees_16_bits(prepared.backbone, prepared.data.train)
    found = floors.floor_backbones(prepared.backbone, is_floor=is_floor, seeds=seeds, deep=deep)
    cells = prepared.request.view.pixel_cells(prepared.layers)
    if cells is not None and "pixels" in found.found:
        pixels = floors.pixel_grid(found.found["pixels"][0], cells)
        return floors.FloorBackbones({**found.found, "pixels": (pixels,)}, found.missing)
    return found


def floor_layers(prepared: Prepared, backbone: Backbone) -> tuple[Layer, ...]:
    """Return the layers of a floor: the untrained backbone has the ones evaluated, the pixels one of their own."""
    same = backbone.name == prepared.backbone.name
    return prepared.layers if same else resolve_layers(backbone, (backbone.default_layer,))


def _lacking(prepared: Prepared, task: Task) -> dict[str, str]:
    """Return the floors that there might be and a task lacks, with the reasons."""
    if not prepared.run.floors or prepared.backbone.kind.pixels:
        return {}
    if prepared.classifier is not None:
        return dict.fromkeys(("pixels", "untrained"), _NO_OTHER_CLASSIFIER)
    lacking = task.kind.lacking_floors(baseline=prepared.run.baseline)
    return {
        name: reason for name, reason in lacking.items() if (name, prepared.request.weights) != ("untrained", "random")
    }


def _describe_parts(
    prepared: Prepared, scored: _Scored, layer: str, task: Task, number: int, command: str, noise: float
) -> tuple[Subject, Features, Features]:
    """Return the description and features that a protocol uses: both parts, or one of them in the place of both."""
    # The labels are those of `prepared`, which may be wrong or of another kind.
    parts, used = scored.parts, one_part(prepared.data, task.part)
    train, test = one_part_of_features(parts.train[layer], parts.test[layer], parts.whole.get(layer), task)
    if noise or type(used.train.target) is not type(train.target):
        train, test = rows_of(train, used.train), rows_of(test, used.test)
    if task.part:
        prepared = dataclasses.replace(prepared, data=one_part(prepared.data, task.part))
        parts = dataclasses.replace(parts, train={layer: train}, test={layer: test})
    subject = describe(prepared, scored.backbone, layer, parts, command)
    further = scored.further[number]
    timings = {"further sets": round(further.seconds, 3)} if further.sets else {}
    data = dataclasses.replace(subject.data, label_noise=noise)
    request = subject.request and dataclasses.replace(subject.request, tasks=(task,))
    timings = {**subject.timings, **timings}
    return dataclasses.replace(subject, data=data, timings=timings, request=request), train, test


def _floor(
    prepared: Prepared, floor: _Scored, layer: str, task: Task, number: int, out: Path, command: str, noise: float
) -> Rows:
    """Return a floor's records at the same layer (the pixels have one of their own), cached if possible."""
    layer = layer if layer in floor.parts.train else next(iter(floor.parts.train))
    subject, train, test = _describe_parts(prepared, floor, layer, task, number, command, noise)
    further = floor.further[number]
    # The key of a record on test does not tell which images of further sets could be read.
    kept = not floor.backbone.process_key and not further.sets
    found = floors.cached(record_id(measurement(subject, task)), subject.data) if not further.sets else None
    rows = score(subject, task, train, test, further) if found is None else {"": found}
    for row, (own, own_task) in row_subjects(subject, task, further.sets).items():
        variant = dataclasses.replace(asked(own, own_task), overlaps=False)
        rows[row] = floors.stand(rows[row], own.groups, variant, out, kept=kept and found is None)
    return rows


def _encode_sets(
    backbone: Backbone, prepared: Prepared, task: Task, store: Path, progress: Progress | None
) -> FurtherSets:
    """Return the features of the further sets, and the time of their extraction."""
    sets = prepared.sets_of(task)
    found: dict[str, dict[str, Features]] = {}
    unreadable: dict[str, tuple[ExcludedImage, ...]] = {}
    seconds = 0.0
    for name, each in sets.items():
        encoder = dataclasses.replace(backbone, preprocessing=each.preprocessing)
        extraction = extract_part(encoder, each.source, prepared.layers, prepared.run, store, name, progress)
        found[name] = {layer: rows_of_set(features, each.source) for layer, features in extraction.features.items()}
        unreadable[name] = tuple(ExcludedImage(**row) for row in extraction.unreadable)
        seconds += extraction.seconds
    return FurtherSets(sets, found, unreadable, seconds)
