"""Rows of arrays on a GPU: copies that run beside the computation, and the free memory of the device."""

import concurrent.futures
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sslbench.arrays import Rows

# Largest share of the GPU's free memory that samples may fill.
RESIDENT = 0.5
_BYTES = 2**28  # of a block that is copied to stay


def free_memory(device: torch.device) -> float:
    """Return the bytes that torch can still allocate on a device; infinite on a processor.

    These are what the driver has free and what torch's allocator keeps for later use, within the share of the memory
    that `torch.cuda.set_per_process_memory_fraction` leaves to this process.
    """
    if device.type != "cuda":
        return float("inf")
    free, total = torch.cuda.mem_get_info(device)
    allocated, share = torch.cuda.memory_allocated(device), 1.0
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):  # since torch 2.8
        share = torch.cuda.get_per_process_memory_fraction(device)
    kept = torch.cuda.memory_reserved(device) - allocated
    return float(max(0.0, min(free + kept, share * total - allocated)))


def sent(rows: Rows, parts: Sequence[slice], device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """Yield parts of an array on a device; a thread reads and copies the next part while the caller computes with one.

    The copies go through two buffers in pinned memory and a stream of their own.

    >>> parts = [slice(0, 2), slice(2, 3)]
    >>> [block.tolist() for _, block in sent(np.arange(3.0), parts, torch.device("cpu"))]
    [[0.0, 1.0], [2.0]]
    """
    on_gpu = device.type == "cuda"
    stream: torch.cuda.Stream | None = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
    buffers: list[Tensor | None] = [None, None]
    copied: list[torch.cuda.Event | None] = [None, None]

    def load(number: int) -> tuple[Tensor, torch.cuda.Event | None]:
        values, place = rows[parts[number]], number % 2
        buffer, before = buffers[place], copied[place]
        if before is not None:
            before.synchronize()
        if buffer is None or len(buffer) < len(values):
            dtype = torch.from_numpy(np.empty(0, values.dtype)).dtype
            buffer = buffers[place] = torch.empty(values.shape, dtype=dtype, pin_memory=on_gpu)
        pinned = buffer[: len(values)]
        np.copyto(pinned.numpy(), values)
        with torch.cuda.stream(stream):
            block = torch.empty(pinned.shape, dtype=pinned.dtype, device=device)
            block.copy_(pinned, non_blocking=True)
            copied[place] = None if stream is None else stream.record_event()
        return block, copied[place]

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        following = thread.submit(load, 0) if parts else None
        for number, part in enumerate(parts):
            assert following is not None  # noqa: S101 - one is loaded ahead
            block, event = following.result()
            if number + 1 < len(parts):
                following = thread.submit(load, number + 1)
            if event is not None:
                used = torch.cuda.current_stream(device)
                used.wait_event(event)
                # Else the allocator gives the memory away when the copy has ended, not the computation.
                block.record_stream(used)
            yield part, block


def blocks_of(number: int, size: int) -> list[slice]:
    """Return the slices of `size` rows that a number of rows consists of.

    >>> blocks_of(5, 3)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return [slice(start, min(start + size, number)) for start in range(0, number, size)]


def resident(rows: Rows, device: torch.device) -> Tensor | None:
    """Return all rows (N, D) on the device; None if they fill more than `RESIDENT` of its free memory."""
    row = rows[:1]
    if len(rows) * row.nbytes > RESIDENT * free_memory(device):
        return None
    held = torch.empty((len(rows), *row.shape[1:]), dtype=torch.from_numpy(row.copy()).dtype, device=device)
    for part, block in sent(rows, blocks_of(len(rows), max(1, _BYTES // max(1, row.nbytes))), device):
        held[part] = block
    return held


def parts_of(
    held: Tensor | None, rows: Rows, parts: Sequence[slice], device: torch.device
) -> Iterator[tuple[slice, Tensor]]:
    """Yield parts of an array on the device: of its copy there, or, without one, sent one by one."""
    if held is None:
        yield from sent(rows, parts, device)
    else:
        yield from ((part, held[part]) for part in parts)
