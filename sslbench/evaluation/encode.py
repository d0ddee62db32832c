"""Encoding of the data of a request: features of its parts, from the store or computed."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from sslbench import paths
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.int8 import calibrated
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.data.clips import noun_of, views_of
from sslbench.data.decode.picture import GREY_TO_RGB
from sslbench.data.groups import source_groups
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest
from sslbench.distributed import this_process
from sslbench.distributed.collectives import from_first, process_group, process_group_if_known
from sslbench.errors import SslbenchError, UsageError
from sslbench.evaluation.costs import encoding_costs, measured
from sslbench.evaluation.opening import InMemoryData, open_parts, open_train_test
from sslbench.evaluation.preparation import Prepared, extract_settings, for_request, load
from sslbench.evaluation.record import Encoded
from sslbench.evaluation.request import Request
from sslbench.evaluation.settings import RunSettings
from sslbench.features.array import Features
from sslbench.features.extract import (
    TOGETHER_BYTES,
    Extraction,
    check_shared,
    extract,
    extract_together,
    parameter_bytes,
    side_by_side,
)
from sslbench.features.store import left_out_warning, process_store
from sslbench.features.streamed import streamed
from sslbench.results import ExcludedImage
from sslbench.runtime.device import choose_device
from sslbench.runtime.progress import Progress, stage_progress

log = logging.getLogger("sslbench")


def extract_only(
    request: Request,
    run: RunSettings,
    *,
    store: Path | None,
    progress: Progress | None = None,
    backbone: Backbone | None = None,
    in_memory: InMemoryData | None = None,
) -> dict[str, Extraction]:
    """Extract features of every part of the data, without evaluating them; labels are not needed.

    store: folder of the feature store; None: the cache, or for features that are not kept a folder of this process.
    """
    backbone, layers = _to_encode(request, run, backbone)
    store = store_for(backbone, paths.cache_dir() / "features", run) if store is None else store
    parts = _parts_to_encode(request, run, in_memory)
    backbone = calibrated(backbone, _first_part(parts), run.precision, choose_device(run.device))
    return {split: extract_part(backbone, part, layers, run, store, split, progress) for split, part in parts.items()}


def store_for(backbone: Backbone, store: Path, run: RunSettings) -> Path:
    """Return the feature store; for features that are not kept, a folder in it that this run's processes share."""
    if not backbone.process_key:
        return store
    check_shared(backbone)
    with process_group(choose_device(run.device)):
        return from_first(functools.partial(process_store, store))


def extract_several(
    requests: Sequence[Request], run: RunSettings, *, store: Path, progress: Progress | None = None
) -> Iterator[tuple[str, dict[str, Extraction]]]:
    """Yield the weights and the extractions of `extract_only` for several weights on the same data."""
    # In one process, images that are decoded alike are decoded once for as many weights as fit `TOGETHER_BYTES`.
    parts = _parts_to_encode(requests[0], run, None)
    waiting, size = [], 0
    for number, request in enumerate(requests, 1):
        backbone, layers = _to_encode(request, run, None)
        backbone = calibrated(backbone, _first_part(parts), run.precision, choose_device(run.device))
        waiting.append((request.weights, backbone, layers))
        size += parameter_bytes(backbone)
        if number < len(requests) and size <= TOGETHER_BYTES and this_process().world == 1:
            continue
        known = [(one, own) for _, one, own in waiting if not one.process_key]
        for split, part in parts.items() if len(known) > 1 else ():
            shown = stage_progress(progress, f"{len(known)} networks on {part.name}")
            extract_together(known, part, extract_settings(run), root=store, split=split, progress=shown)
        for word, one, own in waiting:
            yield (
                word,
                {split: extract_part(one, part, own, run, store, split, progress) for split, part in parts.items()},
            )
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
        with process_group_if_known(choose_device(run.device)):  # the first process lists the files of a folder
            parts = dict(open_parts(request, run, request.data, in_memory))
            test = None if request.test_data is None else open_parts(request, run, request.test_data, in_memory)
        if test is not None:
            parts = {**parts, **({"test": test["all"]} if set(test) == {"all"} else test)}
    if shown := [part.name for part in parts.values() if views_of(part.images).views > 1]:
        raise UsageError(
            f"average= of {shown[0]} has no effect on features, which are one row per video", "Leave it out."
        )
    for note in dict.fromkeys(note for part in parts.values() for note in part.notes):
        log.info(note)
    return parts


def _first_part(parts: Mapping[str, Source]) -> Source:
    """Return train, or the only part where the data are not split."""
    return parts["train"] if "train" in parts else next(iter(parts.values()))


