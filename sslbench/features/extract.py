"""Extraction of features: each image is decoded and encoded once for all layers, each row written once.

`extract` is the entry point; `ExtractionJob` encodes the rows of one process. Any number of processes may run the same
extraction (torchrun, srun), and a killed run continues.
"""

import collections
import contextlib
import dataclasses
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.backbones.onnx_files import quantiser
from sslbench.data.decode.handlers import handlers_of, versioned_name
from sslbench.data.groups import source_groups
from sslbench.data.source import Source
from sslbench.distributed import this_process
from sslbench.errors import BackboneError, DataError, told_on_interrupt
from sslbench.features import store
from sslbench.features.array import Features
from sslbench.features.counts import take_counts
from sslbench.features.job import ExtractionJob
from sslbench.features.partial import remove
from sslbench.features.settings import ExtractSettings
from sslbench.features.skipped import unreadable_error
from sslbench.identity import FeatureKey
from sslbench.runtime.progress import StageProgress

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Extraction:
    """Features of one source, with counts of the extraction.

    Attributes:
        features: layer -> features, without the rows of unreadable images. Empty on all processes but the first.
        entry: entry of the store.
        decoded: number of images that were decoded (0: everything was stored); on all processes but the first, by this
            process.
        seconds: wall time of the extraction, 0.0 when nothing was decoded.
        unreadable: id, path and reason of the samples left out.
        conversions: number of decoded images by conversion ('grey to RGB': 12), of the same processes.
        source: the images.
    """

    features: dict[str, Features]
    entry: store.StoreEntry
    decoded: int
    seconds: float
    unreadable: list[dict[str, str]]
    conversions: dict[str, int]
    source: Source


def store_key(backbone: Backbone, source: Source, settings: ExtractSettings) -> FeatureKey:
    """Return the store's key of a backbone's features of a source."""
    calibration = backbone.calibration_sha256
    rounded = {"int8": f"{quantiser()}, ranges {calibration[:16]}"} if calibration else {}
    return FeatureKey(
        weights=backbone.weights_sha256,
        backbone={**backbone.identity, "name": backbone.name, **rounded},
        images=source.images_fingerprint(),
        preprocessing=_preprocessing_key(backbone, source),
        precision=settings.precision,
        dtype=settings.dtype,
    )


def _preprocessing_key(backbone: Backbone, source: Source) -> dict[str, object]:
    own = [versioned_name(handler) for handler in handlers_of(source.images)]
    return {**backbone.preprocessing.values(), **({"the source decodes its images itself": own} if own else {})}


def check_shared(backbone: Backbone) -> None:
    """Raise if several processes run a backbone without an identity: they could not share their rows.

    Raises:
        BackboneError: there are several processes and no identity.
    """
    if this_process().world > 1 and not backbone.known:
        raise BackboneError(
            f"{backbone.name} has no identity, so processes cannot share its features", "Run one process."
        )


def extract(
    backbone: Backbone,
    source: Source,
    layers: Sequence[Layer],
    settings: ExtractSettings,
    *,
    root: Path,
    split: str,
    progress: StageProgress | None = None,
) -> Extraction:
    """Return the features of all samples of a source, extracting only those that are not stored.

    Args:
        backbone: the backbone, which is not changed.
        source: N samples.
        layers: layers to extract in one pass; stored ones are read.
        settings: settings of the extraction.
        root: folder of the feature store.
        split: name of the split for index.csv: 'train', 'test', ...
        progress: called with (images done, total).

    Raises:
        DataError: there are unreadable images and `on_error` is 'stop'; the message lists them.
        BackboneError: see `check_shared`.
        UsageError: the images have other channels than the backbone takes, or a decoder is unknown.
        StoreError: the store is damaged, or another process of this run stopped.
    """
    check_shared(backbone)
    key = store_key(backbone, source, settings)
    entry = store.open_entry(root, key, source, backbone.name)
    decoded, seconds, conversions = 0, 0.0, collections.Counter[str]()
    process = this_process()
    if not all(entry.has(layer.text) for layer in layers):
        lock = store.locked(entry) if process.rank == 0 else contextlib.nullcontext()
        with lock, told_on_interrupt(KEPT):
            missing = [layer for layer in layers if not entry.has(layer.text)]
            if missing or process.rank != 0:
                if process.rank == 0:
                    _log_reason(root, entry, key, source, missing)
                started = time.perf_counter()
                job = ExtractionJob(backbone, source, missing, settings, entry, process, digests_of(source, key))
                with job.presence.announced():
                    decoded, conversions = job.run(progress)
                    if process.rank == 0:
                        job.finish(key, split)
                        others, theirs = take_counts(entry.folder)
                        decoded, conversions = decoded + others, conversions + theirs
                seconds = time.perf_counter() - started
    if process.rank != 0:
        return Extraction({}, entry, decoded, seconds, [], dict(conversions), source)
    for layer in layers:
        remove(entry.layer_file(layer.text))  # left by a run killed right after publishing
    store.update_index(entry, source, split)
    unreadable = entry.unreadable()
    if unreadable and settings.on_error == "stop":
        raise unreadable_error(source, [(r["path"], r["reason"]) for r in unreadable])
    features = {layer.text: _as_features(entry, layer, source, unreadable) for layer in layers}
    return Extraction(features, entry, decoded, seconds, unreadable, dict(conversions), source)


KEPT = "the features extracted so far are kept; the same command continues"
"""Words for an interrupted extraction."""


def digests_of(source: Source, key: FeatureKey) -> npt.NDArray[np.uint8]:
    """Return the digests of the images, (N, 16), after a check that they match the key.

    Raises:
        DataError: an image has changed since the key was computed.
    """
    digests = source.images.digests()
    if source.fingerprint_of(digests) != key.images:
        raise DataError(
            f"images of {source.name} changed while they were hashed",
            "Run the same command again when the images no longer change.",
        )
    return digests


def _log_reason(root: Path, entry: store.StoreEntry, key: FeatureKey, source: Source, missing: Sequence[Layer]) -> None:
    if entry.layers():
        stored = ", ".join(entry.layers())
        log.info(
            f"{source.name}: the layers changed: {', '.join(m.text for m in missing)} not stored yet ({stored} is)"
        )
    elif list(entry.folder.glob("*.partial")):
        log.info(f"{source.name}: continuing an interrupted extraction")
    elif changes := store.what_changed(root, key, source):
        level = logging.DEBUG if "weights" in changes else logging.INFO  # several networks are usual
        log.log(level, f"{source.name}: no stored features fit: {'; '.join(changes.values())}")


def _as_features(entry: store.StoreEntry, layer: Layer, source: Source, unreadable: list[dict[str, str]]) -> Features:
    left_out = {row["id"] for row in unreadable}
    readable = source
    if left_out:
        readable = source.select([i for i, sample_id in enumerate(source.ids) if sample_id not in left_out])
    x = entry.read(layer.text)
    return Features(
        x,
        readable.target,
        readable.ids,
        groups=source_groups(readable),
        regions=layer.regions,
        grid=layer.grid,
        rank=readable.rank,
    )
