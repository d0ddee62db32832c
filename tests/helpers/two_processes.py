"""A function run by two processes that have joined each other, as torchrun would start them.

    first, second = two_processes.run(function, argument)   # function(rank, argument) in each of them

The two are started once per test session, because importing torch takes longer than most of what they do.
"""

import concurrent.futures
import functools
import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import torch

from sslbench.distributed.failures import OtherProcessError


def run(function: Callable[..., Any], *arguments: Any, seconds: float = 120) -> list[Any]:
    """What `function(rank, *arguments)` returns in each process, in order of rank.

    Args:
        function: at the top level of a module, so that it can be pickled by name.
        arguments: picklable, as is the result; arrays rather than tensors.
        seconds: after which a process that has not answered counts as hanging.
    """
    for started in [_process(rank).submit(os.getpid) for rank in range(2)]:
        started.result(timeout=seconds)
    port = _free_port()  # not earlier, since another process may take it while these start
    futures = [_process(rank).submit(_joined, rank, port, function, arguments) for rank in range(2)]
    done, _ = concurrent.futures.wait(futures, timeout=seconds, return_when=concurrent.futures.FIRST_EXCEPTION)
    errors = [error for future in done if (error := future.exception()) is not None]
    if any(isinstance(error, OtherProcessError) for error in errors):  # the other one has the reason
        done, _ = concurrent.futures.wait(futures, timeout=20)
        errors = [error for future in done if (error := future.exception()) is not None]
    try:
        if errors:
            raise min(errors, key=lambda error: isinstance(error, OtherProcessError))
        return [future.result(timeout=0) for future in futures]
    except BaseException:
        _end()  # one of them may wait for the other, for ever
        raise


@functools.cache
def _process(rank: int) -> concurrent.futures.ProcessPoolExecutor:
    """The process of a rank, always the same: what PyTorch caches about a mesh belongs to one rank."""
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(
        1, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    )


def _end() -> None:
    """Kill both processes; the next call starts others."""
    for rank in range(2):
        for process in (_process(rank)._processes or {}).values():
            process.kill()
        _process(rank).shutdown(wait=False, cancel_futures=True)
    _process.cache_clear()


def _joined(rank: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    from sslbench.distributed.collectives import process_group

    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="localhost")
    os.environ["MASTER_PORT"] = str(port)
    with process_group(torch.device("cpu")):
        return function(rank, *arguments)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])
