"""Data stream of pretraining: shuffled, augmented batches, independent of the workers, from any position on.

The order is drawn from (seed, epoch) and the augmentation from (seed, epoch, index), so the position in the stream is
the only state to save, and it is the same for any number of processes.
"""

import dataclasses
import functools
import logging
import shutil
import tempfile
import weakref
from collections.abc import Generator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.data.decode.handlers import DEFAULT, Reading
from sslbench.data.images import Files
from sslbench.data.loading.batch import BatchMaker, RawBatch, ShareSampler, rows_by_origin, start_worker
from sslbench.data.loading.samplers import (
    REPEATING,
    AskedSampler,
    choose_sampler,
    epoch_order,
    origins_of,
)
from sslbench.data.sharded import WINDOW, check_order, shards_of
from sslbench.data.source import ORIGIN, Source
from sslbench.data.views import Augment, without_colours
from sslbench.data.views.colours import check_views
from sslbench.data.wording import counted
from sslbench.data.workers import run
from sslbench.errors import DataError, UsageError
from sslbench.text_rows import TextRows

__all__ = ["RawBatch", "TrainingData", "rows_by_origin"]

_MANY = 10_000
"""Number of files from which on workers read their paths from one file; a fork would copy each that it reads, too."""

_log = logging.getLogger("sslbench")


class TrainingData:
    """Endless stream of batches of augmented views, for one of several processes.

    All images are shuffled every epoch, and a process has the images rank, rank + world, rank + 2 * world, ... of each
    batch over all processes: a run that goes on with another number of processes, and the same images per batch over
    all of them, shows the same images in every update. An epoch has full batches only, so the images left out differ
    between epochs.

    An unreadable image is replaced by another one that is not in this process's part of the batch, chosen by (seed,
    epoch, index). Each batch has the number of replacements; each file is logged once by each process that met it.

    For joined sources (`joined.join`, or a YAML file that lists several), `RawBatch.origins` names the source of every
    image, and `batch.by_origin()` is {"coco": ..., "photos": ...}.

    Attributes:
        steps_per_epoch: number of batches in one epoch.
    """

    def __init__(  # noqa: PLR0913  source, reading, and process
        self,
        source: Source,
        augment: Augment,
        *,
        batch_size: int,
        rank: int = 0,
        world: int = 1,
        seed: int = 0,
        workers: int = 0,
        prefetch: int = 2,
        reading: Reading = DEFAULT,
        sampler: AskedSampler = "auto",
        shard_window: int = WINDOW,
        channels: int = 3,
        colours: bool = True,
    ) -> None:
        """Check the settings; no image is read yet."""
        if not (0 <= rank < world and workers >= 0 and prefetch >= 1):
            raise ValueError(f"rank {rank} of {world}, {workers} workers, {prefetch} batches ahead")
        _check(source, batch_size, world, seed)
        chosen = choose_sampler(sampler, source)
        check_order(source, chosen, shard_window)
        if channels != 3 and (for_rgb := without_colours(augment)[1]):
            raise UsageError(
                f"augment: {', '.join(for_rgb)}: for RGB images only; these have {counted(channels, 'channel')}"
            )
        if not colours:
            check_views(augment.expanded(), channels)
        images = source.images
        # A worker that reads paths changes their counts of references, and so copies their memory pages.
        if workers and isinstance(images, Files) and not isinstance(images.paths, TextRows) and len(images) >= _MANY:
            self._index = Path(tempfile.mkdtemp(prefix="sslbench-"))
            weakref.finalize(self, shutil.rmtree, self._index, ignore_errors=True)  # at exit at the latest
            images = images.in_file(self._index / "paths")
        shared = dataclasses.replace(source, images=images)
        self._maker = BatchMaker.of(shared, augment, seed=seed, reading=reading, channels=channels, colours=colours)
        self._process = rank, world
        self._start_method, self._sampler, self._window = reading.start_method, chosen, shard_window
        self._groups = self._maker.labels
        self._weights: npt.NDArray[np.float64] | None = None
        if chosen == "weighted":
            self._groups, self._weights = origins_of(source)
        self._origins = source.attributes.get(ORIGIN)
        self._batch_size, self._workers, self._prefetch = batch_size, workers, prefetch
        self._reported: set[int] = set()
        self.steps_per_epoch = len(source) // world // batch_size

    @property
    def bytes_ahead(self) -> int:
        """Bytes of shared memory that the batches of this process need: those loaded ahead, and one in use."""
        pixels = sum(size * size * number for size, number, _ in self._maker.views)
        return pixels * self._maker.channels * self._batch_size * (self._workers * self._prefetch + 1)

    def batches(self, start: int, stop: int) -> Generator[RawBatch]:
        """Iterate over the batches start, start + 1, ..., stop - 1 of the training.

        A batch depends on its position and the seed, not on `start` or the workers. The workers live as long as the
        iterator, and load the next epoch while the last one ends.
        """
        if not 0 <= start <= stop:
            raise ValueError(f"batches {start} to {stop}")
        maker = self._maker
        order = functools.partial(
            epoch_order,
            self._sampler,
            len(maker.images),
            self._groups,
            seed=maker.seed,
            shards=shards_of(maker.images) if self._sampler == "shards" else None,
            window=self._window,
            weights=self._weights,
        )
        rank, world = self._process
        plan = ShareSampler(
            order,
            len(maker.images),
            self._batch_size * world,
            slice(rank, None, world),
            start,
            stop,
            repeats=self._sampler in REPEATING,
        )
        for batch in run(
            maker,
            self._workers,
            sampler=plan,
            prefetch=self._prefetch,
            start=start_worker,
            start_method=self._start_method,
        ):
            for index, path, reason in batch.unreadable:
                # An image that cannot be read comes again in every epoch.
                if index not in self._reported:
                    self._reported.add(index)
                    _log.warning("cannot be read and is replaced by another image: %s: %s", path, reason)
            if self._origins is not None:
                batch = dataclasses.replace(batch, origins=tuple(self._origins[i] for i in batch.indices.tolist()))
            yield batch


def _check(source: Source, batch_size: int, world: int, seed: int) -> None:
    n, share = len(source), len(source) // world
    if n < 2:
        raise DataError(
            f"{source.name} has {counted(n, 'image') if n else 'no images'}, too few to learn a representation",
            "Give a folder, manifest or data set with at least as many images as one batch.",
        )
    if batch_size < 1:
        raise UsageError(f"a batch of {batch_size} images", "batch_size should be at least 1 image per process.")
    if seed < 0:
        raise UsageError(f"seed should not be negative, not {seed}")
    if batch_size > share:
        each = "" if world == 1 else f", {share:,} for each of {world} processes"
        raise UsageError(
            f"a batch of {batch_size:,} images per process does not fit: {source.name} has {n:,} images{each}",
            f"Lower batch_size: at most {share:,} images per process, {share * world:,} in all.",
        )
