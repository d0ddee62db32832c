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
from sslbench.backbones.speed import CPU_CHUNK, Encoder, prepare
from sslbench.backbones.stems import with_channels
from sslbench.data.decode import transforms
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
from sslbench.runtime.device import DTYPES
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
    """Extraction of the rows of one process, for the layers that are not stored yet."""

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
        self.size = transforms.output_size(backbone.preprocessing)
        self.encode = prepare(backbone, layers, device=settings.device, precision=settings.precision)
        self.decoded, self.conversions = 0, collections.Counter[str]()

    def run(self, progress: StageProgress | None) -> tuple[int, collections.Counter[str]]:
        """Encode this process's pending rows, and return their number and the conversions."""
        if self.open():
            pass_over([self], progress)
        return self.decoded, self.conversions

    def open(self) -> bool:
        """Open the unfinished files and find the rows to encode; False if another process has finished already."""
        partials = self._open_files()
        if partials is None:
            return False
        self.partials, mine = partials, self._rows(self.process.rank)
        self._verify(partials, mine)
        pending = mine[np.any([partial.states()[mine] == PENDING for partial in partials], axis=0)]
        self.pending, self.rows = by_shard(self.source.images, pending), len(mine)
        self._frozen = self.encode.state_sha256()
        return True

    def close(self) -> None:
        """Check that the backbone did not change, and write what is buffered."""
        if self.encode.state_sha256() != self._frozen:
            # Rows already marked as done are wrong too, so the partial files must not be continued.
            for partial in self.partials:
                remove(partial.complete)
            raise BackboneError(
                f"{self.backbone.name} changed while it was evaluated: parameters or BatchNorm statistics moved",
                "Its forward pass should not switch to training mode or modify weights.",
            )
        self.flush()

    def flush(self) -> None:
        """Mark the rows written so far as done; the first process then finds them counted."""
        # Before the rows are marked: the first process takes the counts as soon as all rows are.
        if self.process.rank > 0 and any(partial.is_marking_due for partial in self.partials):
            write_counts(self.entry.folder, self.process.rank, self.decoded, self.conversions)
        for partial in self.partials:
            partial.flush()

    def _rows(self, rank: int) -> npt.NDArray[np.int64]:
        return rows_of(self.source.images, rank, self.process.world)

    def write(
        self, batch: loader.PictureBatch, features: streams.Rows, unreadable: Sequence[loader.Unreadable]
    ) -> None:
        """Write the features of a batch, and mark its unreadable images."""
        # A batch without a readable image has no features at all.
        for partial, rows in zip(self.partials, features, strict=bool(features)):
            self._check_width(partial, rows, batch)
            partial.write(batch.indices, rows)
        if unreadable:
            for partial in self.partials:
                partial.skip(np.array([index for index, *_ in unreadable]))
        self.decoded += len(batch.indices) + len(unreadable)
        self.conversions.update(batch.conversions)

    def batches(self) -> Iterator[loader.PictureBatch]:
        """Yield the batches of the pending rows, those that may be encoded."""
        batches = loader.batches(
            self.source,
            self.pending,
            self.backbone.preprocessing,
            batch_size=self.settings.batch_size,
            workers=self.settings.workers,
            start_method=self.settings.start_method,
            mixed_sizes=self.size is None,
        )
        for number, batch in enumerate(batches):
            if number == 0:
                check_first(batch, self.backbone)
            self._check_hashed(batch)
            again = self.unread(batch)
            unreadable = [row for row in batch.unreadable if row[0] not in again]
            if unreadable and self.settings.on_error == "stop":
                raise self._all_unreadable(unreadable)
            yield batch

    def unread(self, batch: loader.PictureBatch) -> set[int]:
        """Return the rows whose file could be read when it was hashed, and cannot now."""
        return {index for index in batch.unread if self.digests[index].any()}

    def _check_hashed(self, batch: loader.PictureBatch) -> None:
        """Raise if images are readable now that were not when they were hashed: the key lacks their content."""
        unknown = batch.indices[~self.digests[batch.indices].any(axis=1)]
        if len(unknown):
            paths = [self.source.images.path(index) for index in unknown.tolist()]
            raise unread_error(self.source, [(path, "was unreadable when it was hashed") for path in paths])

    def _verify(self, partials: Sequence[PartialLayer], rows: npt.NDArray[np.int64]) -> None:
        """Mark damaged rows of an earlier run as pending."""
        for partial in partials:
            if damaged := partial.verify(rows):
                log.warning(
                    f"{partial.complete.name}: {damaged:,} rows of the previous run are damaged and are computed again"
                )

    def finish(self, key: FeatureKey, split: str) -> None:
        """Wait for the other processes' rows, then publish the layers."""
        partials, world = self._opened_files(), self.process.world
        if partials is None:
            raise StoreError(
                f"unfinished features in {self.entry.folder} have disappeared", "Run the same command again."
            )

        def states() -> list[npt.NDArray[np.uint8]]:
            return [partial.states() for partial in partials]

        self._wait(
            lambda: all(state.all() for state in states()),
            lambda: sum(int((state > 0).sum()) for state in states()),
            lambda: [r for r in range(world) if not all(state[self._rows(r)].all() for state in states())],
        )
        # A disk or network file system may have lost rows that a process saw written.
        for partial in partials:
            if damaged := partial.verify(np.arange(len(self.source))):
                raise StoreError(
                    f"{damaged:,} rows of {partial.complete} are damaged",
                    "Check the disk, and run the same command again: it computes these rows again.",
                )
        bad = np.flatnonzero(partials[0].states() == UNREADABLE)
        found = self._scan(bad)
        skipped = [{"id": self.source.ids[i], "path": path, "reason": reason} for i, path, reason in found]
        if readable := sorted(set(bad.tolist()) - {i for i, *_ in found}):
            for partial in partials:
                partial.reset(np.array(readable))
            problem = f"{len(readable)} images of {self.source.name} that were unreadable are readable now"
            raise StoreError(problem, "Run the same command again once nothing writes to them.")
        checksums = {partial.complete.name: partial.checksum(bad) for partial in partials}
        # Before the layers are there: a layer is compared with its description when it is read.
        store.write_description(self.entry, key, self.source, split, skipped, self.digests, checksums)
        for partial in partials:
            partial.publish(bad)

    def _check_width(self, partial: PartialLayer, rows: npt.NDArray[np.float32], batch: loader.PictureBatch) -> None:
        """Raise if images of this size have another number of features than the first image."""
        if rows.shape[1:] != partial.shape[1:]:
            height, width = batch.images.shape[2:]
            raise BackboneError(
                f"{partial.complete.stem} gives {rows.shape[1]} features for images of {width} x {height} pixels "
                f"({self.source.images.path(int(batch.indices[0]))}) and {partial.shape[1]} for the first image",
                "Give a crop, or a pool whose length does not depend on the size: avg, max, gem(p), rmac, cls.",
            )

    def pieces(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return images (B, C, H, W) in the pieces of single forward passes.

        Images of their own sizes are encoded in pieces of about as many pixels as a batch of 224 x 224.
        """
        if not len(images):
            return []
        most = self.settings.batch_size
        if self.size is None:
            most = max(1, most * 224 * 224 // (images.shape[2] * images.shape[3]))
        batches = torch.split(images, most)
        if self.settings.device.type != "cpu":
            return list(batches)
        # The same pieces for any number of threads: the features must not depend on it.
        return [piece for batch in batches for piece in torch.split(batch, CPU_CHUNK)]

    def encoded(self, encode: Encoder, images: torch.Tensor) -> list[npt.NDArray[np.float32]]:
        """Return one array (B, D) per layer for a loader's images (B, C, H, W)."""
        dtype = DTYPES[self.settings.precision]
        device = self.settings.device
        inputs = transforms.normalise(
            images.to(device, non_blocking=True), self.backbone.preprocessing, dtype, torch.channels_last
        )
        outputs = encode(inputs)
        return [outputs[layer.text].float().cpu().numpy() for layer in self.layers]

    def _open_files(self) -> list[PartialLayer] | None:
        """Return the unfinished layers, whose files the first process creates.

        None if the first process has finished already, because only its own rows were left.
        """
        if self.process.rank == 0:
            self._create_files()
        else:
            self._wait(lambda: self._opened_files() is not None or self._complete(), lambda: 0, lambda: [0])
        return None if self._complete() else self._opened_files()

    def _opened_files(self) -> list[PartialLayer] | None:
        """Return the unfinished layers; None if one has no valid files."""
        found = [self._opened(layer) for layer in self.layers]
        partials = [partial for partial in found if partial is not None]
        return partials if len(partials) == len(found) else None

    def _opened(self, layer: Layer) -> PartialLayer | None:
        file, dtype = self.entry.layer_file(layer.text), np.dtype(self.settings.dtype)
        return opened(file, len(self.source), dtype, alone=self.process.world == 1)

    def _complete(self) -> bool:
        return all(self.entry.has(layer.text) for layer in self.layers)

    def _create_files(self) -> None:
        missing = [layer for layer in self.layers if self._opened(layer) is None]
        if not missing:
            return
        self.entry.folder.mkdir(parents=True, exist_ok=True)
        widths = self._widths()
        self._check_space(sum(widths[layer.text] for layer in missing))
        for layer in missing:
            if rows_file(self.entry.layer_file(layer.text)).exists():
                log.warning(
                    f"{self.source.name}: the unfinished features of {layer.text} are damaged and are computed again"
                )
            shape = (len(self.source), widths[layer.text])
            create(self.entry.layer_file(layer.text), shape, np.dtype(self.settings.dtype))

    def _check_space(self, width: int) -> None:
        """Say how much disk space the new features take, if it is much, and refuse what does not fit."""
        needed = len(self.source) * width * np.dtype(self.settings.dtype).itemsize
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

    def _widths(self) -> dict[str, int]:
        """Return the number of features per image of each layer, found with one image of zeros."""
        if self.size is not None:
            channels = Wanted.by(self.backbone.preprocessing).channels
            images = torch.zeros((1, channels, *self.size), dtype=torch.uint8)  # nothing is decoded for it
        else:
            first = next(
                loader.batches(self.source, np.arange(1), self.backbone.preprocessing, batch_size=1, workers=0)
            )
            if not len(first.indices):
                raise DataError(
                    f"the first image of {self.source.name} cannot be read; its features would tell how many all have"
                )
            images = first.images
        return {layer.text: f.shape[1] for layer, f in zip(self.layers, self.encoded(self.encode, images), strict=True)}

    def _all_unreadable(self, first: Sequence[loader.Unreadable]) -> DataError:
        """Return the error that lists all unreadable images of this process, given the first ones."""
        log.warning(f"{self.source.name}: an image cannot be read; looking for all unreadable ones")
        found = self._scan(self._rows(self.process.rank))
        both = {index: (path, reason) for index, path, reason in (*first, *found)}
        return unreadable_error(self.source, [both[index] for index in sorted(both)])

    def _scan(self, rows: npt.NDArray[np.int64]) -> list[loader.Unreadable]:
        return loader.scan(
            self.source,
            rows,
            self.settings.workers,
            preprocessing=self.backbone.preprocessing,
            reading=Reading(start_method=self.settings.start_method),
        )

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
            if now == last and time.monotonic() - since > ABSENT_SECONDS:
                self.presence.refuse_absent(waited_for())
            if now == last and time.monotonic() - since > STALL_SECONDS:
                raise StoreError(
                    f"another process of this run no longer writes features into {self.entry.folder}",
                    "See that process's output; run the same command again to continue.",
                )


def pass_over(jobs: Sequence[ExtractionJob], progress: StageProgress | None) -> None:
    """Encode the pending rows of several open jobs with one pass over the images."""
    try:
        _pass_over(jobs, progress)
    except KeyboardInterrupt:
        for job in jobs:
            job.flush()
        raise
    for job in jobs:
        job.close()


def _pass_over(jobs: Sequence[ExtractionJob], progress: StageProgress | None) -> None:
    first = jobs[0]
    unread: list[loader.Unreadable] = []
    last_flush = time.perf_counter()
    done = first.rows - len(first.pending)
    works = [(job.encode, job.encoded) for job in jobs]
    # Closed at once after an error, which ends the threads and the decoding processes.
    with contextlib.closing(streams.encoded(first.batches(), works, first.pieces)) as encoded:
        for batch, features in encoded:
            again = first.unread(batch)
            unread += [row for row in batch.unreadable if row[0] in again]
            unreadable = [row for row in batch.unreadable if row[0] not in again]
            for job, own in zip(jobs, features, strict=True):
                job.write(batch, own, unreadable)
            done += len(batch.indices) + len(batch.unreadable)
            first.check_others()
            if progress:  # the other processes are about as far
                progress(done * len(first.source) // first.rows, len(first.source))
            if flush := time.perf_counter() - last_flush > FLUSH_SECONDS:
                last_flush = time.perf_counter()
            if flush or len(unread) >= MANY_UNREAD:
                for job in jobs:
                    job.flush()
            if len(unread) >= MANY_UNREAD:
                break
    if unread:
        for job in jobs:
            job.flush()
        raise unread_error(first.source, [(path, reason) for _, path, reason in unread])
