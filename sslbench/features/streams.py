"""Encoding of batches: on a CPU by single-threaded forward passes side by side, while this thread decodes.

600 JPEGs of 500 x 375 pixels, ResNet-18, two busy cores, processor seconds of `sslbench extract`: 52 with two OpenMP
threads that spin while they wait, 22 with threads that sleep, 22 with one thread. Streams need no waiting inside a
forward pass at all.
"""

import collections
import contextlib
import os
import queue
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from sslbench.backbones.speed import Encoder
from sslbench.data.loading.loader import PictureBatch
from sslbench.runtime.resources import usable_cores

# One array (B, D) per layer.
Rows = list[npt.NDArray[np.float32]]


def number_of_streams(device: torch.device) -> int:
    """Return the number of forward passes that run side by side.

    On a CPU it is torch's number of threads, which OMP_NUM_THREADS sets, and by default at most one per usable core
    (torch does not know the limits of a container). Elsewhere it is 1.
    """
    if device.type != "cpu":
        return 1
    threads = torch.get_num_threads()
    return threads if "OMP_NUM_THREADS" in os.environ else min(threads, usable_cores())


def encoded(
    batches: Iterable[PictureBatch],
    encoders: Sequence[Encoder],
    pieces: Callable[[torch.Tensor], Sequence[torch.Tensor]],
) -> Generator[tuple[PictureBatch, list[Rows]], None, None]:
    """Yield every batch with its features by every encoder, in order.

    The pieces are the same for any number of streams, and each is computed by one thread, so the features do not
    depend on the number.

    pieces: from images (B, C, H, W) to those of single forward passes.
    """
    device = encoders[0].device
    number = number_of_streams(device)
    if number == 1:
        with _single_threaded() if device.type == "cpu" else contextlib.nullcontext():
            for batch in batches:
                inputs = pieces(batch.images)
                yield batch, [_joined([encoder.rows(piece) for piece in inputs]) for encoder in encoders]
        return
    streams = [_Stream(encoder, number) for encoder in encoders]
    waiting: collections.deque[tuple[PictureBatch, list[list[Future[Rows]]]]] = collections.deque()
    with _single_threaded(), ThreadPoolExecutor(number, "sslbench-stream") as pool:
        try:
            for batch in batches:
                inputs = pieces(batch.images)
                waiting.append((batch, [[pool.submit(stream, piece) for piece in inputs] for stream in streams]))
                # Enough for every thread while the next batch is decoded; not more, which bounds memory.
                while sum(len(passes) for _, jobs in list(waiting)[1:] for passes in jobs) >= 2 * number:
                    yield _finished(*waiting.popleft())
            while waiting:
                yield _finished(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


class _Stream:
    """Function of a piece for several threads, each with an encoder of its own."""

    def __init__(self, encoder: Encoder, threads: int) -> None:
        self.free: queue.SimpleQueue[Encoder] = queue.SimpleQueue()
        for twin in [encoder, *(encoder.twin() for _ in range(threads - 1))]:
            self.free.put(twin)

    def __call__(self, piece: torch.Tensor) -> Rows:
        encoder = self.free.get()
        try:
            return encoder.rows(piece)
        finally:
            self.free.put(encoder)


def _finished(batch: PictureBatch, jobs: Sequence[Sequence[Future[Rows]]]) -> tuple[PictureBatch, list[Rows]]:
    return batch, [_joined([job.result() for job in passes]) for passes in jobs]


def _joined(pieces: Sequence[Rows]) -> Rows:
    """Return the features of all pieces of a batch; [] for a batch without readable images."""
    return [np.concatenate(rows) for rows in zip(*pieces, strict=True)]


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Let every operation of torch run on its own thread alone; threads that start inside take this over."""
    # torch keeps the number for each thread, and a new thread takes that of its parent.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
