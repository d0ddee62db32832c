"""Extraction, scoring and writing: the part of an evaluation that takes time."""

import contextlib
import dataclasses
import functools
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sslbench.arithmetic import arithmetic
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import resolve_layers
from sslbench.distributed import this_process
from sslbench.distributed.collectives import from_first, process_group
from sslbench.errors import UsageError
from sslbench.evaluation import floors, overlaps
from sslbench.evaluation.corruption_curves import write_curves
from sslbench.evaluation.dense import on_places
from sslbench.evaluation.encode import encode, extract_part, rows_of
from sslbench.evaluation.estimate import announce, announce_features
from sslbench.evaluation.groups import check_groups, groups_of_features, with_details
from sslbench.evaluation.images import evaluate_on_images
from sslbench.evaluation.neighbours import write_sheet
from sslbench.evaluation.preparation import (
    Prepared,
    check_features,
    check_label_kind,
    class_counts,
    is_on_images,
    one_part,
    one_part_of_features,
    task_with_noise,
    with_noise,
)
from sslbench.evaluation.record import Encoded, Subject, asked, describe, finish, measurement, score
from sslbench.evaluation.request import RunSettings, Task, only_part, sample_kind
from sslbench.evaluation.rounding import encode_sample, rounding, rounding_line
from sslbench.evaluation.sets import (
    NO_OTHER_CLASSIFIER,
    NO_PIXELS,
    NO_UNTRAINED,
    EncodedSets,
    is_on_sets,
    rows_of_set,
    score_sets,
    sets_of,
)
from sslbench.evaluation.trainings import check_seeds
from sslbench.features.array import Features
from sslbench.features.external import FeaturePair
from sslbench.features.skipped import note_skipped
from sslbench.identity import digest, groups_digest, record_id
from sslbench.protocols import OnFeatures, any_targets
from sslbench.results import DataPart, DataUsed, ExcludedImage, Neighbours, Result, Rounding, WeightsUsed, records
from sslbench.runtime.progress import Progress

MISSING_FLOORS = {"pixels": "the features came without images", "untrained": "the features came without a backbone"}


def describe_embeddings(
    pair: FeaturePair, task: Task, run: RunSettings, command: str, name: str | None = None
) -> tuple[Subject, Features, Features]:
    """Return the parts of a record that all protocols share, and the features of both parts."""
    train, test = one_part_of_features(pair.train, pair.test, pair.whole, task)
    part, how, hashes, split = only_part(task), pair.how, pair.fingerprints, ("train", "test")
    if part is not None and (pair.whole is not None or pair.train is pair.test):
        how, hashes, split = f"all of {pair.data}", (digest(pair.fingerprints, 32),) * 2, ("all", "all")
    elif part is not None:
        how, hashes, split = f"{part} alone", (pair.fingerprints[part == "test"],) * 2, (part, part)
    parts = [
        DataPart(
            name=f"{pair.data} ({part_name})",
            fingerprint=sha,
            n=len(f),
            n_used=len(f),
            classes=f.labels.classes,
        )
        for part_name, sha, f in zip(split, hashes, (train, test), strict=True)
    ]
    data = DataUsed(train=parts[0], test=parts[1], how=how, labels=train.labels.kind, known_by=pair.known_by)
    weights = WeightsUsed(
        name=name or pair.name,
        path=None,
        sha256=pair.features_sha256,
        format="features",
        backbone="features",
        loaded=0,
        total=0,
    )
    groups = groups_of_features(test)
    subject = Subject(
        weights=weights,
        layer="features",
        preprocessing={},
        precision="unknown",  # arrays have no such information
        feature_dtype=str(train.x.dtype),
        data=data,
        run=run,
        command=command,
        timings={},
        groups=groups,
        members=groups_digest(test.ids, groups),
    )
    return subject, train, test


log = logging.getLogger("sslbench")


def evaluate(
    prepared: Prepared, *, store: Path, out: Path, command: str, progress: Progress | None = None
) -> list[Result]:
    """Run every protocol on every layer and write one record each; floors are computed first.

    Args:
        prepared: from `prepare`.
        store: folder of the feature store.
        out: folder for the records.
        command: command line of the user, for the record.
        progress: receiver of the progress.

    Returns:
        The results, as they were written, those of protocols on images first. Empty on processes other than the first,
        which only help to encode and to train.

    Raises:
        ResourceError: the evaluation is estimated not to fit into memory or on disk.
        DataError: unreadable images, features that are not finite, labels that a protocol cannot use.
    """
    if this_process().rank == 0:
        announce(prepared, store, out)
    on_images = [task for task in prepared.request.tasks if is_on_images(task)]
    on_features = [task for task in prepared.request.tasks if not is_on_images(task)]
    results: list[Result] = []
    with arithmetic(prepared.run.torch_device()):
        if on_images:
            results += evaluate_on_images(prepared, on_images, out=out, command=command, progress=progress)
        if on_features:
            results += _evaluate_on_features(prepared, on_features, store, out, command, progress)
    return results


