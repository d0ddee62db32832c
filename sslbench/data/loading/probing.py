"""Augmented, labelled views for training a probe on a frozen backbone: the same batches for any number of processes.

`TrainingData` gives every process images of its own. Here all processes share one order, and each takes its part of
every batch, so one process and eight see the same images in the same update. The order is drawn from (seed, epoch),
the augmentation from (seed, epoch, index); the position in the stream is the only state.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Generator

import numpy as np
import torch
from torch import Tensor

from sslbench.arrays import IntArray
from sslbench.data.decode.handlers import DEFAULT, Reading
from sslbench.data.images import Arrays
from sslbench.data.loading.batch import BatchMaker, RawBatch, ShareSampler, start_worker
from sslbench.data.loading.kept import keeping
from sslbench.data.loading.samplers import REPEATING, SamplerName, check_sampler, epoch_order
from sslbench.data.source import Source
from sslbench.data.views import Augment, View, ops
from sslbench.data.workers import run
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing

_ORDER = 0  # random stream of the order, apart from that of the augmentation


class EpochBatches:
    """Batches of one view per image, split into pieces; an epoch has full batches only, so the images left out vary.

    Attributes:
        steps_per_epoch: number of batches in one epoch.
        batch_size: images per batch, over all processes.
    """

    def __init__(  # noqa: PLR0913  source, reading, and process
        self,
        source: Source,
        view: View | Callable[[Tensor], Tensor],
        *,
        size: int,
        batch_size: int,
        piece: int,
        seed: int,
        share: tuple[int, int] = (0, 1),
        workers: int = 0,
        reading: Reading = DEFAULT,
        sampler: SamplerName = "shuffled",
        channels: int = 3,
        resized: Preprocessing | None = None,
    ) -> None:
        """Check the settings; no image is read yet.

        `view`: settings of the view, or a function from uint8 (C, H, W) to uint8 (C, size, size); `share`: (rank,
        number of processes); `resized`: resize and crop of every image before its view.
        """
        batch_size, (rank, world) = min(batch_size, len(source)), share
        if batch_size < world:
            raise UsageError(f"batch_size={batch_size} is too small for {world} processes")
        augment = Augment(views=(view if isinstance(view, View) else View(size=size),))
        maker = BatchMaker.of(source, augment, seed=seed, reading=reading, channels=channels)
        if not isinstance(view, View):
            maker = dataclasses.replace(maker, views=((size, 1, functools.partial(ops.whole, view)),))
        maker = dataclasses.replace(maker, resized=resized)
        self._maker, self._workers, self._start_method = maker, workers, reading.start_method
        self._share = slice(rank, None, world)
        self._sampler = check_sampler(sampler, source)
        self._pieces = -(-len(range(rank, batch_size, world)) // piece)
        self.batch_size = batch_size
        self.steps_per_epoch = len(source) // batch_size

    def batches(self, start: int, stop: int) -> Generator[tuple[RawBatch, ...]]:
        """Iterate over this process's part of the batches start, ..., stop - 1, each as a tuple of pieces."""
        plan = ShareSampler(
            self._order,
            len(self._maker.images),
            self.batch_size,
            self._share,
            start,
            stop,
            repeats=self._sampler in REPEATING,
            pieces=self._pieces,
        )
        images = self._maker.images
        # Arrays in memory need no decoding.
        again = stop - start > self.steps_per_epoch and not isinstance(images, Arrays)
        with keeping(len(images), workers=self._workers, again=again) as kept:
            maker = dataclasses.replace(self._maker, kept=kept)
            items = run(maker, self._workers, sampler=plan, start=start_worker, start_method=self._start_method)
            while pieces := tuple(itertools.islice(items, self._pieces)):
                yield pieces

    def _order(self, *, epoch: int) -> IntArray:
        n, seed = len(self._maker.images), self._maker.seed
        if self._sampler == "shuffled":  # not the stream of `epoch_order`: it decides numbers, so it stays
            return np.random.default_rng((_ORDER, seed, epoch)).permutation(n)
        return epoch_order(self._sampler, n, self._maker.labels, seed=seed, epoch=epoch)


def random_flip(probability: float) -> Callable[[Tensor], Tensor]:
    """Return a horizontal flip of some images, as a picklable function."""
    return functools.partial(_flip, probability)


def _flip(probability: float, image: Tensor) -> Tensor:
    # torch's own generator, which is seeded for every image before its view is made.
    return image.flip(2) if float(torch.rand(())) < probability else image
