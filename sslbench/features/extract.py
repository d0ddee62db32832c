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
from sslbench.backbones.export import quantiser
from sslbench.backbones.layers import Layer
from sslbench.data.clips import sampling_of, views_of
from sslbench.data.decode.handlers import handlers_of, versioned_name
from sslbench.data.groups import inseparable, source_groups
from sslbench.data.maps.types import size_and_turn
from sslbench.data.source import Source
from sslbench.distributed import this_process
from sslbench.errors import BackboneError, DataError, UsageError, told_on_interrupt
from sslbench.features import store
from sslbench.features.array import ExtractSettings, Features
from sslbench.features.job import ExtractionJob, pass_over
from sslbench.features.partial import remove
from sslbench.features.presence import Presence, announced, take_counts
from sslbench.features.store import unreadable_error
from sslbench.identity import FeatureKey
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.progress import StageProgress
from sslbench.targets.target import SeveralImages

log = logging.getLogger("sslbench")


# Words for an interrupted extraction.
KEPT = "the features extracted so far are kept; the same command continues"
# Parameters of the backbones that are in memory together.
TOGETHER_BYTES = 2 * 10**9


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

    def image_size(self, index: int) -> tuple[int, int] | None:
        """Return height and width of an image of the source, from the head of its file; None if it cannot be read."""
        return size_and_turn(self.source.images, index)[0]


def store_key(backbone: Backbone, source: Source, settings: ExtractSettings) -> FeatureKey:
    """Return the store's key of a backbone's features of a source."""
    calibration = backbone.calibration_sha256
    further = {"int8": f"{quantiser()}, ranges {calibration[:16]}"} if calibration else {}
    further |= {"process": backbone.process_key} if backbone.process_key else {}
    preprocessing = backbone.preprocessing.values()
    if own := [versioned_name(handler) for handler in handlers_of(source.images)]:
        preprocessing |= {"the source decodes its images itself": own}
    return FeatureKey(
        weights=backbone.weights_sha256,
        backbone={**backbone.identity, "name": backbone.name, **further},
        images=source.images_fingerprint(),
        preprocessing=preprocessing,
        precision=settings.precision,
        dtype=settings.dtype,
    )


def check_shared(backbone: Backbone) -> None:
    """Refuse several processes for a backbone whose features change with every call: they cannot share rows."""
    if this_process().world > 1 and backbone.process_key and backbone.process_key != backbone.in_process:
        raise BackboneError(
            f"{backbone.name} has no identity, so processes cannot share its features", "Run one process."
        )


