"""Error messages that every process has, such as one about a mistyped name: one of the processes shows them.

This module does not import torch before one of several processes has an error.
"""

import contextlib
import datetime
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sslbench.distributed import Process, set_rendezvous, this_process
from sslbench.errors import SslbenchError, UsageError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_WAIT_SECONDS = 10.0  # for another process, which may still be importing torch
_LINGER_SECONDS = 3.0  # of the first process, which may serve the store to the others


def show_once(text: str, show: Callable[[], object]) -> None:
    """Show an error unless another process shows the same text, and return when it has been shown."""
    # torchrun ends all processes when one of them has left, so none leaves before.
    with _meeting() as (process, store):
        key, own = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest(), True
        if store is not None:
            with contextlib.suppress(RuntimeError):  # here and below: the process that serves the store has left
                own = store.compare_set(f"claimed-{key}", "", str(process.rank)).decode() == str(process.rank)
        if own:
            show()
        if store is not None:
            with contextlib.suppress(RuntimeError):
                if own:
                    store.set(f"shown-{key}", "")
                    store.set("shown", "")
                else:
                    store.wait([f"shown-{key}"], datetime.timedelta(seconds=_WAIT_SECONDS))


def shown_elsewhere() -> bool:
    """Return True when any process has shown an error, False if none has after some seconds or none can be asked."""
    with _meeting() as (_, store):
        try:
            if store is not None:
                store.wait(["shown"], datetime.timedelta(seconds=_WAIT_SECONDS))
            return store is not None
        except RuntimeError:
            return False


@contextlib.contextmanager
def _meeting() -> Iterator[tuple[Process, "Store | None"]]:
    """Reach the store of torchrun, else one that the first process serves; None for a single process or without any."""
    store: Store | None = None
    try:
        process = this_process()
    except UsageError:
        process = Process()
    by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = process.rank == 0 and not by_torchrun
    if process.world > 1:
        with contextlib.suppress(RuntimeError, SslbenchError):
            store = _reached(process, serves=serves)
    yield process, store
    if store is None:
        return
    with contextlib.suppress(RuntimeError):
        # The process that serves the store ends last: others may still ask it.
        left, end = store.add("left", 1), time.monotonic() + _LINGER_SECONDS
        while serves and left < process.world and time.monotonic() < end:
            time.sleep(0.05)
            left = store.add("left", 0)


def _reached(process: Process, *, serves: bool) -> "Store":
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    set_rendezvous()
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=serves,
        timeout=datetime.timedelta(seconds=_WAIT_SECONDS),
        wait_for_workers=False,
        multi_tenant=True,  # this process may serve one already
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store of torchrun outlives a restart
    return PrefixStore(f"messages-{attempt}", store)
