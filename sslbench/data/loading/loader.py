"""Batches of decoded pictures from worker processes: in order, each sample exactly once, memory independent of N."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from sslbench.data.decode.handlers import DEFAULT, PictureDecoder, Reading, make_decoder, picture_decoder, picture_of
from sslbench.data.decode.picture import Decoded, OtherChannels, UnreadableImage, UnreadFile, Wanted
from sslbench.data.decode.transforms import check_resized, resize_and_crop
from sslbench.data.sharded import by_shard
from sslbench.data.source import Source
from sslbench.data.workers import run
from sslbench.errors import DataError, SslbenchError
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.resources import StartMethod
from sslbench.targets.target import Images

__all__ = ["PictureBatch", "Unreadable", "batches", "read", "run", "scan"]

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
            it
            was hashed; it may be readable another time.
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
    items = run(_BatchDataset(source.images, chunks, preprocessing), workers, start_method=start_method)
    for chunk, by_size in zip(chunks, items, strict=True):
        delivered = np.concatenate([batch.indices for batch in by_size])
        # The first batch of a chunk names all that is unreadable in it.
        missing = np.array([index for index, _, _ in by_size[0].unreadable], dtype=np.int64)
        delivered = np.concatenate([delivered, missing])
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


def scan(
    source: Source,
    indices: npt.NDArray[np.int64],
    workers: int,
    progress: Callable[[int, int], None] | None = None,
    *,
    preprocessing: Preprocessing | None = None,
    reading: Reading = DEFAULT,
) -> list[Unreadable]:
    """Decode every picture and return the unreadable ones, in the order of `indices`.

    `indices`: (n,) distinct positions in the source; `progress`: called with (samples done, total); `preprocessing`: of
    the backbone, whose decoder, channels and limits apply. None: any number of channels.
    """
    return list(survey(source, indices, workers, progress, preprocessing=preprocessing, reading=reading).unreadable)


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
    items = run(
        _SurveyDataset(source.images, chunks, preprocessing, reading), workers, start_method=reading.start_method
    )
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


class _BatchDataset(Dataset[list[PictureBatch] | SslbenchError]):
    """Dataset of the batches of each chunk, one per size of pictures, the first with all that is unreadable.

    SslbenchErrors are returned, since DataLoader would raise them as text of a traceback.
    """

    def __init__(self, images: Images, chunks: list[npt.NDArray[np.int64]], preprocessing: Preprocessing) -> None:
        self.images, self.chunks, self.preprocessing = images, chunks, preprocessing
        self.decoder = picture_decoder(preprocessing, images)

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, item: int) -> list[PictureBatch] | SslbenchError:
        by_size: dict[torch.Size, list[tuple[int, torch.Tensor]]] = {}
        unreadable: list[Unreadable] = []
        conversions: Counter[str] = Counter()
        other: tuple[str, int] | None = None
        unread: list[int] = []
        try:
            for index in self.chunks[item].tolist():
                try:
                    decoded = read(self.images, index, self.decoder)
                    picture = self._transform(decoded, index)
                except UnreadableImage as error:
                    unreadable.append((index, error.path, error.reason))
                    if other is None and isinstance(error, OtherChannels):
                        other = (error.path, error.channels)
                    if isinstance(error, UnreadFile):
                        unread.append(index)
                    continue
                by_size.setdefault(picture.shape, []).append((index, picture))
                conversions.update(decoded.conversions)
        except SslbenchError as error:
            return error
        found = [_batch(rows) for rows in by_size.values()] or [_batch([])]
        first = dataclasses.replace(
            found[0], unreadable=tuple(unreadable), conversions=conversions, other_channels=other, unread=tuple(unread)
        )
        return [first, *found[1:]]

    def _transform(self, decoded: Decoded, index: int) -> torch.Tensor:
        try:
            return resize_and_crop(decoded.image, self.preprocessing, decoded.full)
        except ValueError as error:
            raise UnreadableImage(self.images.path(index), str(error)) from error


def _batch(rows: list[tuple[int, torch.Tensor]]) -> PictureBatch:
    indices = np.array([index for index, _ in rows], dtype=np.int64)
    pictures = [picture for _, picture in rows]
    if len({picture.dtype for picture in pictures}) > 1:  # 8 and 16 bits mixed
        pictures = [picture.to(torch.float32) for picture in pictures]
    # Stacked with interleaved channels, as decoders write them and convolutions are fastest.
    stacked = torch.stack([p.permute(1, 2, 0) for p in pictures]) if pictures else torch.empty((0, 0, 0, 3)).byte()
    return PictureBatch(indices, stacked.permute(0, 3, 1, 2), (), Counter())


class _SurveyDataset(Dataset[Survey | SslbenchError]):
    """Dataset of the surveys of each chunk."""

    def __init__(
        self, images: Images, chunks: list[npt.NDArray[np.int64]], preprocessing: Preprocessing | None, reading: Reading
    ) -> None:
        self.images, self.chunks, self.preprocessing, self.reading = images, chunks, preprocessing, reading
        self.decoder = self._decoder(3) if preprocessing is None else picture_decoder(preprocessing, images)

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, item: int) -> Survey | SslbenchError:
        unreadable: list[Unreadable] = []
        conversions: Counter[str] = Counter()
        channels: dict[int, list[int]] = {}
        try:
            for index in self.chunks[item].tolist():
                try:
                    decoded = self._read(index)
                    self._check_resize(decoded, index)
                except UnreadableImage as error:
                    unreadable.append((index, error.path, error.reason))
                    continue
                conversions.update(decoded.conversions)
                channels.setdefault(decoded.image.shape[0], []).append(index)
        except SslbenchError as error:
            return error
        return Survey(tuple(unreadable), conversions, channels)

    def _decoder(self, channels: int) -> PictureDecoder:
        wanted = Wanted(channels, deep=True, max_pixels=self.reading.max_pixels)
        return make_decoder(self.reading.decoder, wanted, self.images)

    def _read(self, index: int) -> Decoded:
        try:
            return read(self.images, index, self.decoder)
        except OtherChannels as error:
            if self.preprocessing is not None:
                raise
            return read(self.images, index, self._decoder(error.channels))

    def _check_resize(self, decoded: Decoded, index: int) -> None:
        if self.preprocessing is not None:
            height, width = decoded.full or (decoded.image.shape[1], decoded.image.shape[2])
            try:
                check_resized(height, width, self.preprocessing)
            except ValueError as error:
                raise UnreadableImage(self.images.path(index), str(error)) from error


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