def extract_part(
    backbone: Backbone,
    source: Source,
    layers: Sequence[Layer],
    run: RunSettings,
    store: Path,
    split: str,
    progress: Progress | None,
    *,
    level: int = logging.INFO,
) -> Extraction:
    """Extract the features of one part of the data, and log the counts of images at `level`."""
    title = f"{backbone.title} on {source.name}"
    extraction = extract(
        backbone,
        source.every_image(),
        layers,
        extract_settings(run),
        root=store,
        split=split,
        progress=stage_progress(progress, title),
    )
    noun = f"{noun_of(source)}s"
    if extraction.decoded:
        rate = extraction.decoded / max(extraction.seconds, 1e-9)
        log.log(level, f"{title}: {extraction.decoded} {noun} in {extraction.seconds:.1f} s ({rate:.0f} {noun}/s)")
    else:
        log.info("features found in the store are read from there (-v names them)")
        log.debug(f"{title}: features found in the store, no image decoded")
    for conversion, count in sorted(extraction.conversions.items()):
        # A network of one channel takes the luminance, by which grey images are as they were.
        unchanged = conversion == GREY_TO_RGB and backbone.preprocessing.channels == 1
        log.log(logging.DEBUG if unchanged else level, f"{source.name}: {count} {noun}: {conversion}")
    if extraction.unreadable:
        warning = left_out_warning(source.every_image(), [row["path"] for row in extraction.unreadable])
        log.warning(warning, extra={"once": True})  # pixels and the untrained network meet the same images
    return extraction


def encode_together(
    wanted: Sequence[tuple[Backbone, tuple[Layer, ...]]],
    data: TrainTest,
    run: RunSettings,
    store: Path,
    progress: Progress | None,
) -> None:
    """Store the features of several backbones in one pass over the images, in one process, where they fit.

    After an error everything is encoded later, one backbone after the other: it then belongs to one of them.
    """
    wanted = [(backbone, layers) for backbone, layers in wanted if not backbone.process_key]
    if len(wanted) < 2 or this_process().world > 1:
        return
    splits = [("all", data.whole)] if data.whole is not None else [("train", data.train), ("test", data.test)]
    splits = splits[1:] if data.train is data.test and data.whole is None else splits
    try:
        for split, source in splits:
            title = f"{len(wanted)} networks on {source.name}"
            shown, settings = stage_progress(progress, title), extract_settings(run)
            saved = extract_together(wanted, source, settings, root=store, split=split, progress=shown)
            if saved:
                log.debug(f"{title}: encoded together, {saved} passes over the images saved")
    except (SslbenchError, MemoryError, RuntimeError) as error:
        log.info(f"each of the backbones is encoded alone, since together they failed: {error}")


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
    """Return features of train and test; when both were cut from one source, that source is encoded and then cut."""
    if run.on_the_fly:
        features: list[dict[str, Features]] = []
        for part in (data.train, data.test):
            grids: dict[str, Features] = {}
            for layer in layers:
                report = stage_progress(progress, f"{backbone.title} on {part.name}: {layer.text}")
                grids[layer.text] = streamed(backbone, part, layer, extract_settings(run), report)
            features.append(grids)
        return Encoded(features[0], features[1], (), 0.0, len(data.train) + len(data.test))
    # `sslbench extract` and evaluations with other seeds or test fractions share the entry of the whole in the store.
    whole = data.whole
    parts = [("all", whole)] if whole is not None else [("train", data.train), ("test", data.test)]
    parts = parts[1:] if data.train is data.test and whole is None else parts  # one part stands for both
    level = logging.INFO if work else logging.DEBUG  # floors are encoded beside the weights
    with measured(choose_device(run.device)) as meter:
        extractions = [
            extract_part(backbone, part, layers, run, store, split, progress, level=level) for split, part in parts
        ]
    if this_process().rank != 0:
        return Encoded({}, {}, (), 0.0, 0)
    encoded = [
        {layer: side_by_side(features, part) for layer, features in extraction.features.items()}
        for extraction, (_, part) in zip(extractions, parts, strict=True)
    ]
    both = [
        {layer: rows_of(features, part) for layer, features in found.items()}
        for found, part in zip(encoded * 2 if len(encoded) == 1 else encoded, (data.train, data.test), strict=True)
    ]
    unreadable = tuple(ExcludedImage(**row) for extraction in extractions for row in extraction.unreadable)
    seconds, decoded = sum(e.seconds for e in extractions), sum(e.decoded for e in extractions)
    costs = encoding_costs(backbone, decoded=decoded, seconds=seconds, stage=meter.stage, work=work)
    uncut = {} if whole is None else {layer: rows_of(found, whole) for layer, found in encoded[0].items()}
    return Encoded(both[0], both[1], unreadable, seconds, decoded, costs, uncut)


def stored_test_features(prepared: Prepared, store: Path) -> list[Features]:
    """Return the features of the test part by each layer, from the store in which `evaluate` has left them."""
    split, part = ("test", prepared.data.test) if prepared.data.whole is None else ("all", prepared.data.whole)
    settings = extract_settings(prepared.run)
    images = part.every_image()
    found = extract(prepared.backbone, images, prepared.layers, settings, root=store, split=split)
    if this_process().rank != 0:
        return []
    features = [side_by_side(found.features[layer.text], part) for layer in prepared.layers]
    return [rows_of(each, prepared.data.test) for each in features]


def rows_of(features: Features, part: Source) -> Features:
    """Return the rows of the readable samples of `part`, with the labels of `part` (classes matched by name)."""
    stored = np.array(features.ids)
    ids = np.array(part.ids)
    position = np.searchsorted(stored, ids)
    # For an id behind all others searchsorted returns the length, which is no index.
    present = (position < len(stored)) & (stored[np.minimum(position, len(stored) - 1)] == ids)
    labelled = part.select(np.flatnonzero(present))
    rows = position[present]
    x = features.x if len(rows) == len(stored) else features.x[rows]
    return dataclasses.replace(
        features, x=x, target=labelled.target, ids=labelled.ids, groups=source_groups(labelled), rank=labelled.rank
    )
