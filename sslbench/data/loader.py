"""Batches of decoded pictures from worker processes: in order, each sample exactly once, memory flat in N."""

import dataclasses
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from sslbench.data.decode import Decoded, UnreadableImage, decode
from sslbench.data.source import Images, Source
from sslbench.data.transforms import resize_and_crop
from sslbench.errors import DataError, SslbenchError
from sslbench.preprocessing import Preprocessing

Unreadable = tuple[int, str, str]
"""(index in the source, path, reason)"""

_SCAN_CHUNK = 64


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some consecutive samples of those that were asked for.

    Attributes:
        indices: int64 (B,), positions in the source, in the order asked for; without the unreadable ones.
        images: uint8 (B, 3, h, w), channels-last in memory; (0, 3, 0, 0) when no image of the batch is readable.
        unreadable: the samples that are missing from `indices`.
        conversions: how many pictures were converted in which way.
    """

    indices: npt.NDArray[np.int64]
    images: torch.Tensor
    unreadable: tuple[Unreadable, ...]
    conversions: Counter[str]

    def pin_memory(self) -> "Batch":
        """The same with its images in page-locked memory (torch's DataLoader calls this)."""
        return dataclasses.replace(self, images=self.images.pin_memory())


def batches(
    source: Source, indices: npt.NDArray[np.int64], preprocessing: Preprocessing, *, batch_size: int, workers: int
) -> Iterator[Batch]:
    """The pictures of some samples, resized and cropped, in the order of `indices`.

    Args:
        source: where they come from.
        indices: (n,) distinct positions in the source, in any order.
        preprocessing: resize, crop and interpolation are used; normalisation is left to the compute device.
        batch_size: samples per batch, unreadable ones counted; the last batch may be smaller.
        workers: processes that read and decode; 0 does it in this process.

    Raises:
        DataError: pictures come out with different sizes, or a worker was killed.
    """
    chunks = _chunks(source, indices, batch_size)
    first: tuple[tuple[int, int], str] | None = None
    for chunk, batch in zip(chunks, run(_Load(source.images, chunks, preprocessing), workers), strict=True):
        _check_complete(chunk, batch.indices, batch.unreadable)
        if len(batch.indices):
            size, path = tuple(batch.images.shape[2:]), source.images.path(int(batch.indices[0]))
            first = first or (size, path)
            if size != first[0]:
                raise _different_sizes(first[1], first[0], path, size)
        yield batch


def scan(
    source: Source,
    indices: npt.NDArray[np.int64],
    workers: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Unreadable]:
    """Decodes every picture and returns the unreadable ones, in the order of `indices`.

    Args:
        source: where they come from.
        indices: (n,) distinct positions in the source.
        workers: as in `batches`.
        progress: called now and then with (samples done, samples in all).
    """
    chunks = _chunks(source, indices, _SCAN_CHUNK)
    found: list[Unreadable] = []
    done = 0
    for chunk, unreadable in zip(chunks, run(_Check(source.images, chunks), workers), strict=True):
        found.extend(unreadable)
        done += len(chunk)
        if progress is not None:
            progress(done, len(indices))
    return found


def default_workers() -> int:
    """Processes for decoding: the cores this process may use (affinity, container), at most 16; 0 for one core."""
    import joblib  # type: ignore[import-untyped]

    cores = int(joblib.cpu_count())
    return 0 if cores == 1 else min(cores, 16)


def _chunks(source: Source, indices: npt.NDArray[np.int64], size: int) -> list[npt.NDArray[np.int64]]:
    chosen = np.asarray(indices, dtype=np.int64)
    if size < 1:
        raise ValueError(f"a batch of {size} samples")
    if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(source)):
        raise ValueError(f"indices reach from {chosen.min()} to {chosen.max()}, the source has {len(source)} samples")
    if len(np.unique(chosen)) != len(chosen):
        raise ValueError("an index is given twice")
    return [chosen[start : start + size] for start in range(0, len(chosen), size)]


class _Load(Dataset[Batch | SslbenchError]):
    """Item i is batch i. Errors for the user are returned, since DataLoader would raise them as text of a traceback."""

    def __init__(self, images: Images, chunks: list[npt.NDArray[np.int64]], preprocessing: Preprocessing) -> None:
        self.images, self.chunks, self.preprocessing = images, chunks, preprocessing

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, item: int) -> Batch | SslbenchError:
        kept: list[int] = []
        pictures: list[torch.Tensor] = []
        unreadable: list[Unreadable] = []
        conversions: Counter[str] = Counter()
        try:
            for index in self.chunks[item].tolist():
                try:
                    decoded = read(self.images, index)
                    picture = self._transform(decoded, index)
                except UnreadableImage as error:
                    unreadable.append((index, error.path, error.reason))
                    continue
                if pictures and picture.shape != pictures[0].shape:
                    return _different_sizes(
                        self.images.path(kept[0]), _size(pictures[0]), self.images.path(index), _size(picture)
                    )
                kept.append(index)
                pictures.append(picture)
                conversions.update(decoded.conversions)
        except SslbenchError as error:
            return error
        return Batch(np.array(kept, dtype=np.int64), _stack(pictures), tuple(unreadable), conversions)

    def _transform(self, decoded: Decoded, index: int) -> torch.Tensor:
        try:
            return resize_and_crop(decoded.image, self.preprocessing)
        except ValueError as error:
            raise UnreadableImage(self.images.path(index), str(error)) from error


