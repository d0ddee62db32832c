"""Process group and collective operations; only this package imports torch.distributed."""

import contextlib
import datetime
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import PrefixStore, Store
from torch.autograd.function import FunctionCtx
from torch.distributed.rendezvous import rendezvous

from sslbench.distributed import Process, set_rendezvous, this_process
from sslbench.distributed.failures import ending_together
from sslbench.errors import SslbenchError, UsageError

T = TypeVar("T")

_GROUPS = itertools.count()  # all processes join the same groups in the same order


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[Process]:
    """Join the processes that torchrun or srun started, during a block; a single process joins nothing."""
    # A GPU is the current one during the block: events, streams and graphs without a device refer to it.
    process = this_process()
    if process.world == 1 or distributed.is_initialized():
        with _current(device):
            yield process
        return
    set_rendezvous()
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = datetime.timedelta(minutes=30)  # timeout: the first process may evaluate or write while the others wait
    # The store outlives a group, and that of torchrun a restart: one prefix each, or the next group reads the addresses
    # and the failures of this one.
    served = _store(process, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], timeout)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"sslbench-{attempt}-{next(_GROUPS)}", served)
    with _current(device):
        distributed.init_process_group(
            backend, store=store, rank=process.rank, world_size=process.world, timeout=timeout
        )
        try:
            with ending_together(process, PrefixStore("failures", store)):
                yield process
        finally:
            distributed.destroy_process_group()


@contextlib.contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one during a block."""
    if device.type != "cuda" or device.index is None:
        yield
        return
    before = torch.cuda.current_device()
    torch.cuda.set_device(device)
    try:
        yield
    finally:
        torch.cuda.set_device(before)


@contextlib.contextmanager
def process_group_if_known(device: torch.device) -> Iterator[None]:
    """Join the processes as `process_group`, unless only RANK and WORLD_SIZE are set, which is enough to encode."""
    known = this_process().world == 1
    with contextlib.suppress(UsageError):
        if not known:
            set_rendezvous()
            known = True
    with process_group(device) if known else contextlib.nullcontext():
        yield


@functools.cache
def _store(process: Process, address: str, port: str, timeout: datetime.timedelta) -> Store:
    """Return the store at MASTER_ADDR and MASTER_PORT: that of torchrun, or one that the first process serves."""
    store, _, _ = next(rendezvous("env://", process.rank, process.world, timeout=timeout))
    return cast(Store, store)


def world_size() -> int:
    """Return the number of processes (1 outside `process_group`)."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process (0 outside `process_group`)."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def subgroup(size: int) -> distributed.ProcessGroup | None:
    """Return the group of `size` processes in a row that this one is in; every process calls this.

    None outside `process_group`. The number of processes is a multiple of `size`.
    """
    return distributed.new_subgroups(size)[0] if distributed.is_initialized() else None


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        distributed.barrier()


def gather(x: Tensor) -> Tensor:
    """Concatenate the (B, ...) of all processes to (world * B, ...), in order of rank, without gradient."""
    x = x.detach().contiguous()
    if world_size() == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(world_size())]
    distributed.all_gather(parts, x)
    return torch.cat(parts)


def gather_with_gradient(x: Tensor) -> Tensor:
    """Concatenate like `gather`; the gradient of this process's rows is that of the summed losses of all processes."""
    return x if world_size() == 1 else _Gather.apply(x)


def sum_with_gradient(x: Tensor) -> Tensor:
    """Return the sum over processes; its gradient reaches this process's summand once."""
    # This is correct for a joint loss that every process computes from the sum; DistributedDataParallel then averages.
    return x if world_size() == 1 else _Sum.apply(x)


def mean_with_gradient(x: Tensor) -> Tensor:
    """Return the mean over processes; the gradient reaches this process's value as a whole."""
    # This is correct for a joint loss that every process computes from the mean: DistributedDataParallel then averages.
    if world_size() == 1:
        return x
    return x + (sum_(x.detach().clone()) / world_size() - x).detach()


def sum_(x: Tensor) -> Tensor:
    """Sum over processes in place, without gradient; return the argument."""
    if world_size() > 1:
        distributed.all_reduce(x)
    return x


def max_(x: Tensor) -> Tensor:
    """Take the maximum over processes in place, without gradient; return the argument."""
    if world_size() > 1:
        distributed.all_reduce(x, op=distributed.ReduceOp.MAX)
    return x


def broadcast_(x: Tensor) -> Tensor:
    """Overwrite the values by those of the first process in place; return the argument."""
    if world_size() > 1:
        distributed.broadcast(x, src=0)
    return x


def gather_objects(value: Any) -> list[Any]:
    """Return the (small, picklable) values of all processes, in order of rank."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    distributed.all_gather_object(values, value)
    return values


def from_first(function: Callable[[], T]) -> T:
    """Call a function on the first process, and return its picklable result on all processes."""
    # An exception is raised on all processes, so that none waits for the failed one.
    if world_size() == 1:
        return function()
    outcome = [_attempt(function) if rank() == 0 else (None, None)]
    distributed.broadcast_object_list(outcome, src=0)
    value, error = outcome[0]
    _raise_together(error)
    return cast(T, value)


def on_all(function: Callable[[], T]) -> T:
    """Call a function on every process, and return each process's own result.

    If it fails on any process, all processes raise: their own error, or that of the first process that failed.
    """
    if world_size() == 1:
        return function()
    value, error = _attempt(function)
    errors = gather_objects(error)
    _raise_together(error or next(filter(None, errors), None))
    return cast(T, value)


def _attempt(function: Callable[[], T]) -> tuple[T | None, SslbenchError | None]:
    """Return the result of a function, or its error in a form that other processes can raise."""
    try:
        return function(), None
    except SslbenchError as error:
        return None, error
    except Exception as error:  # noqa: BLE001  the other processes must not wait for this one
        failure = SslbenchError(f"process {rank()} failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return None, failure


def _raise_together(error: SslbenchError | None) -> None:
    """Raise an error on all processes, of which only the first prints it; see `SslbenchError.printed_by_rank_0`."""
    if error is not None:
        error.printed_by_rank_0 = rank() != 0
        raise error


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.rows = x.shape[0]
        return gather(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = sum_(grads[0].contiguous())
        return total[rank() * ctx.rows : (rank() + 1) * ctx.rows]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        return sum_(x.clone())

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        return grads[0]
