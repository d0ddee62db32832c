"""A function run by two processes that have joined each other, as srun would start them.

    first, second = two_processes.run(function, argument)   # function(rank, argument) in each of them

The two are started once per test session, because importing torch takes longer than most of what they do. Each call
has the environment of its test, and leaves no working folder and no listener to messages to the next.
"""

import concurrent.futures
import contextlib
import functools
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.distributed import TCPStore  # noqa: TID251

from sslbench.distributed.failures import OtherProcessError

FORKS = multiprocessing.get_context("forkserver")
"""Way to start a process: a fork of one without threads that has imported what takes long."""
FORKS.set_forkserver_preload(
    [
        *("torch.distributed.fsdp", "torch.distributed.tensor", "torchvision", "timm", "sklearn.datasets", "psutil"),
        *("sslbench.pretraining.preparation", "sslbench.evaluation.pretraining", "sslbench.library.recipes"),
    ]
)
SECONDS = 600.0
"""Time after which a process that has not answered hangs; most need less than a second."""
_stores: list[TCPStore] = []
"""Stores that this process serves, one per call: their ports stay taken."""


def run(function: Callable[..., Any], *arguments: Any, join: bool = True, seconds: float = SECONDS) -> list[Any]:
    """Return the results of `function(rank, *arguments)` in both processes, in order of rank.

    Args:
        function: at the top level of a module, so that it can be pickled by name.
        arguments: picklable, as is the result; arrays rather than tensors.
        join: join the processes around the function; otherwise it calls `process_group` itself.
        seconds: time after which a process that has not answered counts as hanging.
    """
    try:
        second = _process(1).submit(os.getpid)  # starts while the first one does
        port = _process(0).submit(_serve).result(timeout=seconds)
        second.result(timeout=seconds)
        given = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        futures = [_process(rank).submit(_joined, rank, given, join, function, arguments) for rank in range(2)]
        done, _ = concurrent.futures.wait(futures, timeout=seconds, return_when=concurrent.futures.FIRST_EXCEPTION)
        errors = [error for future in done if (error := future.exception()) is not None]
        if any(isinstance(error, OtherProcessError) for error in errors):  # the other one has the reason
            done, _ = concurrent.futures.wait(futures, timeout=seconds)
            errors = [error for future in done if (error := future.exception()) is not None]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, OtherProcessError))
        if len(done) < 2:
            waiting = [rank for rank, future in enumerate(futures) if not future.done()]
            raise TimeoutError(f"{function.__name__}: no answer after {seconds:.0f} s of the processes {waiting}")
        return [future.result() for future in futures]
    except BaseException:
        _end()  # one of them may wait for the other, for ever
        raise


def check_equal_to_one(function: Callable[..., Any], *arguments: Any, rtol: float, atol: float) -> None:
    """Assert that both processes get the arrays that one gets alone; `atol` is a share of the largest number."""
    alone = function(0, *arguments)
    for results in run(function, *arguments):
        assert len(results) == len(alone) > 1
        for ours, wanted in zip(results, alone, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=rtol, atol=atol * np.abs(wanted).max())


@functools.cache
def _process(rank: int) -> concurrent.futures.ProcessPoolExecutor:
    """Return the process of a rank, always the same: what PyTorch caches about a mesh belongs to one rank."""
    return concurrent.futures.ProcessPoolExecutor(1, mp_context=FORKS, initializer=_start)


def _start() -> None:
    os.chdir("/")  # it starts in the folder of the test that runs then, which is removed at the end of that test
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the process that runs the tests, which may be killed, and end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _end() -> None:
    """Kill both processes; the next call starts others."""
    for rank in range(2):
        for process in (_process(rank)._processes or {}).values():
            process.kill()
        _process(rank).shutdown(wait=False, cancel_futures=True)
    _process.cache_clear()


def _serve() -> int:
    """Serve a store in the first process, at a port that nobody else can take; return the port."""
    _stores.append(TCPStore("localhost", 0, is_master=True, wait_for_workers=False, multi_tenant=True))
    return int(_stores[-1].port)


def _joined(
    rank: int, given: dict[str, str], join: bool, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    from sslbench.distributed.collectives import process_group

    os.environ.clear()
    os.environ.update(given, RANK=str(rank), LOCAL_RANK=str(rank))
    logger = logging.getLogger("sslbench")
    logger.handlers, logger.propagate = [], True
    with contextlib.chdir("."), process_group(torch.device("cpu")) if join else contextlib.nullcontext():
        return function(rank, *arguments)
