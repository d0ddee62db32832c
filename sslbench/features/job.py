"""One process's part of an extraction: rows written into files that are not complete yet.

Process r of w takes rows r, r + w, r + 2w, ... and writes them into the same file, so nothing is gathered, padded or
sent. Progress is kept per row (features/partial.py); rows are on disk before they are marked as done.
"""

import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.backbones.speed import DTYPES, prepare
from sslbench.data import loader, transforms
from sslbench.data.decoder import Reading
from sslbench.data.picture import Wanted
from sslbench.data.sharded import by_shard
from sslbench.data.source import Source
from sslbench.distributed import Process
from sslbench.errors import BackboneError, DataError, StoreError
from sslbench.features import store
from sslbench.features.channels import check_first
from sslbench.features.partial import PENDING, UNREADABLE, PartialLayer, create, opened, remove, rows_file
from sslbench.features.presence import Presence
from sslbench.features.run_presence import ABSENT_SECONDS, RunPresence
from sslbench.features.skipped import unread_error, unreadable_error
from sslbench.identity import FeatureKey

log = logging.getLogger("sslbench")

Progress = Callable[[int, int], None]
"""Called with (images done, images in all) now and then."""

MANY_UNREAD = 100
"""After so many images that could be hashed and cannot be read, the disk or network is taken to be gone."""
FLUSH_SECONDS = 5.0  # at most this much work is lost when a run is killed
STALL_SECONDS = 600.0  # processes that wait for each other give up after this long without any progress


@dataclasses.dataclass(frozen=True)
class ExtractSettings:
    """How features are extracted; only `precision` and `dtype` have an influence on them.

    Attributes:
        device: where the backbone runs.
        precision: of the computation.
        dtype: of the stored features.
        batch_size: images per forward pass.
        workers: processes that decode; 0 decodes in this one.
        on_error: 'stop' raises after listing all unreadable images, 'skip' leaves their rows out.
        start_method: how those processes are started.
    """

    device: torch.device
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    dtype: Literal["float32", "float16"] = "float32"
    batch_size: int = 64
    workers: int = 2
    on_error: Literal["stop", "skip"] = "stop"
    start_method: loader.StartMethod = "auto"


