"""Batches of decoded pictures from worker processes: in order, each sample exactly once, memory independent of N."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from sslbench.data.decode.handlers import DEFAULT, PictureDecoder, Reading, make_decoder, picture_decoder, picture_of
from sslbench.data.decode.picture import Decoded, OtherChannels, UnreadableImage, UnreadFile, Wanted
from sslbench.data.decode.transforms import check_resized, resize_and_crop
from sslbench.data.sharded import by_shard
from sslbench.data.source import Source
from sslbench.data.workers import Computed, run
from sslbench.errors import DataError, SslbenchError
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.resources import StartMethod
from sslbench.targets.target import Images

Unreadable = tuple[int, str, str]
"""(index in the source, path, reason)"""


_SCAN_CHUNK = 64


@dataclasses.dataclass(frozen=True)
class PictureBatch:
    """Batch of consecutive samples of the requested ones.

    Attributes:
        indices: int64 (B,), positions in the source, in the requested order, without the unreadable ones.
        images: (B, C, h, w), channels-last in memory: uint8, or float32 from 0 to 255 where samples have 16 bits;
            (0, 3, 0, 0) when no image of the batch is readable.
        unreadable: the samples missing from `indices`.
        conversions: number of pictures by conversion.
        other_channels: (path, channels) of the first of the `unreadable` with other channels than wanted.
        unread: positions in the source of those of the `unreadable` whose file could not be read or has changed since
            it was hashed; it may be readable another time.
    """

    indices: npt.NDArray[np.int64]
    images: torch.Tensor
    unreadable: tuple[Unreadable, ...]
    conversions: Counter[str]
    other_channels: tuple[str, int] | None = None
    unread: tuple[int, ...] = ()

    def pin_memory(self) -> "PictureBatch":
        """Return the batch with its images in page-locked memory (called by torch's DataLoader)."""
        return dataclasses.replace(self, images=self.images.pin_memory())


def batches(
    source: Source,
    indices: npt.NDArray[np.int64],
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    workers: int,
    start_method: StartMethod = "auto",
    mixed_sizes: bool = False,
) -> Iterator[PictureBatch]:
    """Iterate over batches of resized and cropped pictures, in the order of `indices`.

    `indices`: (n,) distinct positions in the source, in any order.
    """
    chunks = _chunks(source, indices, batch_size)
    first: tuple[tuple[int, int], str] | None = None
    decoder = picture_decoder(preprocessing, source.images)
    dataset = Computed(functools.partial(_batches, source.images, preprocessing, decoder), chunks)
    items = run(dataset, workers, start_method=start_method)
    for chunk, by_size in zip(chunks, items, strict=True):
        # The first batch of a chunk names all that is unreadable in it.
        missing = np.array([index for index, _, _ in by_size[0].unreadable], dtype=np.int64)
        delivered = np.concatenate([*(batch.indices for batch in by_size), missing])
        if not np.array_equal(np.sort(delivered), np.sort(chunk)):
            raise RuntimeError(f"asked for the samples {chunk.tolist()}, got {delivered.tolist()}")
        for batch in by_size:
            if len(batch.indices) and not mixed_sizes:
                size, path = tuple(batch.images.shape[2:]), source.images.path(int(batch.indices[0]))
                first = first or (size, path)
                if size != first[0]:
                    (height, width), other = first
                    raise DataError(
                        f"images of different sizes cannot be put in one batch: {other} is {width} x {height} pixels "
                        f"(width x height) and {path} is {size[1]} x {size[0]}",
                        "Give a crop, or a resize to an exact height and width.",
                    )
        yield from by_size


@dataclasses.dataclass(frozen=True)
class Survey:
    """Result of decoding pictures of a source.

    Attributes:
        unreadable: pictures that cannot be read, in the requested order.
        conversions: number of the others by conversion.
        channels: channels -> positions of the others, in the requested order.
    """

    unreadable: tuple[Unreadable, ...]
    conversions: Counter[str]
    channels: dict[int, list[int]]


def survey(
    source: Source,
    indices: npt.NDArray[np.int64],
    workers: int,
    progress: Callable[[int, int], None] | None = None,
    *,
    preprocessing: Preprocessing | None = None,
    reading: Reading = DEFAULT,
) -> Survey:
    """Decode every picture and return the unreadable ones, with channels and conversions of the others.

    `indices`: (n,) distinct positions in the source; `progress`: called with (samples done, total); `preprocessing`: of
    the backbone; None: any number of channels.
    """
    chunks = _chunks(source, by_shard(source.images, indices), _SCAN_CHUNK)
    unreadable: list[Unreadable] = []
    conversions: Counter[str] = Counter()
    channels: dict[int, list[int]] = {}
    done = 0
    if preprocessing is None:
        decoder = make_decoder(reading.decoder, Wanted(3, deep=True, max_pixels=reading.max_pixels), source.images)
    else:
        decoder = picture_decoder(preprocessing, source.images)
    dataset = Computed(functools.partial(_survey, source.images, preprocessing, decoder), chunks)
    items = run(dataset, workers, start_method=reading.start_method)
    for chunk, part in zip(chunks, items, strict=True):
        unreadable.extend(part.unreadable)
        conversions += part.conversions
        for number, rows in part.channels.items():
            channels.setdefault(number, []).extend(rows)
        done += len(chunk)
        if progress is not None:
            progress(done, len(indices))
    # Images were read shard by shard; the answers follow the order that was asked for.
    asked = {index: i for i, index in enumerate(indices.tolist())}
    return Survey(
        tuple(sorted(unreadable, key=lambda missing: asked[missing[0]])),
        conversions,
        {number: sorted(rows, key=asked.__getitem__) for number, rows in sorted(channels.items())},
    )


def _chunks(source: Source, indices: npt.NDArray[np.int64], size: int) -> list[npt.NDArray[np.int64]]:
    chosen = np.asarray(indices, dtype=np.int64)
    if size < 1:
        raise ValueError(f"a batch of {size} samples")
    if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(source)):
        raise ValueError(f"indices reach from {chosen.min()} to {chosen.max()}, the source has {len(source)} samples")
    if len(np.unique(chosen)) != len(chosen):
        raise ValueError("an index is given twice")
    return [chosen[start : start + size] for start in range(0, len(chosen), size)]


