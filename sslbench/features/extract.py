"""From images to features: each image decoded and encoded once for all layers, each row written once.

Any number of processes may run the same extraction (torchrun, srun), and a run that was killed continues
(features/job.py).
"""

import collections
import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.data._group_split import source_groups
from sslbench.data.decoder import handlers_of, versioned_name
from sslbench.data.source import Source
from sslbench.distributed import this_process
from sslbench.errors import BackboneError, DataError
from sslbench.features import store
from sslbench.features.array import Features
from sslbench.features.job import ExtractSettings, Job, Progress
from sslbench.features.partial import remove
from sslbench.features.skipped import unreadable_error
from sslbench.identity import FeatureKey

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


def store_key(backbone: Backbone, source: Source, settings: ExtractSettings) -> FeatureKey:
    """Return the key of this backbone's features of this source in the store."""
    return FeatureKey(
        weights=backbone.weights_sha256,
        backbone={**backbone.identity, "name": backbone.name},
        images=source.images_fingerprint(),
        preprocessing=_what_decides_pixels(backbone, source),
        precision=settings.precision,
        dtype=settings.dtype,
    )


def _what_decides_pixels(backbone: Backbone, source: Source) -> dict[str, object]:
    own = [versioned_name(handler) for handler in handlers_of(source.images)]
    return {**backbone.preprocessing.values(), **({"source decodes": own} if own else {})}


def check_shared(backbone: Backbone) -> None:
    """Refuse several processes for a backbone without an identity: they would not find each other's work.

    Raises:
        BackboneError: there are several.
    """
    if this_process().world > 1 and not backbone.known:
        raise BackboneError(
            f"what {backbone.name} computes has no identity, so processes cannot share the work", "Run one process."
        )


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
        BackboneError: see `check_shared`.
        UsageError: the images have other channels than the backbone takes, or a decoder's name leads nowhere.
        StoreError: the store is damaged, or another process of this run stopped writing.
    """
    check_shared(backbone)
    key = store_key(backbone, source, settings)
    entry = store.open_entry(root, key, source, backbone.name)
    decoded, seconds, conversions = 0, 0.0, collections.Counter[str]()
    process = this_process()
    if not all(entry.has(layer.text) for layer in layers):
        lock = store.locked(entry) if process.rank == 0 else contextlib.nullcontext()
        with lock, _kept_on_interrupt():
            missing = [layer for layer in layers if not entry.has(layer.text)]
            if missing or process.rank != 0:
                if process.rank == 0:
                    _say_why(root, entry, key, source, missing)
                started = time.perf_counter()
                job = Job(backbone, source, missing, settings, entry, process, _digests(source, key))
                with job.presence.announced():
                    decoded, conversions = job.run(progress)
                    if process.rank == 0:
                        job.finish(key, split)
                seconds = time.perf_counter() - started
    if process.rank != 0:
        return Extraction({}, entry, decoded, seconds, [], dict(conversions))
    for layer in layers:
        remove(entry.layer_file(layer.text))  # what a run has left that was killed right after it had published
    store.update_index(entry, source, split)
    unreadable = entry.unreadable()
    if unreadable and settings.on_error == "stop":
        raise unreadable_error(source, [(r["path"], r["reason"]) for r in unreadable])
    features = {layer.text: _as_features(entry, layer, source, unreadable) for layer in layers}
    return Extraction(features, entry, decoded, seconds, unreadable, dict(conversions))


@contextlib.contextmanager
def _kept_on_interrupt() -> Iterator[None]:
    """Add to Ctrl-C that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("what was extracted is kept, and the same command continues") from error


def _digests(source: Source, key: FeatureKey) -> npt.NDArray[np.uint8]:
    """Return the digests of the images, (N, 16): those that the key was made from.

    Raises:
        DataError: an image has changed since.
    """
    digests = source.images.digests()
    if source.fingerprint_of(digests) != key.images:
        raise DataError(
            f"images of {source.name} changed while they were hashed", "Run the same command again when that is over."
        )
    return digests


def _say_why(root: Path, entry: store.Entry, key: FeatureKey, source: Source, missing: Sequence[Layer]) -> None:
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
