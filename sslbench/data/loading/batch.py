"""Batches of augmented views, made in a worker process or in this one."""

import dataclasses
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from sslbench.arrays import IntArray
from sslbench.data.clips import frames_of
from sslbench.data.decode.handlers import DEFAULT, PictureDecoder, Reading, make_decoder
from sslbench.data.decode.picture import OtherChannels, UnreadableImage, Wanted
from sslbench.data.decode.transforms import luminance, resize_and_crop
from sslbench.data.loading import loader
from sslbench.data.loading.kept import KeptSamples
from sslbench.data.loading.loader import Unreadable
from sslbench.data.loading.samplers import occurrences
from sslbench.data.source import Source
from sslbench.data.views import Augment
from sslbench.data.views.ops import Crop, make_views
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, SslbenchError
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.seeds import preserved_random_states
from sslbench.targets.classes import Classes
from sslbench.targets.target import Images

Item = tuple[int, IntArray] | tuple[int, IntArray, IntArray]
"""(epoch, positions in the source[, earlier occurrences of each in this epoch])"""

MOST_TRIES = 1000
"""Maximum number of images tried in place of an unreadable one."""

_AUGMENTATION, _STAND_IN = 1, 2  # separate random streams


def rows_by_origin(origins: Sequence[str]) -> dict[str, Tensor]:
    """Return the rows of a batch that come from each source, int64, by the sorted names."""
    return {
        name: torch.tensor([row for row, origin in enumerate(origins) if origin == name])
        for name in sorted(set(origins))
    }


@dataclasses.dataclass(frozen=True)
class RawBatch:
    """Batch of views from the workers, not normalised.

    Attributes:
        views: per view (B, C, h, w), channels-last in memory, uint8, or float32 from 0 to 255 where a picture has
            16-bit samples; large views first.
        labels: int64 (B,), class numbers; None unless every image has exactly one class.
        indices: int64 (B,), positions in the source of the images in the batch.
        stand_ins: bool (B,), images that replace an unreadable one.
        unreadable: images that could not be read.
        origins: for joined sources, the name of each image's source (B names); otherwise empty.
        boxes: float32 (B, V, 4), edges of each view in its picture in pixels: top, left, bottom, right, with right
            below left in a mirrored view; of a grid's views, those of the whole crop.
        colours: float32 (B, V, colours.VALUES), changes of colours that are left to the training device; else None.
    """

    views: tuple[Tensor, ...]
    labels: Tensor | None
    indices: Tensor
    stand_ins: Tensor
    unreadable: tuple[Unreadable, ...] = ()
    origins: tuple[str, ...] = ()
    boxes: Tensor | None = None
    colours: Tensor | None = None

    @property
    def replaced(self) -> int:
        """Number of images that replace an unreadable one."""
        return int(self.stand_ins.sum())

    def rows(self, rows: Tensor) -> "RawBatch":
        """Return the images at `rows`, int64 (n,) positions in the batch, without the list of unreadable ones."""
        return RawBatch(
            views=tuple(view[rows] for view in self.views),
            labels=None if self.labels is None else self.labels[rows],
            indices=self.indices[rows],
            stand_ins=self.stand_ins[rows],
            origins=tuple(self.origins[row] for row in rows.tolist()) if self.origins else (),
            boxes=None if self.boxes is None else self.boxes[rows],
            colours=None if self.colours is None else self.colours[rows],
        )

    def by_origin(self) -> dict[str, "RawBatch"]:
        """Return the images of each source in the batch by its name: {"coco": ..., "photos": ...}."""
        return {name: self.rows(rows) for name, rows in rows_by_origin(self.origins).items()}

    def pin_memory(self) -> "RawBatch":
        """Return the batch with views and labels in page-locked memory (called by torch's DataLoader)."""
        views = tuple(view.pin_memory() for view in self.views)
        return dataclasses.replace(self, views=views, labels=None if self.labels is None else self.labels.pin_memory())


def training_decoder(images: Images, reading: Reading, channels: int) -> PictureDecoder:
    """Return the decoder for training on images of `channels` channels."""
    # RGB has 8 bits. Other channels keep 16 bits: measurements often fill a small part of that range.
    grey = channels == 1
    wanted = Wanted(3 if grey else channels, deep=channels != 3, max_pixels=reading.max_pixels, luminance=grey)
    return make_decoder(reading.decoder, wanted, images)


def as_trained(image: Tensor, channels: int) -> Tensor:
    """Return a decoded picture (C, H, W); for one channel its luminance (1, H, W)."""
    return luminance(image[None])[0].to(image.dtype) if channels == 1 else image