def _batches(
    images: Images, preprocessing: Preprocessing, decoder: PictureDecoder, chunk: npt.NDArray[np.int64]
) -> list[PictureBatch]:
    """Return the batches of a chunk, one per size of pictures, the first with all that is unreadable."""
    by_size: dict[torch.Size, list[tuple[int, torch.Tensor]]] = {}
    unreadable: list[Unreadable] = []
    conversions: Counter[str] = Counter()
    other: tuple[str, int] | None = None
    unread: list[int] = []
    for index in chunk.tolist():
        try:
            decoded = read(images, index, decoder)
            try:
                picture = resize_and_crop(decoded.image, preprocessing, decoded.full)
            except ValueError as error:
                raise UnreadableImage(images.path(index), str(error)) from error
        except UnreadableImage as error:
            unreadable.append((index, error.path, error.reason))
            if other is None and isinstance(error, OtherChannels):
                other = (error.path, error.channels)
            if isinstance(error, UnreadFile):
                unread.append(index)
            continue
        by_size.setdefault(picture.shape, []).append((index, picture))
        conversions.update(decoded.conversions)
    first, *others = [_batch(rows) for rows in by_size.values()] or [_batch([])]
    first = dataclasses.replace(
        first, unreadable=tuple(unreadable), conversions=conversions, other_channels=other, unread=tuple(unread)
    )
    return [first, *others]


def _batch(rows: list[tuple[int, torch.Tensor]]) -> PictureBatch:
    indices = np.array([index for index, _ in rows], dtype=np.int64)
    pictures = [picture for _, picture in rows]
    if len({picture.dtype for picture in pictures}) > 1:  # 8 and 16 bits mixed
        pictures = [picture.to(torch.float32) for picture in pictures]
    # Stacked with interleaved channels, as decoders write them and convolutions are fastest.
    stacked = torch.stack([p.permute(1, 2, 0) for p in pictures]) if pictures else torch.empty((0, 0, 0, 3)).byte()
    return PictureBatch(indices, stacked.permute(0, 3, 1, 2), (), Counter())


def _survey(
    images: Images, preprocessing: Preprocessing | None, decoder: PictureDecoder, chunk: npt.NDArray[np.int64]
) -> Survey:
    """Return the survey of a chunk."""
    unreadable: list[Unreadable] = []
    conversions: Counter[str] = Counter()
    channels: dict[int, list[int]] = {}
    for index in chunk.tolist():
        try:
            try:
                decoded = read(images, index, decoder)
            except OtherChannels as error:
                if preprocessing is not None:
                    raise
                as_it_is = dataclasses.replace(decoder.wanted, channels=error.channels)
                decoded = read(images, index, decoder.wanting(as_it_is))
            height, width = decoded.full or decoded.image.shape[1:]
            try:
                if preprocessing is not None:
                    check_resized(height, width, preprocessing)
            except ValueError as error:
                raise UnreadableImage(images.path(index), str(error)) from error
        except UnreadableImage as error:
            unreadable.append((index, error.path, error.reason))
            continue
        conversions.update(decoded.conversions)
        channels.setdefault(decoded.image.shape[0] // decoded.frames, []).append(index)
    return Survey(tuple(unreadable), conversions, channels)


def read(images: Images, index: int, decoder: PictureDecoder | None = None) -> Decoded:
    """Read and decode one image.

    `decoder`: see `picture_decoder`; None: 8-bit RGB, with the source's own handlers.
    """
    path = images.path(index)
    try:
        return picture_of(images, index, decoder or picture_decoder(None, images))
    except (UnreadableImage, SslbenchError):
        raise
    except OSError as error:
        raise UnreadFile(path, f"cannot be read ({error.strerror or error})") from error
    except Exception as error:
        error.add_note(f"while reading {path}")
        raise