def _evaluate_on_features(
    prepared: Prepared, tasks: Sequence[Task], store: Path, out: Path, command: str, progress: Progress | None
) -> list[Result]:
    """Encode the images once, then run every protocol on every layer."""
    parts = {only_part(task) for task in tasks}
    if len(parts) == 1 and (part := parts.pop()) is not None:
        prepared = dataclasses.replace(prepared, data=one_part(prepared.data, part))
    _check_targets(prepared, tasks, progress)
    floor_backbones = _floor_backbones(prepared)
    with contextlib.ExitStack() as stack:
        backbones = {"": prepared.backbone, **floor_backbones.found}
        stores = {name: stack.enter_context(_store_for(backbone, store)) for name, backbone in backbones.items()}
        return _score_features(prepared, tasks, floor_backbones, stores, out, command, progress)


def _check_targets(prepared: Prepared, tasks: Sequence[Task], progress: Progress | None) -> None:
    """Read the targets that lie in files, on the first of several processes.

    Raises:
        DataError: some cannot be used; all of them are listed.
    """
    data, run = prepared.data, prepared.run
    parts = (data.train,) if data.train is data.test else (data.train, data.test)
    checks = [
        functools.partial(kind.check_targets, task.settings, parts)
        for task in tasks
        if isinstance(kind := sample_kind(task.protocol), OnFeatures) and kind.check_targets is not any_targets
    ]
    if checks:
        with process_group(run.torch_device()):
            for check in checks:
                from_first(functools.partial(check, engine=run.extract_settings(), progress=progress))


@contextlib.contextmanager
def _store_for(backbone: Backbone, store: Path) -> Iterator[Path]:
    """Yield the feature store; for features that may not be reused, a temporary folder in it."""
    if backbone.known:
        yield store
        return
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="not-kept-", dir=store, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _score_features(
    prepared: Prepared,
    tasks: Sequence[Task],
    beside: floors.FloorBackbones,
    stores: Mapping[str, Path],
    out: Path,
    command: str,
    progress: Progress | None,
) -> list[Result]:
    """Run every protocol on every layer, with the floors; `stores` has '' and the names of the floors."""
    encoded = encode(prepared.backbone, prepared, prepared.layers, stores[""], progress)
    floor_features = {
        name: (backbone, _encode_floor(backbone, prepared, stores[name], progress))
        for name, backbone in beside.found.items()
    }
    on_sets = [task for task in tasks if is_on_sets(task)]
    encoders = _backbones_of_sets(prepared, beside)
    encoded_sets = [
        {name: _encode_sets(backbone, prepared, task, stores[name], progress) for name, backbone in encoders.items()}
        for task in on_sets
    ]
    rounded = prepared.backbone.calibration is not None
    sample = encode_sample(prepared, encoded, stores[""], progress) if rounded else None
    if this_process().rank != 0:
        return []
    note_skipped(out, (prepared.data.train, prepared.data.test), [dataclasses.asdict(u) for u in encoded.unreadable])
    # Colours of a coarse grid do not tell images apart; those of 8 x 8 pixels do.
    with_pixels = "pixels" in floor_features and not on_places(tasks)
    suspected = overlaps.find(prepared, encoded, floor_features["pixels"][1] if with_pixels else None)
    results = []
    for layer in prepared.layers:
        for task in tasks:
            if is_on_sets(task):
                parts = {"": (prepared.backbone, encoded), **floor_features}
                all_of_them = {name: (*parts[name], own) for name, own in encoded_sets[on_sets.index(task)].items()}
                missing = _missing_beside_sets(prepared, beside)
                results += _measure_sets(prepared, task, layer.text, all_of_them, suspected, missing, out, command)
                continue
            for share in (0.0, *prepared.request.noise):
                data, changed = with_noise(prepared, share), task_with_noise(task, share)
                backbone = prepared.backbone
                subject, train, test = _describe_parts(data, backbone, layer.text, encoded, changed, command, share)
                floor_results = {
                    name: _floor(data, other, features, layer.text, changed, out, command, share)
                    for name, (other, features) in floor_features.items()
                }
                noisy = data.data.train if share else None
                effect = None if sample is None else rounding(subject, changed, sample, noisy)
                measured = _measure(
                    subject, changed, (train, test), out, floor_results, beside.missing, suspected, effect
                )
                part = only_part(task)
                used = one_part(data.data, part) if part else data.data
                write_sheet(*measured, used, backbone.preprocessing)
                results.append(measured[0])
    return results


