"""One batch of augmented views, made in a worker process or in this one."""

import dataclasses
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sslbench.data.decode.handlers import DEFAULT, PictureDecoder, Reading, make_decoder
from sslbench.data.decode.picture import UnreadableImage, Wanted
from sslbench.data.decode.transforms import luminance
from sslbench.data.loading import loader
from sslbench.data.loading.loader import Unreadable
from sslbench.data.source import Images, Source
from sslbench.data.views import Augment
from sslbench.data.views.ops import make_view
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, SslbenchError
from sslbench.runtime.seeds import preserved_random_states

Indices = npt.NDArray[np.int64]
Item = tuple[int, Indices] | tuple[int, Indices, Indices]
"""(epoch, positions in the share[, how often each came before in this epoch])"""

MOST_TRIES = 1000
"""Images that are tried in place of one that cannot be read."""

_AUGMENTATION, _STAND_IN = 1, 2  # tell the random numbers of different uses apart


def rows_by_origin(origins: Sequence[str]) -> dict[str, Tensor]:
    """Name of a source -> int64, the rows of a batch that are from it; by name."""
    return {
        name: torch.tensor([row for row, origin in enumerate(origins) if origin == name])
        for name in sorted(set(origins))
    }


@dataclasses.dataclass(frozen=True)
class RawBatch:
    """A batch as it comes from the workers.

    Attributes:
        views: per view (B, C, h, w), channels-last in memory, uint8, or float32 from 0 to 255 where a picture has
            samples of 16 bits; large views first.
        labels: int64 (B,), positions in the classes; None unless every image has exactly one.
        indices: int64 (B,), positions in the source, of the images that are shown.
        stand_ins: bool (B,), images that are shown in the place of one that could not be read.
        unreadable: what could not be read on the way.
        origins: B names, of several sources at once which one each image is from; else empty.
    """

    views: tuple[Tensor, ...]
    labels: Tensor | None
    indices: Tensor
    stand_ins: Tensor
    unreadable: tuple[Unreadable, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def replaced(self) -> int:
        """How many could not be read."""
        return int(self.stand_ins.sum())

    def rows(self, rows: Tensor) -> "RawBatch":
        """Some of the images: int64 (n,), positions in the batch. What could not be read on the way is left out."""
        return RawBatch(
            views=tuple(view[rows] for view in self.views),
            labels=None if self.labels is None else self.labels[rows],
            indices=self.indices[rows],
            stand_ins=self.stand_ins[rows],
            origins=tuple(self.origins[row] for row in rows.tolist()) if self.origins else (),
        )

    def by_origin(self) -> dict[str, "RawBatch"]:
        """The images of each source, by its name: {"coco": ..., "photos": ...}; without those that have none here."""
        return {name: self.rows(rows) for name, rows in rows_by_origin(self.origins).items()}

    def pin_memory(self) -> "RawBatch":
        """The same in page-locked memory (torch's DataLoader calls this); the indices stay where they are."""
        views = tuple(view.pin_memory() for view in self.views)
        return dataclasses.replace(self, views=views, labels=None if self.labels is None else self.labels.pin_memory())


def share_of(source: Source, rank: int, world: int) -> Source:
    """The images of one of several processes: every `world`-th, for each process equally many."""
    if world == 1:
        return source
    return source.select(np.arange(rank, len(source) // world * world, world))


def training_decoder(images: Images, reading: Reading, channels: int) -> PictureDecoder:
    """The decoder for training on images of so many channels.

    RGB has 8 bits. Other channels keep 16, where there are: what they measure often fills a small part of that range.

    Raises:
        UsageError: a decoder's name leads nowhere.
    """
    wanted = Wanted(3 if channels == 1 else channels, deep=channels != 3, max_pixels=reading.max_pixels)
    return make_decoder(reading.decoder, wanted, images)


def as_trained(image: Tensor, channels: int) -> Tensor:
    """(C, H, W) as it was decoded; of a picture that is to have one channel, the luminance (1, H, W)."""
    return luminance(image[None])[0].to(image.dtype) if channels == 1 else image


@dataclasses.dataclass(frozen=True)
class BatchMaker(Dataset[RawBatch | SslbenchError]):
    """Makes the batch of an `Item`. Errors for the user are returned: DataLoader would raise them as a traceback.

    Attributes:
        name: of the source.
        images: of this process.
        labels: int64, one per image, or None.
        views: (side, function that makes it) per view.
        seed: of the augmentation.
        rank: of the process.
        world: processes; image i of this one is number rank + world * i in the source.
        decoder: of the images.
        channels: of the views.
    """

    name: str
    images: Images
    labels: npt.NDArray[np.int64] | None
    views: tuple[tuple[int, Callable[[Tensor], Tensor]], ...]
    seed: int
    rank: int
    world: int
    decoder: PictureDecoder
    channels: int = 3

    @classmethod
    def of(
        cls,
        share: Source,
        augment: Augment,
        *,
        seed: int,
        rank: int,
        world: int,
        reading: Reading = DEFAULT,
        channels: int = 3,
    ) -> "BatchMaker":
        """For the images of one process."""
        decoder = training_decoder(share.images, reading, channels)
        labels = np.asarray(share.labels.values, dtype=np.int64) if share.labels.kind == "single" else None
        views = tuple((view.size, make_view(view)) for view in augment.expanded())
        return cls(share.name, share.images, labels, views, seed, rank, world, decoder, channels)

    def __getitem__(self, item: Item) -> RawBatch | SslbenchError:
        try:
            with preserved_random_states():
                return self._batch(*item)
        except SslbenchError as error:
            return error

    def _batch(self, epoch: int, chosen: Indices, before: Indices | None = None) -> RawBatch:
        views = [torch.empty((len(chosen), size, size, self.channels), dtype=torch.uint8) for size, _ in self.views]
        shown = chosen.copy()
        taken = set(chosen.tolist())
        unreadable: list[Unreadable] = []
        for row, position in enumerate(chosen.tolist()):
            image = self._read(position, unreadable)
            if image is None:
                position, image = self._stand_in(epoch, position, taken, unreadable)
                shown[row] = position
            if image.is_floating_point() and not views[0].is_floating_point():
                views = [view.float() for view in views]
            self._seed(epoch, position, 0 if before is None else int(before[row]))
            for view, (_, make) in zip(views, self.views, strict=True):
                view[row] = make(image).permute(1, 2, 0)
        return RawBatch(
            views=tuple(view.permute(0, 3, 1, 2) for view in views),
            labels=None if self.labels is None else torch.from_numpy(self.labels[shown]),
            indices=torch.from_numpy(self.rank + self.world * shown),
            stand_ins=torch.from_numpy(shown != chosen),
            unreadable=tuple(unreadable),
        )

    def _read(self, position: int, unreadable: list[Unreadable]) -> Tensor | None:
        try:
            return as_trained(loader.read(self.images, position, self.decoder).image, self.channels)
        except UnreadableImage as error:
            unreadable.append((self._index(position), error.path, error.reason))
            return None

    def _stand_in(self, epoch: int, position: int, taken: set[int], unreadable: list[Unreadable]) -> tuple[int, Tensor]:
        """A readable image that is not in the batch yet."""
        n = len(self.images)
        generator = np.random.default_rng((_STAND_IN, self.seed, epoch, self._index(position)))
        for candidate in generator.choice(n, min(n, MOST_TRIES), replace=False).tolist():
            if candidate not in taken and (image := self._read(candidate, unreadable)) is not None:
                taken.add(candidate)
                return candidate, image
        raise self._too_few(unreadable)

    def _too_few(self, unreadable: list[Unreadable]) -> DataError:
        found = {path: reason for _, path, reason in unreadable}
        files = some([f"{path} ({reason})" for path, reason in found.items()])
        return DataError(
            f"{self.name}: {counted(len(found), 'image')} tried for one batch cannot be read, and no other is left to "
            f"stand in: {files}",
            "sslbench check-data lists all of them. Mend or remove them, or lower batch_size.",
        )

    def _index(self, position: int) -> int:
        return self.rank + self.world * position

    def _seed(self, epoch: int, position: int, before: int) -> None:
        """Seeds torch, numpy and random, which a view may draw from, for one image in one epoch.

        An image that comes again in the same epoch has other views.
        """
        again = (before,) if before else ()
        sequence = np.random.SeedSequence((_AUGMENTATION, self.seed, epoch, self._index(position), *again))
        first, second, third = (int(word) for word in sequence.generate_state(3, np.uint64))
        torch.default_generator.manual_seed(first)  # torch.manual_seed would set up CUDA's as well
        np.random.seed(second % 2**32)
        random.seed(third)


def start_worker(worker: int) -> None:
    """One thread per worker, and no reaction to signals that are meant for the training process.

    Ctrl-C, and the signals by which a cluster announces the end of a job, reach all processes at once. The training
    process finishes its step, saves and ends the workers; it could not if they were gone. When it has ended without
    that, they notice within seconds (DataLoader sees to it).
    """
    import cv2

    torch.set_num_threads(1)
    cv2.setNumThreads(0)  # 1 would look for the threads of the parent, which a fork does not copy, and crash
    for name in ("SIGINT", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None and hasattr(signal, "sigwaitinfo"):
        # Blocked rather than ignored: multiprocessing itself ends workers that hang by SIGTERM.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_when_told, args=(parent.pid,), daemon=True).start()


def _end_when_told(parent: int | None) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
