"""One process's share of an extraction: the rows of its images, encoded and written."""

import collections
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.backbones.speed import CPU_CHUNK, prepare
from sslbench.backbones.stems import with_channels
from sslbench.data.clips import frames_of, views_of
from sslbench.data.decode.handlers import Reading
from sslbench.data.decode.picture import Wanted
from sslbench.data.loading import loader
from sslbench.data.loading.loader import PictureBatch
from sslbench.data.sharded import by_shard, rows_of
from sslbench.data.source import Source
from sslbench.errors import BackboneError, DataError, StoreError, UsageError
from sslbench.features import store, streams
from sslbench.features.array import ExtractSettings
from sslbench.features.partial import PENDING, UNREADABLE, PartialLayer, create, opened, remove, rows_file
from sslbench.features.presence import ABSENT_SECONDS, Failures, Presence, write_counts
from sslbench.features.store import unread_error, unreadable_error
from sslbench.identity import FeatureKey
from sslbench.runtime.progress import StageProgress

log = logging.getLogger("sslbench")
# Number of hashed but unreadable images after which the disk or network is considered gone.
MANY_UNREAD = 100
# Bytes of features from which on their size is told before they are extracted.
_MUCH = 10**9
FLUSH_SECONDS = 5.0  # maximum loss of work when a run is killed
STALL_SECONDS = 600.0  # maximum wait for other processes without any progress


def check_first(batch: PictureBatch, backbone: Backbone) -> None:
    """Raise if no image of the first batch is readable and some have other channels than the backbone takes.

    The extraction counts single images with other channels as unreadable.
    """
    if len(batch.indices) or batch.other_channels is None:
        return
    path, channels = batch.other_channels
    takes = backbone.preprocessing.channels
    remedy = "convert the channels by your own --decoder my_module.my_function."
    if channels > takes or (channels, takes) == (2, 3):  # one alone is grey
        some = "|".join(str(number + 1) for number in range(takes if channels > takes else 1))
        remedy = f"take some of them by --data 'PLACE?channels={some}', or {remedy}"
    if ":" not in backbone.name.removeprefix("timm:"):
        network = with_channels(backbone.name, channels)
        remedy = f"--backbone {network} takes them (--stem maps weights for other channels), or {remedy}"
    raise UsageError(
        f"{path} has {channels} channel{'' if channels == 1 else 's'}, and {backbone.name} takes {takes}",
        remedy[0].upper() + remedy[1:] if not remedy.startswith("-") else remedy,
    )


