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

from sslbench.data import loader
from sslbench.data._training_batch import BatchMaker, Item, RawBatch, share_of, start_worker
from sslbench.data.decoder import DEFAULT, Reading
from sslbench.data.samplers import SamplerName, check_sampler, epoch_order, occurrences
from sslbench.data.source import Source
from sslbench.data.views import Augment
from sslbench.data.wording import counted
from sslbench.errors import DataError, UsageError

__all__ = ["RawBatch", "TrainingData"]

_log = logging.getLogger("sslbench")


class TrainingData:
    """Augmented views of a source, for one of several processes, as one endless stream of batches.

    A process has the images rank, rank + world, rank + 2 * world, ... and all processes have equally many; up to
    world - 1 images at the end of the source belong to nobody. Each process shuffles its own images every epoch, and an
    epoch consists of full batches only: the images left over are others each time.

    An image that cannot be read is replaced by another one of the same process that is not in the batch. The choice
    follows from (seed, epoch, index). How often that happened stands in each batch; each file is logged once.

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
        sampler: SamplerName = "shuffled",
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
            sampler: the order of the images; see `samplers.epoch_order`. 'balanced' needs one class per image.

        Raises:
            DataError: there is no image, or one.
            UsageError: a batch is larger than what one process has, the seed is negative, or a decoder's name leads
                nowhere.
        """
        if not (0 <= rank < world and workers >= 0 and prefetch >= 1):
            raise ValueError(f"rank {rank} of {world}, {workers} workers, {prefetch} batches ahead")
        _check(source, batch_size, world, seed)
        check_sampler(sampler, source)
        share = share_of(source, rank, world)
        self._maker = BatchMaker.of(share, augment, seed=seed, rank=rank, world=world, reading=reading)
        self._start_method, self._sampler = reading.start_method, sampler
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
            len(maker.images), self._batch_size, maker.seed, maker.rank, start, stop, self._sampler, maker.labels
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
            yield batch

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
        classes: of the images, for samplers that look at them.
    """

    n: int
    batch_size: int
    seed: int
    rank: int
    start: int
    stop: int
    sampler: SamplerName = "shuffled"
    classes: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[Item]:
        steps = self.n // self.batch_size
        shuffled, order, again = -1, np.empty(0, dtype=np.int64), None
        for position in range(self.start, self.stop):
            epoch, step = divmod(position, steps)
            if epoch != shuffled:
                shuffled = epoch
                order = epoch_order(self.sampler, self.n, self.classes, seed=self.seed, epoch=epoch, rank=self.rank)
                again = occurrences(order) if self.sampler == "balanced" else None
            batch = slice(step * self.batch_size, (step + 1) * self.batch_size)
            yield (epoch, order[batch]) if again is None else (epoch, order[batch], again[batch])


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