def _stack(pictures: list[torch.Tensor]) -> torch.Tensor:
    if not pictures:
        return torch.empty((0, 3, 0, 0), dtype=torch.uint8)
    return torch.stack([picture.permute(1, 2, 0) for picture in pictures]).permute(0, 3, 1, 2)


class _Check(Dataset[list[Unreadable] | SslbenchError]):
    """Item i lists the unreadable pictures of chunk i."""

    def __init__(self, images: Images, chunks: list[npt.NDArray[np.int64]]) -> None:
        self.images, self.chunks = images, chunks

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, item: int) -> list[Unreadable] | SslbenchError:
        found: list[Unreadable] = []
        try:
            for index in self.chunks[item].tolist():
                try:
                    read(self.images, index)
                except UnreadableImage as error:
                    found.append((index, error.path, error.reason))
        except SslbenchError as error:
            return error
        return found


def read(images: Images, index: int) -> Decoded:
    """One decoded picture.

    Raises:
        UnreadableImage: its file cannot be read or decoded.
    """
    path = images.path(index)
    try:
        return decode(images.read(index), path)
    except UnreadableImage:
        raise
    except OSError as error:
        raise UnreadableImage(path, f"cannot be read ({error.strerror or error})") from error
    except Exception as error:
        error.add_note(f"while reading {path}")
        raise


def _size(picture: torch.Tensor) -> tuple[int, int]:
    return int(picture.shape[1]), int(picture.shape[2])


def _different_sizes(path: str, size: tuple[int, int], other: str, other_size: tuple[int, int]) -> DataError:
    return DataError(
        f"images of different sizes cannot be put in one batch: {path} is {size[1]} x {size[0]} pixels (width x "
        f"height) and {other} is {other_size[1]} x {other_size[0]}",
        "Give a crop, or a resize to an exact height and width.",
    )


def _check_complete(chunk: npt.NDArray[np.int64], kept: npt.NDArray[np.int64], missing: tuple[Unreadable, ...]) -> None:
    delivered = np.concatenate([kept, np.array([index for index, _, _ in missing], dtype=np.int64)])
    if not np.array_equal(np.sort(delivered), np.sort(chunk)):
        raise RuntimeError(f"asked for the samples {chunk.tolist()}, got {delivered.tolist()}")


def run(
    dataset: Dataset[Any],
    workers: int,
    *,
    sampler: Sampler[Any] | None = None,
    prefetch: int = 2,
    start: Callable[[int], None] | None = None,
) -> Iterator[Any]:
    """The items of a dataset in order; an error of the user's that a worker returned is raised here.

    Args:
        dataset: item -> result or SslbenchError.
        workers: processes; 0: this one.
        sampler: the items to ask for; None: 0, 1, ... to the dataset's length.
        prefetch: items that every worker prepares ahead.
        start: called with its number in every new worker.

    Raises:
        SslbenchError: that an item came to.
        DataError: a worker was killed.
    """
    workers = min(workers, len(dataset if sampler is None else sampler))  # type: ignore[arg-type]
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        collate_fn=_as_it_is,
        worker_init_fn=(start or _quiet_worker) if workers else None,
        multiprocessing_context=_start_method() if workers else None,
        pin_memory=_cuda_in_use(),
        generator=torch.Generator(),  # DataLoader draws a seed, which must not advance the caller's random numbers
    )
    try:
        for item in loader:
            if isinstance(item, SslbenchError):
                raise item
            yield item
    except RuntimeError as error:
        if "DataLoader worker (pid" in str(error):
            raise DataError(
                f"a process that decodes images was killed ({error})",
                "Too little memory, or too little shared memory in a container (docker run --shm-size); "
                "try fewer --workers, or --workers 0.",
            ) from error
        raise


def _as_it_is(item: Any) -> Any:
    return item


def _quiet_worker(worker: int) -> None:
    torch.set_num_threads(1)


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _start_method() -> BaseContext:
    """Fork where it is safe, since it starts at once and shares the source; not after CUDA was used, nor off Linux."""
    if sys.platform == "linux" and not _cuda_in_use():
        return multiprocessing.get_context("fork")
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # torch is imported once, not once per worker
        return context
    return multiprocessing.get_context("spawn")
