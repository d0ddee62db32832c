"""Decoded samples of a training in one file, so that later epochs read them instead of decoding them again."""

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sslbench import paths
from sslbench.distributed import this_process
from sslbench.runtime.machine import free_disk, free_memory

VARIABLE = "SSLBENCH_DECODED_CACHE"
"""Environment variable of the file's largest size, such as 20GB; 0: nothing is kept."""

_TYPES = (torch.uint8, torch.float32)
_HEADER = 32  # int64: number of tensors, then for each its type, sizes and strides
_HEADER_BYTES = 8 * _HEADER
_PAGE = 4096
_LARGEST_PLACE, _LARGEST_FILE = 2**26, 2**43  # bytes; a file of ext4 ends at 2^44
_log = logging.getLogger("sslbench")


def largest_size() -> int:
    """Return the bytes that the samples of a training may take: $SSLBENCH_DECODED_CACHE, shared by its processes.

    By default half of the free memory, where they are read fastest, and at most a quarter of the free disk.
    """
    memory = free_memory()
    free = min(free_disk(paths.cache_dir()) / 4, math.inf if memory is None else memory / 2)
    return paths.size_variable(VARIABLE, str(int(free))) if hasattr(os, "preadv") else 0


class KeptSamples:
    """Samples by their position, each a few tensors of three dimensions; any number of processes reads and writes.

    Every position has a place of its own in a sparse file, so that no process waits for another. Pixels come before
    the header that declares them: a sample is whole or absent. A disk that is full ends the keeping, not the training.

    Examples:
        >>> with keeping(10, workers=0) as kept:
        ...     decode = lambda index: (torch.full((3, 8, 8), float(index)),)
        ...     first, again = kept.sample(4, decode), kept.sample(4, decode)
        >>> torch.equal(first[0], again[0])
        True
    """

    def __init__(self, file: Path, samples: int, room: int) -> None:
        """Open nothing yet.

        `file`: an empty file; `samples`: number of positions; `room`: bytes that each process may write.
        """
        self.file, self.room, self.used = file, room, room > 0
        self.place = min(_LARGEST_PLACE, _LARGEST_FILE // max(1, samples) // _PAGE * _PAGE)
        self._handle: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_handle": None}  # another process opens the file itself

    def __del__(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.close(self._handle)

    def sample(self, index: int, decode: Callable[[int], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the tensors at a position, which `decode` makes the first time."""
        if not self.used:
            return decode(index)
        try:
            found = self._read(index)
        except OSError:
            found = None
        if found is None:
            found = decode(index)
            try:
                self._write(index, found)
            except OSError as error:
                self.room = 0
                _log.debug("decoded images are no longer kept in %s: %s", self.file, error)
        return found

    def _open(self) -> int:
        if self._handle is None:
            self._handle = os.open(self.file, os.O_RDWR)
        return self._handle

    def _read(self, index: int) -> tuple[Tensor, ...] | None:
        at = index * self.place
        header = os.pread(self._open(), _HEADER_BYTES, at)
        if len(header) < _HEADER_BYTES:  # behind the last sample
            return None
        numbers = np.frombuffer(header, dtype=np.int64).tolist()
        tensors = [
            torch.empty_strided(kind[1:4], kind[4:], dtype=_TYPES[kind[0]])
            for kind in (numbers[1 + 7 * i : 8 + 7 * i] for i in range(numbers[0]))
        ]
        size = sum(tensor.nbytes for tensor in tensors)
        if not tensors or os.preadv(self._open(), _buffers(tensors), at + _HEADER_BYTES) < size:
            return None
        return tuple(tensors)

    def _write(self, index: int, tensors: Sequence[Tensor]) -> None:
        """Write a sample, unless it does not fit into the room or its tensors have gaps in memory."""
        size = _HEADER_BYTES + sum(tensor.nbytes for tensor in tensors)
        taken = -(-size // _PAGE) * _PAGE
        if taken > min(self.room, self.place) or not all(map(_is_plain, tensors)):
            return
        kinds = [(_TYPES.index(tensor.dtype), *tensor.shape, *tensor.stride()) for tensor in tensors]
        header = np.zeros(_HEADER, dtype=np.int64)
        header[: 1 + 7 * len(tensors)] = [len(tensors), *(number for kind in kinds for number in kind)]
        at = index * self.place
        if os.pwritev(self._open(), _buffers(tensors), at + _HEADER_BYTES) == size - _HEADER_BYTES:
            os.pwrite(self._open(), header.tobytes(), at)
            self.room -= taken


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor has a known type, three dimensions, and its numbers side by side in any order."""
    return tensor.dtype in _TYPES and tensor.ndim == 3 and tensor.numel() > 0 and _in_memory(tensor).is_contiguous()


def _in_memory(tensor: Tensor) -> Tensor:
    """Return a tensor with its dimensions in the order in which they lie in memory."""
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    return tensor.permute(sorted(range(tensor.ndim), key=lambda i: (-strides[i], -sizes[i])))


def _buffers(tensors: Sequence[Tensor]) -> list[memoryview]:
    return [_in_memory(tensor).numpy().reshape(-1).data.cast("B") for tensor in tensors]


@contextlib.contextmanager
def keeping(samples: int, *, workers: int, again: bool = True) -> Iterator[KeptSamples]:
    """Keep samples of a training inside the block, in a file of the cache folder that is removed at its end.

    Two trainings have a file each; that of a training that was killed is removed by the next one.

    `samples`: number of positions; `workers`: processes that decode, 0: this one; `again`: samples come more than once,
    otherwise nothing is kept.
    """
    room = largest_size() // this_process().world // max(1, workers) if again else 0
    with contextlib.ExitStack() as stack:
        file = paths.cache_dir() / "decoded-samples"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(paths.temporary_beside(file)) if room else file
            if room and not _is_sparse(temporary):
                room = 0
        except OSError as error:  # a cache folder that cannot be written
            _log.debug("decoded images are not kept: %s", error)
            temporary, room = file, 0
        yield KeptSamples(temporary, samples, room)


def _is_sparse(file: Path) -> bool:
    """Return whether the holes of a file take no room, after writing one of 64 MiB."""
    with file.open("r+b") as opened:
        opened.seek(_LARGEST_PLACE)
        opened.write(b"\0")
        opened.flush()
        taken = os.fstat(opened.fileno()).st_blocks * 512
        opened.truncate(0)
    return taken < _LARGEST_PLACE / 2