@dataclasses.dataclass(frozen=True)
class BatchMaker(Dataset[RawBatch | SslbenchError]):
    """Dataset that maps an `Item` to its batch. SslbenchErrors are returned, since DataLoader would raise tracebacks.

    Attributes:
        name: name of the source.
        images: images of the source.
        labels: int64, one per image, or None.
        views: (side, number, function that makes them) of the views of each crop.
        seed: of the augmentation.
        decoder: of the images.
        channels: of the views.
        resized: resize and crop of every picture before its views; None: none.
        kept: decoded pictures of earlier epochs; None: every picture is decoded each time.
    """

    name: str
    images: Images
    labels: npt.NDArray[np.int64] | None
    views: tuple[tuple[int, int, Callable[[Tensor], Crop]], ...]
    seed: int
    decoder: PictureDecoder
    channels: int = 3
    resized: Preprocessing | None = None
    kept: KeptSamples | None = None

    @classmethod
    def of(
        cls,
        source: Source,
        augment: Augment,
        *,
        seed: int,
        reading: Reading = DEFAULT,
        channels: int = 3,
        colours: bool = True,
    ) -> "BatchMaker":
        """Return the maker of batches of a source's images; without `colours` their changes are left to the device."""
        decoder = training_decoder(source.images, reading, channels)
        labels = np.asarray(source.target.values, dtype=np.int64) if isinstance(source.target, Classes) else None
        views = tuple(
            (view.size, view.cells, make_views(view, channels, colours=colours)) for view in augment.expanded()
        )
        return cls(source.name, source.images, labels, views, seed, decoder, channels)

    def __getitem__(self, item: Item) -> RawBatch | SslbenchError:
        try:
            with preserved_random_states():
                return self._batch(*item)
        except SslbenchError as error:
            return error

    def _batch(self, epoch: int, chosen: IntArray, before: IntArray | None = None) -> RawBatch:
        sizes = [size for size, count, _ in self.views for _ in range(count)]
        channels = self.channels * frames_of(self.images)
        views = [torch.empty((len(chosen), size, size, channels), dtype=torch.uint8) for size in sizes]
        boxes, colours = torch.empty(len(chosen), len(sizes), 4), list[list[Sequence[float]]]()
        # Images that stand in for unreadable ones change what is shown, not what was chosen.
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
            # The draws depend on the image and the epoch alone, not on the worker or the batch.
            self._seed(epoch, position, 0 if before is None else int(before[row]))
            crops = [make(image) for _, _, make in self.views]
            for view, each in zip(views, (each for crop in crops for each in crop.views), strict=True):
                view[row] = each.permute(1, 2, 0)
            boxes[row] = torch.tensor([crop.box for crop in crops for _ in crop.views])
            colours.append([crop.colours for crop in crops])
        return RawBatch(
            views=tuple(view.permute(0, 3, 1, 2) for view in views),
            labels=None if self.labels is None else torch.from_numpy(self.labels[shown]),
            indices=torch.from_numpy(shown),
            stand_ins=torch.from_numpy(shown != chosen),
            unreadable=tuple(unreadable),
            boxes=boxes,
            colours=torch.tensor(colours) if any(colours[0]) else None,
        )

    def _read(self, position: int, unreadable: list[Unreadable]) -> Tensor | None:
        try:
            (image,) = self._decode(position) if self.kept is None else self.kept.sample(position, self._decode)
        except UnreadableImage as error:
            unreadable.append((position, error.path, error.reason))
            return None
        return image

    def _decode(self, position: int) -> tuple[Tensor]:
        image = as_trained(loader.read(self.images, position, self.decoder).image, self.channels)
        try:
            return (image if self.resized is None else resize_and_crop(image, self.resized),)
        except ValueError as error:
            raise UnreadableImage(self.images.path(position), str(error)) from error

    def _stand_in(self, epoch: int, position: int, taken: set[int], unreadable: list[Unreadable]) -> tuple[int, Tensor]:
        """Return a readable image that is not in the batch yet, and its position."""
        n = len(self.images)
        generator = np.random.default_rng((_STAND_IN, self.seed, epoch, position))
        for candidate in generator.choice(n, min(n, MOST_TRIES), replace=False).tolist():
            if candidate not in taken and (image := self._read(candidate, unreadable)) is not None:
                taken.add(candidate)
                return candidate, image
        found = {path: reason for _, path, reason in unreadable}
        files = some([f"{path} ({reason})" for path, reason in found.items()])
        raise DataError(
            f"{self.name}: {counted(len(found), 'image')} tried for one batch cannot be read, and no replacement is "
            f"left: {files}",
            "sslbench check-data lists them. Repair or remove them, or lower batch_size.",
        )

    def _seed(self, epoch: int, position: int, before: int) -> None:
        """Seed torch, numpy and random for the views of one image in one epoch."""
        # Repetitions of an image in the same epoch have other views.
        again = (before,) if before else ()
        sequence = np.random.SeedSequence((_AUGMENTATION, self.seed, epoch, position, *again))
        first, second, third = (int(word) for word in sequence.generate_state(3, np.uint64))
        torch.default_generator.manual_seed(first)  # torch.manual_seed would set up CUDA's as well
        # NumPy's global generator takes no more than 32 bits.
        np.random.seed(second % 2**32)
        random.seed(third)


