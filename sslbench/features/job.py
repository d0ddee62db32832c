"""One process's part of an extraction: rows written into files that are not complete yet.

Process r of w takes rows r, r + w, r + 2w, ... and writes them into the same memory-mapped file, so nothing is
gathered, padded or sent. Progress is kept per row; rows are on disk before they are marked as done.
"""

import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
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
from sslbench.features.presence import Presence
from sslbench.features.run_presence import ABSENT_SECONDS, RunPresence
from sslbench.features.skipped import unreadable_error
from sslbench.identity import FeatureKey

log = logging.getLogger("sslbench")

Progress = Callable[[int, int], None]
"""Called with (images done, images in all) now and then."""

PENDING, DONE, UNREADABLE = 0, 1, 2
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
    ) -> None:
        self.backbone, self.source, self.layers = backbone, source, layers
        self.settings, self.entry, self.process = settings, entry, process
        self.presence = Presence(entry.folder, process)
        self.run_presence = RunPresence(entry.folder.parent, process)
        self.encode = prepare(backbone, layers, device=settings.device, precision=settings.precision)

    def run(self, progress: Progress | None) -> tuple[int, collections.Counter[str]]:
        """Encodes this process's rows that are not done yet; returns how many, and the conversions."""
        files = self._open_files()
        if files is None:
            return 0, collections.Counter()
        arrays, flags = files
        mine = np.arange(self.process.rank, len(self.source), self.process.world)
        pending = by_shard(self.source.images, mine[np.any([flag[mine] == PENDING for flag in flags], axis=0)])
        frozen = self.encode.state_sha256()
        conversions: collections.Counter[str] = collections.Counter()
        marks: list[tuple[npt.NDArray[np.int64], int]] = []
        last_flush = time.perf_counter()
        done = len(mine) - len(pending)
        for batch in loader.batches(
            self.source,
            pending,
            self.backbone.preprocessing,
            batch_size=self.settings.batch_size,
            workers=self.settings.workers,
            start_method=self.settings.start_method,
        ):
            self._check_readable(batch, mine, is_first=done == len(mine) - len(pending))
            if len(batch.indices):
                for array, rows in zip(arrays, self._features(batch.images), strict=True):
                    array[batch.indices] = rows
                marks.append((batch.indices, DONE))
            if batch.unreadable:
                marks.append((np.array([index for index, _, _ in batch.unreadable]), UNREADABLE))
            conversions.update(batch.conversions)
            done += len(batch.indices) + len(batch.unreadable)
            self._check_others()
            if progress:
                progress(done, len(mine))
            if time.perf_counter() - last_flush > FLUSH_SECONDS:
                self._mark(arrays, flags, marks)
                last_flush = time.perf_counter()
        if self.encode.state_sha256() != frozen:
            # Rows that were marked on the way are wrong too: what was written so far must not be continued.
            for layer in self.layers:
                for file in self._files(layer):
                    file.unlink(missing_ok=True)
            raise BackboneError(
                f"{self.backbone.name} changed while it was evaluated: parameters or BatchNorm statistics moved",
                "Its forward pass should not put a part into training mode or write into weights.",
            )
        self._mark(arrays, flags, marks)
        return len(pending), conversions

    def finish(self, key: FeatureKey, split: str) -> None:
        """Waits for the other processes' rows, then makes the files visible."""
        flags = [np.memmap(self._files(layer)[1], dtype=np.uint8, mode="r") for layer in self.layers]
        self._wait(
            lambda: all(flag.all() for flag in flags),
            lambda: sum(int((flag > 0).sum()) for flag in flags),
            lambda: [
                r for r in range(self.process.world) if not all(flag[r :: self.process.world].all() for flag in flags)
            ],
        )
        bad = np.flatnonzero(flags[0] == UNREADABLE)
        found = self._scan(bad)
        skipped = [{"id": self.source.ids[i], "path": path, "reason": reason} for i, path, reason in found]
        if len(skipped) != len(bad):
            problem = f"{len(bad) - len(skipped)} images of {self.source.name} could not be read before and can be now"
            raise StoreError(problem, f"Is something else writing them? Delete {self.entry.folder} and run again.")
        store.write_description(self.entry, key, self.source, split, skipped)
        for layer in self.layers:
            self._publish(layer, bad)

    def _features(self, images: torch.Tensor) -> list[npt.NDArray[np.float32]]:
        """One array (B, D) per layer, of images (B, C, H, W) as the loader gives them."""
        dtype = DTYPES[self.settings.precision]
        device = self.settings.device
        inputs = transforms.normalise(
            images.to(device, non_blocking=True), self.backbone.preprocessing, dtype, torch.channels_last
        )
        outputs = self.encode(inputs)
        return [outputs[layer.text].float().cpu().numpy() for layer in self.layers]

    def _files(self, layer: Layer) -> tuple[Path, Path]:
        complete = self.entry.layer_file(layer.text)
        return complete.with_name(complete.name + ".partial"), complete.with_name(complete.name + ".progress")

    def _open_files(self) -> tuple[list[npt.NDArray[np.floating]], list[npt.NDArray[np.uint8]]] | None:
        """The arrays of features and of progress flags of every layer, mapped; the first process makes them.

        None when the first process has finished already: it continued a run in which only its own rows were left.
        """
        if self.process.rank == 0:
            self._create_files()
        else:
            unfinished = [file for layer in self.layers for file in self._files(layer)]
            self._wait(lambda: all(f.is_file() for f in unfinished) or self._complete(), lambda: 0, lambda: [0])
        if self._complete():
            return None
        arrays: list[npt.NDArray[np.floating]] = []
        flags: list[npt.NDArray[np.uint8]] = []
        for layer in self.layers:
            partial, progress = self._files(layer)
            arrays.append(np.lib.format.open_memmap(partial, mode="r+"))
            flags.append(np.memmap(progress, dtype=np.uint8, mode="r+"))
        return arrays, flags

    def _complete(self) -> bool:
        return all(self.entry.has(layer.text) for layer in self.layers)

    def _create_files(self) -> None:
        missing = [layer for layer in self.layers if not all(f.is_file() for f in self._files(layer))]
        if not missing:
            return
        self.entry.folder.mkdir(parents=True, exist_ok=True)
        widths = self._widths()
        for layer in missing:
            partial, progress = self._files(layer)
            temporary = partial.with_name(partial.name + ".tmp")
            shape = (len(self.source), widths[layer.text])
            np.lib.format.open_memmap(temporary, mode="w+", dtype=np.dtype(self.settings.dtype), shape=shape)
            temporary.replace(partial)
            temporary.write_bytes(bytes(len(self.source)))
            temporary.replace(progress)  # last: a progress file without its array would be taken for finished work

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

    def _mark(
        self,
        arrays: list[npt.NDArray[np.floating]],
        flags: list[npt.NDArray[np.uint8]],
        marks: list[tuple[npt.NDArray[np.int64], int]],
    ) -> None:
        for array in arrays:
            if isinstance(array, np.memmap):
                array.flush()
        for flag in flags:
            for rows, state in marks:
                flag[rows] = state
            if isinstance(flag, np.memmap):
                flag.flush()
        marks.clear()

    def _publish(self, layer: Layer, bad: npt.NDArray[np.int64]) -> None:
        partial, progress = self._files(layer)
        if len(bad):
            whole = np.load(partial, mmap_mode="r")
            kept = np.setdiff1d(np.arange(len(whole)), bad)
            temporary = partial.with_name(partial.name + ".tmp")
            shape = (len(kept), whole.shape[1])
            compact = np.lib.format.open_memmap(temporary, mode="w+", dtype=whole.dtype, shape=shape)
            for start in range(0, len(kept), 4096):
                rows = kept[start : start + 4096]
                compact[start : start + len(rows)] = whole[rows]
            compact.flush()
            temporary.replace(partial)
        partial.replace(self.entry.layer_file(layer.text))
        progress.unlink()

    def _check_readable(self, batch: loader.Batch, rows: npt.NDArray[np.int64], *, is_first: bool) -> None:
        if is_first:
            check_first(batch, self.backbone)
        if batch.unreadable and self.settings.on_error == "stop":
            raise self._all_unreadable(rows)

    def _all_unreadable(self, rows: npt.NDArray[np.int64]) -> DataError:
        log.warning(f"{self.source.name}: an image cannot be read; looking for all that cannot")
        found = self._scan(rows)
        return unreadable_error(self.source, [(self.source.ids[i], path, reason) for i, path, reason in found])

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
