"""Extraction of the features of several backbones from one pass over the images."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.data.source import Source
from sslbench.distributed import this_process
from sslbench.errors import told_on_interrupt
from sslbench.features import store
from sslbench.features.extract import KEPT, digests_of, store_key
from sslbench.features.job import ExtractionJob, pass_over
from sslbench.features.settings import ExtractSettings
from sslbench.identity import FeatureKey
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.progress import StageProgress

TOGETHER_BYTES = 2 * 10**9
"""Parameters of the backbones that are in memory together."""


def parameter_bytes(backbone: Backbone) -> int:
    """Return the memory of a backbone's parameters and buffers."""
    module = backbone.module
    return sum(tensor.numel() * tensor.element_size() for tensor in [*module.parameters(), *module.buffers()])


def decoded_alike(preprocessing: Preprocessing) -> Preprocessing:
    """Return the part of a preprocessing that decoding depends on: mean, std and scales are applied later."""
    channels = preprocessing.channels
    return dataclasses.replace(preprocessing, mean=(0.0,) * channels, std=(1.0,) * channels, scales=(1.0,), origin="")


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

    Args:
        wanted: backbones with an identity, and the layers of each.
        source: N samples.
        settings: settings of the extraction.
        root: folder of the feature store.
        split: name of the split for index.csv.
        progress: called with (images done, total) of each pass.

    Returns:
        The number of passes over the images that were saved.

    Raises:
        SslbenchError: as for `extract`; what is complete by then is stored.
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
                job = ExtractionJob(backbone, source, missing, settings, entry, this_process(), digests)
                if job.open():
                    alike = decoded_alike(backbone.preprocessing), job.pending.tobytes()
                    groups.setdefault(alike, []).append((key, job))
        for group in groups.values():
            pass_over([job for _, job in group], progress)
            for key, job in group:
                job.finish(key, split)
            passes, jobs_done = passes + 1, jobs_done + len(group)
    return jobs_done - passes
