"""Worker processes for decoding: any start method, ended with their iterator, their death detected."""

import dataclasses
import gc
import multiprocessing
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from sslbench.errors import DataError, SslbenchError, UsageError
from sslbench.locks import GUARD
from sslbench.runtime.resources import StartMethod

_SECONDS_TO_DIE = 10.0  # grace period from the first sign of a death until the process is gone


@dataclasses.dataclass(frozen=True)
class Computed(Dataset[Any]):
    """Dataset of the results of a function, one per item; SslbenchErrors are returned.

    DataLoader would raise them as text of a traceback. `compute` must be picklable.
    """

    compute: Callable[[Any], Any]
    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, item: int) -> Any:
        try:
            return self.compute(self.items[item])
        except SslbenchError as error:
            return error


def run(
    dataset: Dataset[Any],
    workers: int,
    *,
    sampler: Sampler[Any] | None = None,
    prefetch: int = 2,
    start: Callable[[int], None] | None = None,
    start_method: StartMethod = "auto",
) -> Iterator[Any]:
    """Iterate over the items of a dataset in order, and raise the SslbenchErrors among them.

    Args:
        dataset: item -> result or SslbenchError.
        workers: number of worker processes; 0: load in this one.
        sampler: the items to load; None: all, in order.
        prefetch: items that each worker loads ahead.
        start: called in every new worker with the worker's number.
        start_method: of the workers; 'auto' forks where it is safe.
    """
    workers = min(workers, len(dataset if sampler is None else sampler))  # type: ignore[arg-type]
    context = _context(start_method) if workers else None
    forks = context is not None and context.get_start_method() == "fork"
    loader = DataLoader(
        dataset,
        # Items are whole batches already.
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        collate_fn=_in_shared_memory if workers else lambda item: item,
        worker_init_fn=(start or _quiet_worker) if workers else None,
        multiprocessing_context=context,
        pin_memory=_cuda_in_use(),
        generator=torch.Generator(),  # DataLoader draws a seed, which must not advance the caller's random numbers
    )
    killed, delivered = None, False
    items: Iterator[Any] | None = None
    others = multiprocessing.active_children()
    started = list[BaseProcess]()
    try:
        # A forked worker that collects garbage of this process would run destructors that wait for threads it does not
        # have, as a process group's do: it hangs, or dies by SIGSEGV. What is frozen is never collected there.
        if forks:
            gc.freeze()
        try:
            items = iter(loader)
        finally:
            if forks:
                gc.unfreeze()
        _restore_sigchld()
        started = [child for child in multiprocessing.active_children() if child not in others]
        for item in items:
            if isinstance(item, SslbenchError):
                raise item
            delivered = True
            yield item
    except (RuntimeError, OSError, EOFError) as error:  # raised by torch, or while receiving a worker's item
        killed = _death(error, started, workers)
        if killed is None:
            raise
        _clear_frames(error)
    finally:
        items = None  # drops the last reference, which ends the remaining workers
    if killed is not None:
        imports_script = context is not None and not forks
        raise DataError(
            f"a process that decodes images was killed ({killed})",
            (f"{GUARD} " if imports_script and not delivered and killed.startswith("exit code") else "")
            + "Too little memory, or too little shared memory in a container (docker run --shm-size); "
            "try fewer --workers, or --workers 0.",
        )


def _death(error: Exception, started: list[BaseProcess], expected: int) -> str | None:
    """Return the cause of death of the first dead worker; None if all are alive."""
    broken = isinstance(error, ConnectionError | EOFError) or "DataLoader worker (pid" in str(error)
    if started and broken:
        gone = connection.wait([worker.sentinel for worker in started], timeout=_SECONDS_TO_DIE)
        for worker in started:
            if worker.sentinel in gone:  # its sentinel closes a moment before the process ends
                worker.join()
    codes = [worker.exitcode for worker in started if not worker.is_alive()]
    if not codes:
        return "as it started" if broken and len(started) < expected else None
    code = codes[0] or 0
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _clear_frames(error: BaseException) -> None:
    """Clear the frames of an error: they hold torch's loader, which ends its workers only when it is freed."""
    chain: BaseException | None = error
    while chain is not None:
        traceback.clear_frames(chain.__traceback__)
        chain = chain.__cause__ or chain.__context__


def _restore_sigchld() -> None:
    """Remove torch's handler of SIGCHLD, which raises errors of dead workers anywhere, even inside a training step.

    Without it they are raised where the next item is awaited, within seconds.
    """
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGCHLD"):
        # Only the main thread may set handlers, and only torch's own is taken away.
        handler = signal.getsignal(signal.SIGCHLD)
        if getattr(handler, "__module__", "").startswith("torch."):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _in_shared_memory(item: Any) -> Any:
    """Return an item with its tensors in shared memory; the error for the user if that is full."""
    # The queue would move them there in a thread of its own, print its error and lose the item, and the run would wait
    # for ever.
    waiting = [item]
    try:
        while waiting:
            part = waiting.pop()
            if isinstance(part, torch.Tensor):
                if part.untyped_storage().nbytes():
                    part.share_memory_()  # type: ignore[no-untyped-call]
            elif isinstance(part, dict | list | tuple):
                waiting += part.values() if isinstance(part, dict) else part
            elif dataclasses.is_dataclass(part):
                waiting += vars(part).values()
    except RuntimeError as error:
        if "shared memory" not in str(error) and "No space left" not in str(error):
            raise
        return DataError(
            "the shared memory (/dev/shm) by which processes hand over decoded images is full",
            "Give fewer --workers, or --workers 0; in a container, raise docker run --shm-size.",
        )
    return item


def _quiet_worker(worker: int) -> None:
    torch.set_num_threads(1)


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _context(asked: StartMethod) -> BaseContext:
    """Return the start method's context; 'auto' forks, which is fast, on Linux before CUDA is used."""
    available = multiprocessing.get_all_start_methods()
    if asked == "auto":
        safe = sys.platform == "linux" and "fork" in available and not _cuda_in_use()
        asked = "fork" if safe else "forkserver" if "forkserver" in available else "spawn"
    if asked not in available:
        raise UsageError(f"start_method={asked} does not exist on this system", f"It has {', '.join(available)}.")
    context = multiprocessing.get_context(asked)
    if asked == "forkserver":
        # Imported once, not once per worker.
        context.set_forkserver_preload(["sslbench.data.loading.loader", "torchvision.transforms.v2"])
    return context
