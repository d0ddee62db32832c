"""From images to features: each image decoded and encoded once for all layers, each row written once.

Any number of processes may run the same extraction (torchrun, srun), and a run that was killed continues
(features/job.py).
"""

import collections
import dataclasses
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.data._group_split import source_groups
from sslbench.data.decoder import handlers_of, name_of
from sslbench.data.source import Source
from sslbench.distributed import this_process
from sslbench.features import store
from sslbench.features.array import Features
from sslbench.features.job import ExtractSettings, Job, Progress
from sslbench.features.skipped import unreadable_error

log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class Extraction:
    """Features of one source, and what it took to get them.

    Attributes:
        features: layer -> features; without the rows of unreadable images. Empty on processes other than the first.
        entry: where they are stored.
        decoded: images that this process decoded now (0: everything was in the store).
        seconds: wall time of the extraction, 0.0 when nothing was decoded.
        unreadable: samples that were left out: id, path, reason.
        conversions: how many images were converted in which way ('grey to RGB': 12), of those decoded now.
    """

    features: dict[str, Features]
    entry: store.Entry
    decoded: int
    seconds: float
    unreadable: list[dict[str, str]]
    conversions: dict[str, int]


def store_key(backbone: Backbone, source: Source, settings: ExtractSettings) -> store.Key:
    """What the features of this backbone on this source depend on."""
    return store.Key(
        weights=backbone.weights_sha256,
        backbone={"name": backbone.name, **backbone.identity},
        images=source.images_fingerprint(),
        preprocessing=_what_decides_pixels(backbone, source),
        precision=settings.precision,
        dtype=settings.dtype,
    )


def _what_decides_pixels(backbone: Backbone, source: Source) -> dict[str, object]:
    own = [name_of(handler) for handler in handlers_of(source.images)]
    return {**backbone.preprocessing.values(), **({"source decodes": own} if own else {})}


def extract(
    backbone: Backbone,
    source: Source,
    layers: Sequence[Layer],
    settings: ExtractSettings,
    *,
    root: Path,
    split: str,
    progress: Progress | None = None,
) -> Extraction:
    """Features of all samples of a source, from the store where they are there already.

    Args:
        backbone: evaluated as it is; never changed.
        source: N samples.
        layers: taken in one pass; those that are stored already are not computed again.
        settings: see there.
        root: folder of the feature store.
        split: 'train', 'test' or what the source is called, for index.csv.
        progress: called with (images done, images in all) now and then.

    Raises:
        DataError: unreadable images and `on_error` is 'stop'; the message lists them.
        UsageError: the images have other channels than the backbone takes, or a decoder's name leads nowhere.
        StoreError: the store is damaged, or another process of this run stopped writing.
    """
    key = store_key(backbone, source, settings)
    entry = store.open_entry(root, key, source, backbone.name)
    decoded, seconds, conversions = 0, 0.0, collections.Counter[str]()
    process = this_process()
    if not all(entry.has(layer.text) for layer in layers):
        if process.rank == 0:
            with store.locked(entry):
                missing = [layer for layer in layers if not entry.has(layer.text)]
                if missing:
                    _say_why(root, entry, key, source, missing)
                    job = Job(backbone, source, missing, settings, entry, process)
                    started = time.perf_counter()
                    with job.presence.announced():
                        decoded, conversions = job.run(progress)
                        job.finish(key, split)
                    seconds = time.perf_counter() - started
        else:
            missing = [layer for layer in layers if not entry.has(layer.text)]
            started = time.perf_counter()
            job = Job(backbone, source, missing, settings, entry, process)
            with job.presence.announced():
                decoded, conversions = job.run(progress)
            seconds = time.perf_counter() - started
    if process.rank != 0:
        return Extraction({}, entry, decoded, seconds, [], dict(conversions))
    store.add_attributes(entry, source)
    unreadable = entry.unreadable()
    if unreadable and settings.on_error == "stop":
        raise unreadable_error(source, [(r["id"], r["path"], r["reason"]) for r in unreadable])
    features = {layer.text: _as_features(entry, layer, source, unreadable) for layer in layers}
    return Extraction(features, entry, decoded, seconds, unreadable, dict(conversions))


def _say_why(root: Path, entry: store.Entry, key: store.Key, source: Source, missing: Sequence[Layer]) -> None:
    if entry.layers():
        stored = ", ".join(entry.layers())
        log.info(
            f"{source.name}: the layers changed: {', '.join(m.text for m in missing)} not stored yet ({stored} is)"
        )
    elif list(entry.folder.glob("*.partial")):
        log.info(f"{source.name}: continuing an extraction that was interrupted")
    elif changed := store.what_changed(root, key, source):
        log.info(f"{source.name}: features are extracted again: {changed}")


def _as_features(entry: store.Entry, layer: Layer, source: Source, unreadable: list[dict[str, str]]) -> Features:
    left_out = {row["id"] for row in unreadable}
    kept = source
    if left_out:
        kept = source.select([i for i, sample_id in enumerate(source.ids) if sample_id not in left_out])
    return Features(entry.read(layer.text), kept.labels, kept.ids, groups=source_groups(kept))