def evaluate_features(
    pair: FeaturePair, tasks: Sequence[Task], run: RunSettings, *, out: Path, command: str, name: str | None = None
) -> list[Result]:
    """Evaluate embeddings made elsewhere; the floors are chance and majority only, and the record says so.

    Args:
        pair: features and labels of train and test.
        tasks: the protocols.
        run: settings of the run.
        out: folder for the records.
        command: as the user typed it.
        name: of the embeddings in records and tables; None: that of their file.

    Raises:
        UsageError: a protocol that takes images.
    """
    labels = pair.train.labels
    log.info(f"{len(pair.train)} train and {len(pair.test)} test samples, {pair.how}{class_counts(labels)}")
    if pair.known_by == "rows":
        log.info(
            f"{pair.data} has no ids: other features with these labels in this order count as those of the same samples"
        )
    if labels.kind == "multi" and (labels.values > 0).sum(axis=1).max(initial=0) == 1 and (labels.values >= 0).all():
        log.warning(f"{pair.name}: no sample has several labels; give class numbers or names for accuracies (top1)")
    check_features_for(pair, tasks, run)
    announce_features(pair, tasks, run, out)
    suspected = overlaps.find_among_features(pair.train, pair.test, run)
    results = []
    with arithmetic(run.torch_device()):
        for task in tasks:
            subject, train, test = describe_embeddings(pair, task, run, command, name)
            missing = MISSING_FLOORS if run.floors else {}
            results.append(_measure(subject, task, (train, test), out, {}, missing, suspected)[0])
    return results


def check_features_for(pair: FeaturePair, tasks: Sequence[Task], run: RunSettings) -> None:
    """Check that every protocol can use features that were made elsewhere, with their labels.

    Raises:
        UsageError: a protocol that takes images, or several trainings of protocols that train nothing.
        DataError: labels that a protocol cannot use.
    """
    check_groups(pair.test, tuple(pair.test.attributes), pair.name)
    check_seeds(run, tasks)
    check_features(pair, tasks)
    for task in tasks:
        check_label_kind(task, pair.train.labels.kind)
        if is_on_images(task) or is_on_sets(task):
            raise UsageError(
                f"{task.protocol} takes images and cannot run on features",
                "Give --weights and --data, or use a protocol on features, such as linear.",
            )


def _describe_parts(
    prepared: Prepared,
    backbone: Backbone,
    layer: str,
    encoded: Encoded,
    task: Task,
    command: str,
    noise: float = 0.0,
) -> tuple[Subject, Features, Features]:
    """Return the description and features that a protocol uses: both parts, or one of them in the place of both.

    With label noise, the train labels are those of `prepared`.
    """
    train, test = one_part_of_features(encoded.train[layer], encoded.test[layer], encoded.whole.get(layer), task)
    train = rows_of(train, prepared.data.train) if noise else train
    if part := only_part(task):
        prepared = dataclasses.replace(prepared, data=one_part(prepared.data, part))
        encoded = dataclasses.replace(encoded, train={layer: train}, test={layer: test})
    subject = describe(prepared, backbone, layer, encoded, command)
    return dataclasses.replace(subject, data=dataclasses.replace(subject.data, label_noise=noise)), train, test


def _floor_backbones(prepared: Prepared) -> floors.FloorBackbones:
    only_sets = all(is_on_sets(task) for task in prepared.request.tasks)
    if not prepared.run.floors or (only_sets and not prepared.run.baseline):
        return floors.FloorBackbones({}, {})
    found = floors.floor_backbones(prepared.backbone, is_floor=prepared.request.weights == "random")
    if on_places(prepared.request.tasks) and "pixels" in found.found:
        grids = [layer.grid for layer in prepared.layers if layer.grid is not None]
        pixels = floors.pixel_grid(prepared.backbone, max(grids, key=lambda grid: grid[0] * grid[1]))
        return floors.FloorBackbones(found.found | {"pixels": pixels}, found.missing)
    return found


def _encode_floor(backbone: Backbone, prepared: Prepared, store: Path, progress: Progress | None) -> Encoded:
    """Encode a floor: the untrained backbone at the layers evaluated; the pixels have one layer only."""
    same = backbone.name == prepared.backbone.name
    layers = prepared.layers if same else resolve_layers(backbone, (backbone.default_layer,))
    return encode(backbone, prepared, layers, store, progress, work=False)


def _floor(
    prepared: Prepared,
    backbone: Backbone,
    encoded: Encoded,
    layer: str,
    task: Task,
    out: Path,
    command: str,
    noise: float,
) -> tuple[Result, records.Scores]:
    """Return a floor's result at the same layer (the pixels have one of their own), cached if possible."""
    layer = layer if layer in encoded.train else next(iter(encoded.train))
    subject, train, test = _describe_parts(prepared, backbone, layer, encoded, task, command, noise)
    found = floors.cached(record_id(measurement(subject, task)), subject.data)
    if found is None:
        found = score(subject, task, train, test)
        if backbone.known:
            found = found[0], floors.keep(*found)
    result = dataclasses.replace(found[0], asked=dataclasses.replace(asked(subject, task), overlaps=False))
    result = with_details(result, found[1], subject.groups)
    floors.show(result, found[1], out)
    return result, found[1]