class Job:
    """The rows of one process, for the layers that are not stored yet."""

    def __init__(
        self,
        backbone: Backbone,
        source: Source,
        layers: Sequence[Layer],
        settings: ExtractSettings,
        entry: store.Entry,
        process: Process,
        digests: npt.NDArray[np.uint8],
    ) -> None:
        self.backbone, self.source, self.layers = backbone, source, layers
        self.settings, self.entry, self.process = settings, entry, process
        self.digests = digests
        self.presence = Presence(entry.folder, process)
        self.run_presence = RunPresence(entry.folder.parent, process)
        self.encode = prepare(backbone, layers, device=settings.device, precision=settings.precision)

    def run(self, progress: Progress | None) -> tuple[int, collections.Counter[str]]:
        """Encode this process's rows that are not done yet; return how many, and the conversions."""
        partials = self._open_files()
        if partials is None:
            return 0, collections.Counter()
        mine = np.arange(self.process.rank, len(self.source), self.process.world)
        self._verify(partials, mine)
        pending = mine[np.any([partial.states()[mine] == PENDING for partial in partials], axis=0)]
        frozen = self.encode.state_sha256()
        try:
            conversions = self._encode(partials, by_shard(self.source.images, pending), len(mine), progress)
        except KeyboardInterrupt:
            _flush(partials)
            raise
        if self.encode.state_sha256() != frozen:
            # Rows that were marked on the way are wrong too: what was written so far must not be continued.
            for partial in partials:
                remove(partial.complete)
            raise BackboneError(
                f"{self.backbone.name} changed while it was evaluated: parameters or BatchNorm statistics moved",
                "Its forward pass should not put a part into training mode or write into weights.",
            )
        _flush(partials)
        return len(pending), conversions

    def _encode(
        self, partials: Sequence[PartialLayer], pending: npt.NDArray[np.int64], total: int, progress: Progress | None
    ) -> collections.Counter[str]:
        """Encode some rows, of the `total` of this process; return the conversions."""
        conversions: collections.Counter[str] = collections.Counter()
        unread: list[loader.Unreadable] = []
        last_flush = time.perf_counter()
        done = first = total - len(pending)
        for batch in loader.batches(
            self.source,
            pending,
            self.backbone.preprocessing,
            batch_size=self.settings.batch_size,
            workers=self.settings.workers,
            start_method=self.settings.start_method,
        ):
            if done == first:
                check_first(batch, self.backbone)
            self._check_hashed(batch)
            again = {index for index in batch.unread if self.digests[index].any()}
            unread += [row for row in batch.unreadable if row[0] in again]
            lost = [row for row in batch.unreadable if row[0] not in again]
            if lost and self.settings.on_error == "stop":
                raise self._all_unreadable(lost)
            if len(batch.indices):
                for partial, rows in zip(partials, self._features(batch.images), strict=True):
                    partial.write(batch.indices, rows)
            if lost:
                for partial in partials:
                    partial.skip(np.array([index for index, *_ in lost]))
            conversions.update(batch.conversions)
            done += len(batch.indices) + len(batch.unreadable)
            self._check_others()
            if progress:
                progress(done, total)
            if time.perf_counter() - last_flush > FLUSH_SECONDS:
                _flush(partials)
                last_flush = time.perf_counter()
            if len(unread) >= MANY_UNREAD:
                break
        if unread:
            _flush(partials)
            raise unread_error(self.source, [(path, reason) for _, path, reason in unread])
        return conversions

    def _check_hashed(self, batch: loader.Batch) -> None:
        """Refuse images that can be read although their digest says that they could not be: their content has no key.

        Raises:
            DataError: there is one.
        """
        unknown = batch.indices[~self.digests[batch.indices].any(axis=1)]
        if len(unknown):
            paths = [self.source.images.path(index) for index in unknown.tolist()]
            raise unread_error(self.source, [(path, "could not be read when it was hashed") for path in paths])

    def _verify(self, partials: Sequence[PartialLayer], rows: npt.NDArray[np.int64]) -> None:
        """Have rows that a former run has written and that are damaged made again."""
        for partial in partials:
            if lost := partial.verify(rows):
                log.warning(f"{partial.complete.name}: {lost:,} rows of the run before are damaged, and are made again")

    def finish(self, key: FeatureKey, split: str) -> None:
        """Wait for the other processes' rows, then make the files visible."""
        partials, world = self._opened_files(), self.process.world
        if partials is None:
            raise StoreError(f"unfinished features in {self.entry.folder} are gone", "Run the same command again.")

        def states() -> list[npt.NDArray[np.uint8]]:
            return [partial.states() for partial in partials]

        self._wait(
            lambda: all(state.all() for state in states()),
            lambda: sum(int((state > 0).sum()) for state in states()),
            lambda: [r for r in range(world) if not all(state[r::world].all() for state in states())],
        )
        for partial in partials:
            if damaged := partial.verify(np.arange(len(self.source))):
                raise StoreError(
                    f"{damaged:,} rows of {partial.complete} are not what was written",
                    "Is the disk damaged? Run the same command again: these rows are made again.",
                )
        bad = np.flatnonzero(partials[0].states() == UNREADABLE)
        found = self._scan(bad)
        skipped = [{"id": self.source.ids[i], "path": path, "reason": reason} for i, path, reason in found]
        if readable := sorted(set(bad.tolist()) - {i for i, *_ in found}):
            for partial in partials:
                partial.reset(np.array(readable))
            problem = f"{len(readable)} images of {self.source.name} could not be read before and can be now"
            raise StoreError(problem, "Run the same command again when nothing writes to them.")
        store.write_description(self.entry, key, self.source, split, skipped, self.digests)
        for partial in partials:
            partial.publish(bad)

    def _features(self, images: torch.Tensor) -> list[npt.NDArray[np.float32]]:
        """One array (B, D) per layer, of images (B, C, H, W) as the loader gives them."""
        dtype = DTYPES[self.settings.precision]
        device = self.settings.device
        inputs = transforms.normalise(
            images.to(device, non_blocking=True), self.backbone.preprocessing, dtype, torch.channels_last
        )
        outputs = self.encode(inputs)
        return [outputs[layer.text].float().cpu().numpy() for layer in self.layers]

    def _open_files(self) -> list[PartialLayer] | None:
        """Return the unfinished layers, which the first process makes.

        None when the first process has finished already: it continued a run in which only its own rows were left.
        """
        if self.process.rank == 0:
            self._create_files()
        else:
            self._wait(lambda: self._opened_files() is not None or self._complete(), lambda: 0, lambda: [0])
        return None if self._complete() else self._opened_files()

    def _opened_files(self) -> list[PartialLayer] | None:
        """Return the unfinished layers; None if one of them is not there."""
        found = [self._opened(layer) for layer in self.layers]
        partials = [partial for partial in found if partial is not None]
        return partials if len(partials) == len(found) else None

    def _opened(self, layer: Layer) -> PartialLayer | None:
        return opened(self.entry.layer_file(layer.text), len(self.source), np.dtype(self.settings.dtype))

    def _complete(self) -> bool:
        return all(self.entry.has(layer.text) for layer in self.layers)

    def _create_files(self) -> None:
        missing = [layer for layer in self.layers if self._opened(layer) is None]
        if not missing:
            return
        self.entry.folder.mkdir(parents=True, exist_ok=True)
        widths = self._widths()
        for layer in missing:
            if rows_file(self.entry.layer_file(layer.text)).exists():
                log.warning(
                    f"{self.source.name}: the unfinished features of {layer.text} are damaged, so they are made again"
                )
            shape = (len(self.source), widths[layer.text])
            create(self.entry.layer_file(layer.text), shape, np.dtype(self.settings.dtype))

    def _widths(self) -> dict[str, int]:
        """Features per image of each layer, from one image of zeros: a layer that does not work shows here."""
        size = transforms.output_size(self.backbone.preprocessing)
        if size is not None:
            channels = Wanted.by(self.backbone.preprocessing).channels
            images = torch.zeros((1, channels, *size), dtype=torch.uint8)
        else:
            first = next(
                loader.batches(self.source, np.arange(1), self.backbone.preprocessing, batch_size=1, workers=0)
            )
            if not len(first.indices):
                raise DataError(
                    f"the first image of {self.source.name} cannot be read, and its size decides that of all"
                )
            images = first.images
        return {layer.text: f.shape[1] for layer, f in zip(self.layers, self._features(images), strict=True)}

    def _all_unreadable(self, first: Sequence[loader.Unreadable]) -> DataError:
        """Return the error that lists all unreadable images of this process, of which some are known."""
        log.warning(f"{self.source.name}: an image cannot be read; looking for all that cannot")
        found = self._scan(np.arange(self.process.rank, len(self.source), self.process.world))
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

    def _check_others(self) -> None:
        self.presence.check()
        self.run_presence.check()

    def _wait(
        self, ready: Callable[[], bool], amount: Callable[[], int], waited_for: Callable[[], Sequence[int]]
    ) -> None:
        """Waits for what the processes `waited_for` write; gives up when `amount` stays the same for STALL_SECONDS."""
        last, since = amount(), time.monotonic()
        while not ready():
            time.sleep(0.05)
            self._check_others()
            now = amount()
            if now != last:
                last, since = now, time.monotonic()
            if now == last and time.monotonic() - since > ABSENT_SECONDS:
                self.run_presence.refuse_absent(waited_for())
            if now == last and time.monotonic() - since > STALL_SECONDS:
                raise StoreError(
                    f"another process of this run stopped writing features into {self.entry.folder}",
                    "Look at that process's output; run the same command again to continue.",
                )


def _flush(partials: Sequence[PartialLayer]) -> None:
    for partial in partials:
        partial.flush()
