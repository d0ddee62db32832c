"""Extraction, scoring and writing: the part of an evaluation that takes time."""

import contextlib
import dataclasses
import functools
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.data.groups import source_groups
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest
from sslbench.distributed import this_process
from sslbench.distributed.collectives import from_first, process_group
from sslbench.errors import UsageError
from sslbench.evaluation import floors, overlaps
from sslbench.evaluation.corruption_curves import write_curves
from sslbench.evaluation.costs import encoding_costs, measured
from sslbench.evaluation.dense import on_places
from sslbench.evaluation.estimate import announce, announce_features
from sslbench.evaluation.groups import check_groups, groups_of_features, with_details
from sslbench.evaluation.images import evaluate_on_images
from sslbench.evaluation.neighbours import write_sheet
from sslbench.evaluation.prepare import (
    InMemoryData,
    Prepared,
    check_features,
    check_label_kind,
    class_counts,
    for_request,
    is_on_images,
    load,
    one_part,
    one_part_of_features,
    only_part,
    open_parts,
    open_train_test,
    task_with_noise,
    with_noise,
)
from sslbench.evaluation.record import Encoded, Subject, asked, describe, finish, measurement, score
from sslbench.evaluation.request import Request, RunSettings, Task, sample_kind
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
from sslbench.features.extract import Extraction, extract
from sslbench.features.skipped import note_skipped
from sslbench.features.streamed import streamed
from sslbench.features.together import TOGETHER_BYTES, extract_together, parameter_bytes
from sslbench.features.tuples import side_by_side
from sslbench.identity import digest, groups_digest, record_id
from sslbench.protocols import OnFeatures, any_targets
from sslbench.results import DataPart, DataUsed, ExcludedImage, Neighbours, Result, WeightsUsed, records
from sslbench.runtime.progress import Progress, stage_progress

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


def extract_only(
    request: Request,
    run: RunSettings,
    *,
    store: Path,
    progress: Progress | None = None,
    backbone: Backbone | None = None,
    in_memory: InMemoryData | None = None,
) -> dict[str, Extraction]:
    """Extract features of every part of the data, without evaluating them; labels are not needed.

    Args:
        request: what to encode.
        run: how.
        store: folder of the feature store.
        progress: see there.
        backbone: takes the place of request.weights when it is in memory already.
        in_memory: takes the place of locations; see there.

    Returns:
        Name of the part ('train', 'test', 'all') -> its extraction.
    """
    backbone, layers = _to_encode(request, run, backbone)
    parts = _parts_to_encode(request, run, in_memory)
    return {split: _extract(backbone, part, layers, run, store, split, progress) for split, part in parts.items()}


def extract_several(
    requests: Sequence[Request], run: RunSettings, *, store: Path, progress: Progress | None = None
) -> Iterator[tuple[str, dict[str, Extraction]]]:
    """Yield the weights and the extractions of `extract_only` for several weights on the same data.

    In one process, images that are decoded alike are decoded once for as many weights as fit `TOGETHER_BYTES`.

    Args:
        requests: they differ in the weights only.
        run: how.
        store: folder of the feature store.
        progress: see there.
    """
    parts = _parts_to_encode(requests[0], run, None)
    waiting, size = [], 0
    for number, request in enumerate(requests, 1):
        backbone, layers = _to_encode(request, run, None)
        waiting.append((request.weights, backbone, layers))
        size += parameter_bytes(backbone)
        if number < len(requests) and size <= TOGETHER_BYTES and this_process().world == 1:
            continue
        known = [(one, own) for _, one, own in waiting if one.known]
        for split, part in parts.items() if len(known) > 1 else ():
            shown = stage_progress(progress, f"{len(known)} backbones on {part.name}")
            extract_together(known, part, run.extract_settings(), root=store, split=split, progress=shown)
        for word, one, own in waiting:
            yield word, {split: _extract(one, part, own, run, store, split, progress) for split, part in parts.items()}
        waiting, size = [], 0


def _to_encode(request: Request, run: RunSettings, backbone: Backbone | None) -> tuple[Backbone, tuple[Layer, ...]]:
    """Return the backbone of a request, loaded unless it is given, and its layers."""
    backbone, _ = for_request(load(request, run) if backbone is None else backbone, request, run)
    return backbone, resolve_layers(backbone, request.layers or (backbone.default_layer,))