def _measure(
    subject: Subject,
    task: Task,
    parts: tuple[Features, Features],
    out: Path,
    floor_results: Mapping[str, tuple[Result, records.Scores]],
    missing: Mapping[str, str],
    suspected: overlaps.SuspectedOverlaps | None,
    effect: Rounding | None = None,
) -> tuple[Result, tuple[Neighbours, ...]]:
    """Score one protocol on one layer, add the floors, write the record; return it with the neighbours to show."""
    result, scores = score(subject, task, *parts)
    if effect is not None:
        log.info(line := f"{task.protocol}: {rounding_line(effect)}")
        result = dataclasses.replace(result, rounding=effect, notes=(*result.notes, line))
    result = with_details(result, scores, subject.groups)
    result = overlaps.with_overlaps(result, scores, suspected, task, out)
    return finish(result, scores, floor_results, missing, out), scores.neighbours


def _backbones_of_sets(prepared: Prepared, beside: floors.FloorBackbones) -> dict[str, Backbone]:
    """Return the backbones that encode further sets: the evaluated one as '', with baseline=true the untrained one."""
    untrained = beside.found.get("untrained") if prepared.run.baseline else None
    return {"": prepared.backbone} | ({} if untrained is None else {"untrained": untrained})


def _missing_beside_sets(prepared: Prepared, beside: floors.FloorBackbones) -> dict[str, str]:
    """Return the floors that protocols on several sets lack, with the reasons."""
    if not prepared.run.floors or prepared.backbone.kind.pixels:
        return {}
    if prepared.classifier is not None:
        return {"pixels": NO_OTHER_CLASSIFIER, "untrained": NO_OTHER_CLASSIFIER}
    missing = {"pixels": NO_PIXELS}
    if prepared.request.weights == "random":
        return missing
    return missing | (beside.missing if prepared.run.baseline else {"untrained": NO_UNTRAINED})


def _encode_sets(
    backbone: Backbone, prepared: Prepared, task: Task, store: Path, progress: Progress | None
) -> EncodedSets:
    """Return the features of the further sets, and the time of their extraction."""
    found: dict[str, dict[str, Features]] = {}
    unreadable: dict[str, tuple[ExcludedImage, ...]] = {}
    seconds = 0.0
    for name, each in sets_of(prepared, task).items():
        encoder = dataclasses.replace(backbone, preprocessing=each.preprocessing)
        extraction = extract_part(encoder, each.source, prepared.layers, prepared.run, store, name, progress)
        found[name] = {layer: rows_of_set(features, each.source) for layer, features in extraction.features.items()}
        unreadable[name] = tuple(ExcludedImage(**row) for row in extraction.unreadable)
        seconds += extraction.seconds
    return EncodedSets(found, unreadable, seconds)


def _measure_sets(
    prepared: Prepared,
    task: Task,
    layer: str,
    encoded: Mapping[str, tuple[Backbone, Encoded, EncodedSets]],
    suspected: overlaps.SuspectedOverlaps | None,
    missing: Mapping[str, str],
    out: Path,
    command: str,
) -> list[Result]:
    """Score a protocol on several sets at one layer, beside the untrained backbone where that was asked for.

    Args:
        prepared: from `prepare`.
        task: the protocol.
        layer: name of the layer.
        encoded: '' and 'untrained' -> backbone, features of train and test, and of the further sets.
        suspected: test images that are in train too.
        missing: floors that there are not -> the reason.
        out: folder of the records.
        command: command line of the user.
    """
    found = {}
    for name, (backbone, parts, of_sets) in encoded.items():
        subject, train, test = _describe_parts(prepared, backbone, layer, parts, task, command)
        subject = dataclasses.replace(subject, timings={**subject.timings, "further sets": round(of_sets.seconds, 3)})
        sets = sets_of(prepared, task)
        found[name] = score_sets(subject, task, (train, test), sets, of_sets, prepared.classifier)
    results = []
    for row, (result, scores) in found[""].items():
        own_groups = describe(prepared, prepared.backbone, layer, encoded[""][1], command).groups if not row else {}
        detailed = with_details(result, scores, own_groups)
        if not row:
            detailed = overlaps.with_overlaps(detailed, scores, suspected, task, out)
        untrained = found.get("untrained", {}).get(row)
        if untrained is not None:
            floors.show(*untrained, out)
        beside = {} if untrained is None else {"untrained": untrained}
        results.append(finish(detailed, scores, beside, missing, out))
        write_curves(results[-1], out)
    return results
