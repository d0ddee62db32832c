"""The data stream of pretraining: shuffled, augmented batches that do not depend on workers, and can start anywhere.

Everything random is drawn from (seed, epoch, rank) for the order and from (seed, epoch, index) for the augmentation, so
there is no state to be saved: a position says it all.
"""

import dataclasses
import logging
from collections.abc import Generator, Iterator

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from sslbench.data.decode.handlers import DEFAULT, Reading
from sslbench.data.loading import loader
from sslbench.data.loading.batch import BatchMaker, Item, RawBatch, rows_by_origin, share_of, start_worker
from sslbench.data.loading.samplers import (
    REPEATING,
    AskedSampler,
    SamplerName,
    choose_sampler,
    epoch_order,
    occurrences,
    origins_of,
)
from sslbench.data.sharded import WINDOW, check_order, shards_of
from sslbench.data.source import ORIGIN, Source
from sslbench.data.views import Augment, without_colours
from sslbench.data.wording import counted
from sslbench.errors import DataError, UsageError

__all__ = ["RawBatch", "TrainingData", "rows_by_origin"]

_log = logging.getLogger("sslbench")


class TrainingData:
    """Augmented views of a source, for one of several processes, as one endless stream of batches.

    A process has the images rank, rank + world, rank + 2 * world, ... and all processes have equally many; up to
    world - 1 images at the end of the source belong to nobody. Each process shuffles its own images every epoch, and an
    epoch consists of full batches only: the images left over are others each time.

    An image that cannot be read is replaced by another one of the same process that is not in the batch. The choice
    follows from (seed, epoch, index). How often that happened stands in each batch; each file is logged once.

    Of several sources at once (`joined.join`, or what `open_data` makes of a YAML file that lists them), each batch
    names the source of every image in `RawBatch.origins`, and `batch.by_origin()` is {"coco": ..., "photos": ...}.

    Attributes:
        steps_per_epoch: full batches in one epoch.
    """

    def __init__(  # noqa: PLR0913  what is read, how, and for which of the processes
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
    ) -> None:
        """Checks that there is something to train on; reads no image yet.

        Args:
            source: the images.
            augment: the views.
            batch_size: images per batch of this process.
            rank: of this process.
            world: processes.
            seed: of the order and the augmentation.
            workers: processes that decode and augment; 0 does it in this process.
            prefetch: batches that each worker prepares ahead.
            reading: the decoder, its limit, and how the workers are started.
            sampler: the order of the images; see `samplers.epoch_order`. 'balanced' needs one class per image,
                'weighted' several sources. 'auto' is 'weighted' where the source comes with weights, else 'shuffled'.
            shard_window: shards that sampler 'shards' mixes.
            channels: of the views; see `picture.Wanted`. One: the luminance of RGB.

        Raises:
            DataError: there is no image, or one.
            UsageError: a batch is larger than what one process has, the seed is negative, a decoder's name leads
                nowhere, or views of other channels than three are to have changes of colour.
        """
        if not (0 <= rank < world and workers >= 0 and prefetch >= 1):
            raise ValueError(f"rank {rank} of {world}, {workers} workers, {prefetch} batches ahead")
        _check(source, batch_size, world, seed)
        chosen = choose_sampler(sampler, source, world)
        check_order(source, chosen, shard_window)
        if channels != 3 and (colours := without_colours(augment)[1]):
            raise UsageError(
                f"augment: {', '.join(colours)}: for red, green and blue alone; these images have {channels}"
            )
        share = share_of(source, rank, world)
        self._maker = BatchMaker.of(
            share, augment, seed=seed, rank=rank, world=world, reading=reading, channels=channels
        )
        self._start_method, self._sampler, self._window = reading.start_method, chosen, shard_window
        self._groups = self._maker.labels
        self._weights: npt.NDArray[np.float64] | None = None
        if chosen == "weighted":
            self._groups, self._weights = origins_of(share)
        self._origins = source.attributes.get(ORIGIN)
        self._batch_size, self._workers, self._prefetch = batch_size, workers, prefetch
        self._reported: set[int] = set()
        self.steps_per_epoch = len(source) // world // batch_size

    def batches(self, start: int, stop: int) -> Generator[RawBatch]:
        """The batches at the positions start, start + 1, ..., stop - 1 since the beginning of training.

        Batch `position` is the same in every run with this seed, whatever `start` and the workers. Workers live as long
        as the iterator; the next epoch is prepared while the last one ends.

        Raises:
            DataError: too few images can be read, or a worker was killed.
        """
        if not 0 <= start <= stop:
            raise ValueError(f"batches {start} to {stop}")
        maker = self._maker
        plan = _Plan(
            len(maker.images),
            self._batch_size,
            maker.seed,
            maker.rank,
            start,
            stop,
            self._sampler,
            self._groups,
            shards_of(maker.images) if self._sampler == "shards" else None,
            self._window,
            self._weights,
        )
        for batch in loader.run(
            maker,
            self._workers,
            sampler=plan,
            prefetch=self._prefetch,
            start=start_worker,
            start_method=self._start_method,
        ):
            self._report(batch)
            yield self._with_origins(batch)

    def _with_origins(self, batch: RawBatch) -> RawBatch:
        if self._origins is None:
            return batch
        return dataclasses.replace(batch, origins=tuple(self._origins[i] for i in batch.indices.tolist()))

    def _report(self, batch: RawBatch) -> None:
        for index, path, reason in batch.unreadable:
            if index not in self._reported:
                self._reported.add(index)
                _log.warning("cannot be read, another image stands in: %s: %s", path, reason)