@dataclasses.dataclass(frozen=True)
class ShareSampler(Sampler[Item]):
    """Sampler of one process's part of each batch, in pieces: (epoch, positions in the source[, occurrences]).

    Attributes:
        order: order of the images in an epoch, by its number.
        n: number of images.
        batch_size: images per batch of all processes.
        share: rows of a batch that are this process's.
        start: first batch.
        stop: batch after the last one.
        repeats: an epoch may have an image several times.
        pieces: number of pieces of a part.
    """

    order: Callable[..., IntArray]
    n: int
    batch_size: int
    share: slice
    start: int
    stop: int
    repeats: bool = False
    pieces: int = 1

    def __len__(self) -> int:
        return (self.stop - self.start) * self.pieces

    def __iter__(self) -> Iterator[Item]:
        steps = self.n // self.batch_size
        shuffled, order, again = -1, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        for position in range(self.start, self.stop):
            epoch, step = divmod(position, steps)
            if epoch != shuffled:  # the order of one epoch is held at a time
                shuffled, order = epoch, self.order(epoch=epoch)
                again = occurrences(order) if self.repeats else order
            rows = slice(step * self.batch_size, (step + 1) * self.batch_size)
            pieces = (np.array_split(each[rows][self.share], self.pieces) for each in (order, again))
            for positions, earlier in zip(*pieces, strict=True):
                yield (epoch, positions, earlier) if self.repeats else (epoch, positions)


def start_worker(worker: int) -> None:
    """Limit a worker to one thread, and make it ignore signals meant for the training process."""
    # Ctrl-C and the signals that announce the end of a cluster job reach all processes at once. The training process
    # needs its workers to finish the step and save, and then ends them. If it dies first, DataLoader ends them in
    # seconds.
    import cv2

    torch.set_num_threads(1)
    cv2.setNumThreads(0)  # 1 would access the parent's threads, which a fork does not copy, and crash
    for name in ("SIGINT", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None and hasattr(signal, "sigwaitinfo"):
        # Blocked rather than ignored: multiprocessing itself ends workers that hang by SIGTERM.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_parents_signal, args=(parent.pid,), daemon=True).start()


def _exit_on_parents_signal(parent: int | None) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


SAMPLE = 512
"""Default number of images: the standard error of a channel's mean is then a few hundredths of its deviation."""

_DIGITS = 5
_TRIES = 16


@dataclasses.dataclass(frozen=True)
class ChannelStatistics:
    """Statistics of every channel over a sample of images.

    Attributes:
        mean: per channel, of values scaled to 0..1.
        std: per channel, over all pixels of all images; 1 for a constant channel.
        images: number of images read.
        constant: numbers of the constant channels, from 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: int
    constant: tuple[int, ...] = ()


def first_look(source: Source, channels: int, *, reading: Reading = DEFAULT) -> tuple[str, int] | None:
    """Return (path, channels) of an image with other channels, if none of a few images has `channels`; else None."""
    # Training replaces single images with other channels, as it does unreadable ones.
    decoder = training_decoder(source.images, reading, channels)
    other: tuple[str, int] | None = None
    for index in np.unique(np.linspace(0, len(source) - 1, _TRIES).astype(int)).tolist():
        try:
            loader.read(source.images, index, decoder)
        except OtherChannels as error:
            other = other or (error.path, error.channels)
        except UnreadableImage:
            continue
        else:
            return None
    return other


def measure(
    source: Source, channels: int, *, reading: Reading = DEFAULT, sample: int = SAMPLE, seed: int = 0
) -> ChannelStatistics:
    """Return the statistics of at most `sample` random images; every image has the same weight, whatever its size."""
    # Unreadable images are left out. The numbers are rounded to five digits, so that the same data and seed give the
    # same.
    decoder = training_decoder(source.images, reading, channels)
    n = len(source)
    chosen = np.sort(np.random.default_rng(seed).permutation(n)[:sample])
    sums, squares, count = np.zeros(channels), np.zeros(channels), 0
    for index in chosen.tolist():
        try:
            image = as_trained(loader.read(source.images, index, decoder).image, channels)
        except UnreadableImage:
            continue
        values = image.to(torch.float64) / 255
        sums += values.mean((1, 2)).numpy()
        squares += values.square().mean((1, 2)).numpy()
        count += 1
    mean = sums / max(count, 1)
    std = np.sqrt(np.maximum(squares / max(count, 1) - mean**2, 0))
    # A channel that never changes would be divided by 0.
    constant = std < 10.0**-_DIGITS
    return ChannelStatistics(
        mean=tuple(round(float(value), _DIGITS) for value in mean),
        std=tuple(round(float(value), _DIGITS) for value in np.where(constant, 1.0, std)),
        images=count,
        constant=tuple(np.flatnonzero(constant).tolist()),
    )
