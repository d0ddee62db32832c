"""Augmented views with labels for training on top of a frozen backbone: the same batches for any number of processes.

`TrainingData` gives every process images of its own. Here all processes share one order, and each takes its part of
every batch, so one process and eight see the same images in the same update. Everything random is drawn from (seed,
epoch) for the order and from (seed, epoch, index) for the augmentation: a position says it all.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Generator, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from sslbench.data.decode.handlers import DEFAULT, Reading
from sslbench.data.decode.transforms import resize_and_crop
from sslbench.data.loading import loader
from sslbench.data.loading.batch import BatchMaker, Item, RawBatch, start_worker
from sslbench.data.source import Source
from sslbench.data.views import Augment, View
from sslbench.data.wording import counted
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing

_ORDER = 0  # tells the random numbers of the order from those of the augmentation


class EpochBatches:
    """Batches of one view per image, in pieces; an epoch consists of full batches, the images left over vary.

    Attributes:
        steps_per_epoch: batches in one epoch.
        batch_size: images per batch, of all processes together.
    """

    def __init__(  # noqa: PLR0913  what is read, how, and for which of the processes
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
    ) -> None:
        """Checks that there is a full batch; reads no image yet.

        Args:
            source: the images of all processes.
            view: what is done to each image, or a function from uint8 (3, H, W) to uint8 (3, size, size).
            size: side of the view.
            batch_size: images per batch, all processes together.
            piece: a process gets its part of a batch in pieces of at most so many images, so that memory does not grow
                with the batch.
            seed: of the order and the augmentation.
            share: number of this process, and how many there are.
            workers: processes that decode and augment; 0: this one.
            reading: the decoder, its limit, and how the workers are started.

        Raises:
            UsageError: a batch is larger than the source, or smaller than the number of processes; a decoder's name
                leads nowhere.
        """
        if batch_size > len(source):
            raise UsageError(
                f"batch_size={batch_size:,} does not fit: {source.name} has {counted(len(source), 'image')} to train "
                "on",
                f"Give batch_size={_power_of_two(len(source))} or less.",
            )
        rank, world = share
        if batch_size < world:
            raise UsageError(f"batch_size={batch_size} is too small for {world} processes")
        augment = Augment(views=(view if isinstance(view, View) else View(size=size),))
        maker = BatchMaker.of(source, augment, seed=seed, rank=0, world=1, reading=reading)
        if not isinstance(view, View):
            maker = dataclasses.replace(maker, views=((size, view),))
        self._maker, self._workers, self._start_method = maker, workers, reading.start_method
        self._share = slice(rank, None, world)
        self._pieces = -(-len(range(rank, batch_size, world)) // piece)
        self.batch_size = batch_size
        self.steps_per_epoch = len(source) // batch_size

    def batches(self, start: int, stop: int) -> Generator[tuple[RawBatch, ...]]:
        """This process's part of the batches at the positions start, ..., stop - 1, each in pieces.

        Raises:
            DataError: a worker was killed, or hardly any image can be read.
        """
        plan = _Plan(len(self._maker.images), self.batch_size, self._maker.seed, self._share, self._pieces, start, stop)
        items = loader.run(
            self._maker, self._workers, sampler=plan, start=start_worker, start_method=self._start_method
        )
        while pieces := tuple(itertools.islice(items, self._pieces)):
            yield pieces


@dataclasses.dataclass(frozen=True)
class _Plan(Sampler[Item]):
    """What each piece consists of, in turn: (epoch, positions in the source)."""

    n: int
    batch_size: int
    seed: int
    share: slice
    pieces: int
    start: int
    stop: int

    def __len__(self) -> int:
        return (self.stop - self.start) * self.pieces

    def __iter__(self) -> Iterator[Item]:
        steps = self.n // self.batch_size
        shuffled, order = -1, np.empty(0, dtype=np.int64)
        for position in range(self.start, self.stop):
            epoch, step = divmod(position, steps)
            if epoch != shuffled:
                shuffled = epoch
                order = np.random.default_rng((_ORDER, self.seed, epoch)).permutation(self.n)
            batch = order[step * self.batch_size : (step + 1) * self.batch_size]
            for piece in np.array_split(batch[self.share], self.pieces):
                yield epoch, piece


def evaluation_view(preprocessing: Preprocessing, flip: float) -> Callable[[Tensor], Tensor]:
    """The evaluation transform, flipped now and then, as a function that can be sent to other processes.

    Args:
        preprocessing: resize, squash, crop and interpolation are used.
        flip: probability of a horizontal flip.
    """
    return functools.partial(_evaluation_view, preprocessing, flip)


def _evaluation_view(preprocessing: Preprocessing, flip: float, image: Tensor) -> Tensor:
    picture = resize_and_crop(image, preprocessing)
    return picture.flip(2) if float(torch.rand(())) < flip else picture


def _power_of_two(n: int) -> int:
    return 1 << max(n.bit_length() - 1, 0)