@dataclasses.dataclass(frozen=True)
class _Plan(Sampler[Item]):
    """What each batch consists of, in turn: (epoch, positions in the share). Keeps the order of one epoch.

    Attributes:
        n: images of this process.
        batch_size: per batch.
        seed: of the order.
        rank: of this process.
        start: position of the first batch.
        stop: position after the last one.
        sampler: of the order.
        classes: of the images, or their origins, for samplers that look at them.
        shards: of the images, likewise.
        window: shards that are mixed.
        weights: of the origins.
    """

    n: int
    batch_size: int
    seed: int
    rank: int
    start: int
    stop: int
    sampler: SamplerName = "shuffled"
    classes: npt.NDArray[np.int64] | None = None
    shards: npt.NDArray[np.int64] | None = None
    window: int = WINDOW
    weights: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[Item]:
        steps = self.n // self.batch_size
        shuffled, order, again = -1, np.empty(0, dtype=np.int64), None
        for position in range(self.start, self.stop):
            epoch, step = divmod(position, steps)
            if epoch != shuffled:
                shuffled = epoch
                order = self._order(epoch)
                again = occurrences(order) if self.sampler in REPEATING else None
            batch = slice(step * self.batch_size, (step + 1) * self.batch_size)
            yield (epoch, order[batch]) if again is None else (epoch, order[batch], again[batch])

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        return epoch_order(
            self.sampler,
            self.n,
            self.classes,
            seed=self.seed,
            epoch=epoch,
            rank=self.rank,
            shards=self.shards,
            window=self.window,
            weights=self.weights,
        )


def _check(source: Source, batch_size: int, world: int, seed: int) -> None:
    n, share = len(source), len(source) // world
    if n < 2:
        raise DataError(
            f"{source.name} has {counted(n, 'image') if n else 'no images'}, nothing to learn a representation from",
            "Give a folder, manifest or data set with at least as many images as one batch.",
        )
    if batch_size < 1:
        raise UsageError(f"a batch of {batch_size} images", "batch_size should be at least 1 image per process.")
    if seed < 0:
        raise UsageError(f"seed={seed} should not be negative")
    if batch_size > share:
        each = "" if world == 1 else f", {share:,} for each of {world} processes"
        raise UsageError(
            f"a batch of {batch_size:,} images per process does not fit: {source.name} has {n:,} images{each}",
            f"Lower batch_size: at most {share:,} images per process, {share * world:,} in all.",
        )