class ExtractionJob:
    """Extraction of the rows of one process, for the layers that are not stored yet: `open`, `pass_over`, `finish`."""

    def __init__(
        self,
        backbone: Backbone,
        source: Source,
        layers: Sequence[Layer],
        settings: ExtractSettings,
        entry: store.StoreEntry,
        presence: Presence,
        digests: npt.NDArray[np.uint8],
    ) -> None:
        self.backbone, self.source, self.layers = backbone, source, layers
        self.settings, self.entry, self.process = settings, entry, presence.process
        self.digests, self.presence = digests, presence
        self.failures = Failures(entry.folder, presence.process)
        self.size = backbone.preprocessing.output_size
        self.encoder = prepare(backbone, layers, device=settings.device, precision=settings.precision)
        self.decoded, self.conversions = 0, collections.Counter[str]()

    def open(self) -> bool:
        """Open the unfinished files, which the first process creates, and find the rows to encode.

        False if the first process has finished already, because only its own rows were left.
        """

        def complete() -> bool:
            return all(self.entry.has(layer.text) for layer in self.layers)

        if self.process.rank == 0:
            self._create_files()
        else:
            self._wait(lambda: all(self._unfinished()) or complete(), lambda: 0, lambda: [0])
        self.partials = [] if complete() else [partial for partial in self._unfinished() if partial]
        if not self.partials or len(self.partials) < len(self.layers):
            return False
        rows = self._rows(self.process.rank)
        try:
            pending = self._pending(rows)
        except (FileNotFoundError, StoreError):
            if self.process.rank == 0 or all(self._unfinished()):
                raise
            # The first process publishes while this one opens the files: no rows were left but its own.
            self._wait(complete, lambda: 0, lambda: [0])
            return False
        self.pending, self.rows = by_shard(self.source.images, pending), len(rows)
        self._frozen = self.encoder.state_sha256()
        return True

    def _pending(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of the rows that are not done in every layer; damaged ones are not."""
        for partial in self.partials:
            if damaged := partial.verify(rows):
                log.warning(
                    f"{partial.complete.name}: {damaged:,} rows of the previous run are damaged and are computed again"
                )
        return rows[np.any([partial.states()[rows] == PENDING for partial in self.partials], axis=0)]

    def _rows(self, rank: int) -> npt.NDArray[np.int64]:
        return rows_of(self.source.images, rank, self.process.world)

    def _unfinished(self) -> list[PartialLayer | None]:
        """Open the files of each layer; None for a layer without valid files."""
        alone, dtype = self.process.world == 1, np.dtype(self.settings.dtype)
        files = [self.entry.layer_file(layer.text) for layer in self.layers]
        return [opened(file, len(self.source), dtype, alone=alone) for file in files]

    def _create_files(self) -> None:
        """Create files for the layers without valid ones, if the disk has room for them."""
        widths = {
            layer.text: 0 for layer, partial in zip(self.layers, self._unfinished(), strict=True) if partial is None
        }
        if not widths:
            return
        self.entry.folder.mkdir(parents=True, exist_ok=True)
        if self.size is not None:
            channels = Wanted.by(self.backbone.preprocessing).channels
            image = torch.zeros((1, channels, *self.size), dtype=torch.uint8)  # nothing is decoded for it
        else:
            first = next(
                loader.batches(self.source, np.arange(1), self.backbone.preprocessing, batch_size=1, workers=0)
            )
            image = first.images
            if not len(first.indices):
                raise DataError(
                    f"the first image of {self.source.name} cannot be read; its features would tell how many all have"
                )
        for layer, features in zip(self.layers, self.encoder.rows(image), strict=True):
            if layer.text in widths:
                widths[layer.text] = features.shape[1] * views_of(self.source.images).views
        dtype = np.dtype(self.settings.dtype)
        needed = len(self.source) * sum(widths.values()) * dtype.itemsize
        free = shutil.disk_usage(self.entry.folder).free
        size = f"{self.source.name}: its features take {needed:,} bytes in {self.entry.folder}"
        if needed > free:
            raise StoreError(
                f"{size}, where {free:,} are free",
                "Give --store on another disk, --feature-dtype float16, fewer --layers, a smaller --resize or --limit; "
                "segmentation-knn needs no store with --on-the-fly; linear-online and segmentation have none.",
            )
        if needed > _MUCH:
            log.info(size)
        for text, width in widths.items():
            file = self.entry.layer_file(text)
            if rows_file(file).exists():
                log.warning(f"{self.source.name}: the unfinished features of {text} are damaged and are computed again")
            create(file, (len(self.source), width), dtype)

    def batches(self) -> Iterator[PictureBatch]:
        """Yield the batches of the pending rows; raise if one has images that must not be encoded or left out."""
        batches = loader.batches(
            self.source,
            self.pending,
            self.backbone.preprocessing,
            # Videos are held by their frames.
            batch_size=max(1, self.settings.batch_size // frames_of(self.source.images)),
            workers=self.settings.workers,
            start_method=self.settings.start_method,
            mixed_sizes=self.size is None,
        )
        for number, batch in enumerate(batches):
            if number == 0:
                check_first(batch, self.backbone)
            # Images that are readable now and were not when they were hashed: the key lacks their content.
            unknown = batch.indices[~self.digests[batch.indices].any(axis=1)]
            if len(unknown):
                paths = [self.source.images.path(index) for index in unknown.tolist()]
                raise unread_error(self.source, [(path, "was unreadable when it was hashed") for path in paths])
            _, unreadable = self.left_out(batch)
            if unreadable and self.settings.on_error == "stop":
                log.warning(f"{self.source.name}: an image cannot be read; looking for all unreadable ones")
                listed = [*unreadable, *self._scan(self._rows(self.process.rank))]
                reasons = {index: (path, reason) for index, path, reason in listed}
                raise unreadable_error(self.source, [reasons[index] for index in sorted(reasons)])
            yield batch

    def left_out(self, batch: PictureBatch) -> tuple[list[loader.Unreadable], list[loader.Unreadable]]:
        """Return the images whose file could be read when it was hashed, and cannot now; and the unreadable ones."""
        unread = {index for index in batch.unread if self.digests[index].any()}
        return (
            [row for row in batch.unreadable if row[0] in unread],
            [row for row in batch.unreadable if row[0] not in unread],
        )

    def pieces(self, images: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return images (B, C, H, W), or the views of videos, in the pieces of single forward passes.

        Images of their own sizes are encoded in pieces of about as many pixels as a batch of 224 x 224.
        """
        if not len(images):
            return []
        most = self.settings.batch_size
        if self.size is None:
            most = max(1, most * 224 * 224 // (images.shape[2] * images.shape[3]))
        batches = torch.split(views_of(self.source.images).by_view(images), most)
        if self.settings.device.type != "cpu":
            return batches
        # The same pieces for any number of threads: the features must not depend on it.
        return [piece for batch in batches for piece in torch.split(batch, CPU_CHUNK)]

    def write(self, batch: PictureBatch, features: streams.Rows, unreadable: Sequence[loader.Unreadable]) -> None:
        """Write the features of a batch, and mark its unreadable images."""
        # A batch without a readable image has no features at all.
        for partial, views in zip(self.partials, features, strict=bool(features)):
            rows = views.reshape(len(batch.indices), -1)
            if rows.shape[1:] != partial.shape[1:]:
                height, width = batch.images.shape[2:]
                raise BackboneError(
                    f"{partial.complete.stem} gives {rows.shape[1]} features for images of {width} x {height} pixels "
                    f"({self.source.images.path(int(batch.indices[0]))}) and {partial.shape[1]} for the first image",
                    "Give a crop, or a pool whose length does not depend on the size: avg, max, gem(p), rmac, cls.",
                )
            partial.write(batch.indices, rows)
        if unreadable:
            for partial in self.partials:
                partial.skip(np.array([index for index, *_ in unreadable]))
        self.decoded += len(batch.indices) + len(unreadable)
        self.conversions.update(batch.conversions)

    def flush(self) -> None:
        """Mark the rows written so far as done; the first process then finds them counted."""
        # Before the rows are marked: the first process takes the counts as soon as all rows are.
        if self.process.rank > 0 and any(partial.is_marking_due for partial in self.partials):
            write_counts(self.entry.folder, self.process.rank, self.decoded, self.conversions)
        for partial in self.partials:
            partial.flush()

    def close(self) -> None:
        """Check that the backbone did not change, and write what is buffered."""
        if self.encoder.state_sha256() != self._frozen:
            # Rows already marked as done are wrong too, so the partial files must not be continued.
            for partial in self.partials:
                remove(partial.complete)
            raise changed_error(self.backbone)
        self.flush()

    def finish(self, key: FeatureKey, split: str) -> None:
        """Wait for the other processes' rows, then publish the layers."""
        partials = [partial for partial in self._unfinished() if partial]
        if len(partials) < len(self.layers):
            raise StoreError(
                f"unfinished features in {self.entry.folder} have disappeared", "Run the same command again."
            )

        def states() -> npt.NDArray[np.uint8]:
            return np.stack([partial.states() for partial in partials])

        self._wait(
            lambda: bool(states().all()),
            lambda: int(np.count_nonzero(states())),
            lambda: [rank for rank in range(self.process.world) if not states()[:, self._rows(rank)].all()],
        )
        # A disk or network file system may have lost rows that a process saw written.
        for partial in partials:
            if damaged := partial.verify(np.arange(len(self.source))):
                raise StoreError(
                    f"{damaged:,} rows of {partial.complete} are damaged",
                    "Check the disk, and run the same command again: it computes these rows again.",
                )
        bad = np.flatnonzero(partials[0].states() == UNREADABLE)
        unreadable = self._scan(bad)
        if readable := sorted(set(bad.tolist()) - {index for index, *_ in unreadable}):
            for partial in partials:
                partial.reset(np.array(readable))
            problem = f"{len(readable)} images of {self.source.name} that were unreadable are readable now"
            raise StoreError(problem, "Run the same command again once nothing writes to them.")
        skipped = [{"id": self.source.ids[i], "path": path, "reason": reason} for i, path, reason in unreadable]
        checksums = {partial.complete.name: partial.checksum(bad) for partial in partials}
        # Before the layers are there: a layer is compared with its description when it is read.
        store.write_description(self.entry, key, self.source, split, skipped, self.digests, checksums)
        for partial in partials:
            partial.publish(bad)

    def _scan(self, rows: npt.NDArray[np.int64]) -> tuple[loader.Unreadable, ...]:
        """Decode rows and return the unreadable ones."""
        return loader.survey(
            self.source,
            rows,
            self.settings.workers,
            preprocessing=self.backbone.preprocessing,
            reading=Reading(start_method=self.settings.start_method),
        ).unreadable

    def check_others(self) -> None:
        """Raise if another process of this run failed."""
        if self.presence.check():
            self.failures.check()

    def _wait(
        self, ready: Callable[[], bool], amount: Callable[[], int], waited_for: Callable[[], Sequence[int]]
    ) -> None:
        """Wait until `ready`; raise if `amount` does not change for STALL_SECONDS or a process is absent."""
        last, since = amount(), time.monotonic()
        while not ready():
            time.sleep(0.05)
            self.check_others()
            now = amount()
            if now != last:
                last, since = now, time.monotonic()
                continue
            if time.monotonic() - since > ABSENT_SECONDS:
                self.presence.refuse_absent(waited_for())
            if time.monotonic() - since > STALL_SECONDS:
                raise StoreError(
                    f"another process of this run no longer writes features into {self.entry.folder}",
                    "See that process's output; run the same command again to continue.",
                )


def changed_error(backbone: Backbone) -> BackboneError:
    """Return the error for a backbone whose state moved during an extraction."""
    return BackboneError(
        f"{backbone.name} changed while it was evaluated: parameters or BatchNorm statistics moved",
        "Its forward pass should not switch to training mode or modify weights.",
    )


def pass_over(jobs: Sequence[ExtractionJob], progress: StageProgress | None) -> None:
    """Encode the pending rows of several open jobs with one pass over the images."""
    first = jobs[0]
    unread: list[loader.Unreadable] = []
    last_flush = time.perf_counter()
    done = first.rows - len(first.pending)
    try:
        # Closed at once after an error, which ends the threads and the decoding processes.
        with contextlib.closing(
            streams.encoded(first.batches(), [job.encoder for job in jobs], first.pieces)
        ) as encoded:
            for batch, features in encoded:
                newly_unread, unreadable = first.left_out(batch)
                unread += newly_unread
                for job, rows in zip(jobs, features, strict=True):
                    job.write(batch, rows, unreadable)
                done += len(batch.indices) + len(batch.unreadable)
                first.check_others()
                if progress:  # the other processes are about as far
                    progress(done * len(first.source) // first.rows, len(first.source))
                if len(unread) >= MANY_UNREAD:
                    break
                if time.perf_counter() - last_flush > FLUSH_SECONDS:
                    last_flush = time.perf_counter()
                    for job in jobs:
                        job.flush()
    except KeyboardInterrupt:
        for job in jobs:
            job.flush()
        raise
    if unread:
        for job in jobs:
            job.flush()
        raise unread_error(first.source, [(path, reason) for _, path, reason in unread])
    for job in jobs:
        job.close()