def check_clips(backbone: Backbone, source: Source) -> None:
    """Refuse videos whose clips have another length than the backbone takes."""
    takes = backbone.kind.frames
    for options in sampling_of(source.images):
        if takes > 1 and options.total != takes * options.passes:
            raise UsageError(
                f"{backbone.name} takes clips of {takes} frames, and those of {source.name} have "
                f"{options.total // options.passes}",
                f"--data 'PLACE?frames={takes}'",
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

    backbone: the backbone, which is not changed.
    """
    check_shared(backbone)
    check_clips(backbone, source)
    key = store_key(backbone, source, settings)
    entry = store.open_entry(root, key, source, backbone.name)
    decoded, seconds, conversions = 0, 0.0, collections.Counter[str]()
    process = this_process()
    if not all(entry.has(layer.text) for layer in layers):
        # The first process holds the lock for all processes of the run.
        lock = store.locked(entry) if process.rank == 0 else contextlib.nullcontext()
        with lock, told_on_interrupt(KEPT):
            # Looked up again: another run may have finished while this one waited for the lock.
            missing = [layer for layer in layers if not entry.has(layer.text)]
            if missing or process.rank != 0:
                if process.rank == 0:
                    _log_reason(root, entry, key, source, missing)
                started = time.perf_counter()
                with announced(root, of_command=False) as presence:
                    job = ExtractionJob(backbone, source, missing, settings, entry, presence, digests_of(source, key))
                    with job.failures.reported():
                        if job.open():
                            pass_over([job], progress)
                        decoded, conversions = job.decoded, job.conversions
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
    # An earlier run with on_error=skip left them out.
    if unreadable and settings.on_error == "stop":
        raise unreadable_error(source, [(r["path"], r["reason"]) for r in unreadable])
    features = {layer.text: _as_features(entry, layer, source, unreadable) for layer in layers}
    return Extraction(features, entry, decoded, seconds, unreadable, dict(conversions), source)


def digests_of(source: Source, key: FeatureKey) -> npt.NDArray[np.uint8]:
    """Return the digests of the images, (N, 16), after a check that they match the key."""
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
        views=views_of(source.images).views,
        rank=readable.rank,
    )


def parameter_bytes(backbone: Backbone) -> int:
    """Return the memory of a backbone's parameters and buffers."""
    module = backbone.module
    return sum(tensor.numel() * tensor.element_size() for tensor in [*module.parameters(), *module.buffers()])


def extract_together(
    wanted: Sequence[tuple[Backbone, Sequence[Layer]]],
    source: Source,
    settings: ExtractSettings,
    *,
    root: Path,
    split: str,
    progress: StageProgress | None = None,
) -> int:
    """Extract the features of several backbones and store each as `extract` does; `extract` then finds them.

    Backbones whose images are decoded alike share one pass over them. The features are bit for bit those of single
    runs. Works in one process.
    """
    entries: dict[Path, tuple[FeatureKey, store.StoreEntry, Backbone, list[Layer]]] = {}
    for backbone, layers in wanted:
        key = store_key(backbone, source, settings)
        entry = store.open_entry(root, key, source, backbone.name)
        own = entries.setdefault(entry.folder, (key, entry, backbone, []))[3]
        own += [layer for layer in layers if layer not in own]
    passes = jobs_done = 0
    with contextlib.ExitStack() as locks, told_on_interrupt(KEPT):
        groups: dict[tuple[Preprocessing, bytes], list[tuple[FeatureKey, ExtractionJob]]] = {}
        for folder in sorted(entries):  # in one order, so that two runs do not wait for each other
            key, entry, backbone, layers = entries[folder]
            if all(entry.has(layer.text) for layer in layers):
                continue
            locks.enter_context(store.locked(entry))
            if missing := [layer for layer in layers if not entry.has(layer.text)]:
                digests = digests_of(source, key)
                presence = Presence(root, this_process())
                job = ExtractionJob(backbone, source, missing, settings, entry, presence, digests)
                if job.open():
                    # Mean, std and scales are applied after decoding.
                    channels = backbone.preprocessing.channels
                    mean, std = (0.0,) * channels, (1.0,) * channels
                    decoding = dataclasses.replace(backbone.preprocessing, mean=mean, std=std, scales=(1.0,), origin="")
                    # A continued job has fewer rows left than a new one, and cannot share its pass.
                    groups.setdefault((decoding, job.pending.tobytes()), []).append((key, job))
        for group in groups.values():
            pass_over([job for _, job in group], progress)
            for key, job in group:
                job.finish(key, split)
            passes, jobs_done = passes + 1, jobs_done + len(group)
    return jobs_done - passes


def side_by_side(features: Features, source: Source) -> Features:
    """Return the features of the samples of a source, (N, n * D), from those of its images (M, D).

    Samples of which an image is missing, since it could not be read, are left out.
    """
    target = source.target
    if not isinstance(target, SeveralImages):
        return features
    place = {name: row for row, name in enumerate(features.ids)}
    every = [place.get(name, -1) for name in source.every_image().ids]
    rows = np.array([[every[row] for row in target.rows(i)] for i in range(len(source))], dtype=np.int64)
    kept = np.flatnonzero((rows >= 0).all(axis=1))
    samples = source.select(kept)
    x = features.x[rows[kept]].reshape(len(kept), -1)
    groups = inseparable(samples)
    regions = rows.shape[1] * features.regions
    return Features(x, samples.target, samples.ids, groups=groups, regions=regions, rank=samples.rank)