def _parts_to_encode(request: Request, run: RunSettings, in_memory: InMemoryData | None) -> dict[str, Source]:
    """Return the parts of the data of a request by name, and tell the notes about them."""
    if request.limit is not None:
        both = open_train_test(request, run, in_memory)
        parts = {"train": both.train, "test": both.test}
    else:
        parts = dict(open_parts(request, request.data, in_memory))
        if request.test_data is not None:
            test = open_parts(request, request.test_data, in_memory)
            parts = {**parts, **({"test": test["all"]} if set(test) == {"all"} else test)}
    for note in dict.fromkeys(note for part in parts.values() for note in part.notes):
        log.info(note)
    return parts


def evaluate(
    prepared: Prepared, *, store: Path, out: Path, command: str, progress: Progress | None = None
) -> list[Result]:
    """Run every protocol on every layer and write one record each; floors are computed first.

    Args:
        prepared: from `prepare`.
        store: folder of the feature store.
        out: folder for the records.
        command: what the user typed, for the record.
        progress: see there.

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
    results = evaluate_on_images(prepared, on_images, out=out, command=command, progress=progress) if on_images else []
    on_features = [task for task in prepared.request.tasks if not is_on_images(task)]
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
    encoded = _encode(prepared.backbone, prepared, prepared.layers, stores[""], progress)
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
                measured = _measure(subject, changed, (train, test), out, floor_results, beside.missing, suspected)
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
    check_groups(pair.test, tuple(pair.test.attributes), pair.name)
    labels = pair.train.labels
    log.info(f"{len(pair.train)} train and {len(pair.test)} test samples, {pair.how}{class_counts(labels)}")
    if pair.known_by == "rows":
        log.info(
            f"{pair.data} has no ids: other features with these labels in this order count as those of the same samples"
        )
    if labels.kind == "multi" and (labels.values > 0).sum(axis=1).max(initial=0) == 1 and (labels.values >= 0).all():
        log.warning(f"{pair.name}: no sample has several labels; give class numbers or names for accuracies (top1)")
    check_seeds(run, tasks)
    check_features(pair, tasks)
    for task in tasks:
        check_label_kind(task, pair.train.labels.kind)
        if is_on_images(task) or is_on_sets(task):
            raise UsageError(
                f"{task.protocol} takes images and cannot run on features",
                "Give --weights and --data, or use a protocol on features, such as linear.",
            )
    announce_features(pair, tasks, run, out)
    suspected = overlaps.find_among_features(pair.train, pair.test, run)
    results = []
    for task in tasks:
        subject, train, test = describe_embeddings(pair, task, run, command, name)
        missing = MISSING_FLOORS if run.floors else {}
        results.append(_measure(subject, task, (train, test), out, {}, missing, suspected)[0])
    return results


def _extract(
    backbone: Backbone,
    source: Source,
    layers: Sequence[Layer],
    run: RunSettings,
    store: Path,
    split: str,
    progress: Progress | None,
) -> Extraction:
    title = f"{backbone.name} on {source.name}"
    extraction = extract(
        backbone,
        source.every_image(),
        layers,
        run.extract_settings(),
        root=store,
        split=split,
        progress=stage_progress(progress, title),
    )
    if extraction.decoded:
        rate = extraction.decoded / max(extraction.seconds, 1e-9)
        log.info(f"{title}: {extraction.decoded} images in {extraction.seconds:.1f} s ({rate:.0f} images/s)")
    else:
        log.info(f"{title}: features found in the store, no image decoded")
    for conversion, count in sorted(extraction.conversions.items()):
        log.info(f"{source.name}: {count} images: {conversion}", extra={"once": True})  # pixels meet the same images
    if extraction.unreadable:
        log.warning(
            f"{source.name}: {len(extraction.unreadable)} of {len(source)} images cannot be read and are left out"
        )
    return extraction


def encode_parts(
    backbone: Backbone,
    data: TrainTest,
    layers: Sequence[Layer],
    run: RunSettings,
    store: Path,
    progress: Progress | None,
    *,
    work: bool = False,
) -> Encoded:
    """Return features of train and test; when both were cut from one source, that source is encoded and then cut.

    So `sslbench extract` and evaluations with other seeds or test fractions share one entry of the store.

    Args:
        backbone: with the preprocessing of the images.
        data: train and test.
        layers: of the backbone.
        run: how.
        store: folder of the feature store.
        progress: see there.
        work: with the floating-point operations of the backbone in the costs.
    """
    whole = data.whole
    parts = [("all", whole)] if whole is not None else [("train", data.train), ("test", data.test)]
    parts = parts[1:] if data.train is data.test and whole is None else parts  # one part stands for both
    with measured(run.torch_device()) as meter:
        extractions = [_extract(backbone, part, layers, run, store, split, progress) for split, part in parts]
    if this_process().rank != 0:
        return Encoded({}, {}, (), 0.0, 0)
    encoded = [
        {layer: side_by_side(features, part) for layer, features in extraction.features.items()}
        for extraction, (_, part) in zip(extractions, parts, strict=True)
    ]
    both = [
        {layer: _rows(features, part) for layer, features in found.items()}
        for found, part in zip(encoded * 2 if len(encoded) == 1 else encoded, (data.train, data.test), strict=True)
    ]
    unreadable = tuple(ExcludedImage(**row) for extraction in extractions for row in extraction.unreadable)
    seconds, decoded = sum(e.seconds for e in extractions), sum(e.decoded for e in extractions)
    costs = encoding_costs(backbone, decoded=decoded, seconds=seconds, stage=meter.stage, work=work)
    uncut = {} if whole is None else {layer: _rows(found, whole) for layer, found in encoded[0].items()}
    return Encoded(both[0], both[1], unreadable, seconds, decoded, costs, uncut)


def stored_test_features(prepared: Prepared, store: Path) -> list[Features]:
    """Return the features of the test part by each layer, from the store in which `evaluate` has left them.

    Args:
        prepared: evaluation that is done.
        store: its feature store.

    Returns:
        Features in the order of the layers; [] on processes other than the first.
    """
    split, part = ("test", prepared.data.test) if prepared.data.whole is None else ("all", prepared.data.whole)
    settings = prepared.run.extract_settings()
    images = part.every_image()
    found = extract(prepared.backbone, images, prepared.layers, settings, root=store, split=split)
    if this_process().rank != 0:
        return []
    features = [side_by_side(found.features[layer.text], part) for layer in prepared.layers]
    return [_rows(each, prepared.data.test) for each in features]


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
    train = _rows(train, prepared.data.train) if noise else train
    if part := only_part(task):
        prepared = dataclasses.replace(prepared, data=one_part(prepared.data, part))
        encoded = dataclasses.replace(encoded, train={layer: train}, test={layer: test})
    subject = describe(prepared, backbone, layer, encoded, command)
    return dataclasses.replace(subject, data=dataclasses.replace(subject.data, label_noise=noise)), train, test


def _rows(features: Features, part: Source) -> Features:
    """Return the rows of the readable samples of `part`, with the labels of `part` (classes matched by name)."""
    stored = np.array(features.ids)
    ids = np.array(part.ids)
    position = np.searchsorted(stored, ids)
    present = (position < len(stored)) & (stored[np.minimum(position, len(stored) - 1)] == ids)
    if present.all() and len(ids) == len(stored):
        groups = source_groups(part)
        return dataclasses.replace(features, labels=part.labels, groups=groups, queries=part.queries, maps=part.maps)
    labelled = part.select(np.flatnonzero(present))
    rows = position[present]
    x = features.x if len(rows) == len(stored) else features.x[rows]
    return Features(
        x,
        labelled.labels,
        labelled.ids,
        groups=source_groups(labelled),
        regions=features.regions,
        grid=features.grid,
        queries=labelled.queries,
        maps=labelled.maps,
    )


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
    return _encode(backbone, prepared, layers, store, progress, work=False)


def _encode(
    backbone: Backbone,
    prepared: Prepared,
    layers: Sequence[Layer],
    store: Path,
    progress: Progress | None,
    *,
    work: bool = True,
) -> Encoded:
    """Return the features of both parts, from the store or computed when they are read."""
    if not prepared.run.on_the_fly:
        return encode_parts(backbone, prepared.data, layers, prepared.run, store, progress, work=work)
    settings = prepared.run.extract_settings()
    train, test = (
        {
            layer.text: streamed(
                backbone,
                part,
                layer,
                settings,
                stage_progress(progress, f"{backbone.name} on {part.name}: {layer.text}"),
            )
            for layer in layers
        }
        for part in (prepared.data.train, prepared.data.test)
    )
    return Encoded(train, test, (), 0.0, len(prepared.data.train) + len(prepared.data.test))


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
) -> tuple[Result, tuple[Neighbours, ...]]:
    """Score one protocol on one layer, add the floors, write the record; return it with the neighbours to show."""
    result, scores = score(subject, task, *parts)
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
        extraction = _extract(encoder, each.source, prepared.layers, prepared.run, store, name, progress)
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
        command: what the user typed.
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
