"""All processes end when one fails; threads with a store in memory stand for processes."""

import contextlib
import datetime
import itertools
import os
import subprocess
import sys
import threading

import pytest
import torch
from helpers import two_processes
from torch import distributed  # noqa: TID251

from sslbench.distributed import Process, collectives, failures
from sslbench.distributed.collectives import barrier, process_group
from sslbench.errors import DataError, SslbenchError

HANGING = 600
"""Seconds after which a test gives up."""


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(failures, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(failures, "_LINGER_SECONDS", 0.3)


class Exits(list):
    """Codes with which processes were ended from outside."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()

    def add(self, code):
        with self.changed:
            self.append(code)
            self.changed.notify_all()

    def wait_for(self, number):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self) >= number, HANGING)


@pytest.fixture
def exits(monkeypatch):
    found = Exits()
    monkeypatch.setattr(failures.os, "_exit", found.add)
    return found


def both(*bodies):
    """Errors of two processes, each of which runs its body with the store."""
    store, errors = distributed.HashStore(), [None, None]

    def process(rank):
        try:
            with failures.ending_together(Process(rank, 2, rank), store):
                bodies[rank](store)
        except Exception as error:  # noqa: BLE001  the test compares it
            errors[rank] = error

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGING)
        assert not thread.is_alive()
    return errors


def wait_for(store, key):
    store.wait([key], datetime.timedelta(seconds=HANGING))


def fail(error):
    def body(store):
        raise error

    return body


lose_connection = fail(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:29500"))


def lose_connection_later(store):
    wait_for(store, "reason")
    lose_connection(store)


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("error", [ValueError("observer"), DataError("unreadable")])
def test_the_one_that_failed_shows_the_reason_and_the_other_is_silent(failing, error, exits):
    bodies = [lose_connection_later, fail(error)] if failing else [fail(error), lose_connection_later]
    errors = both(*bodies)
    assert errors[failing] is error
    other = errors[1 - failing]
    assert isinstance(other, failures.OtherProcessError) and other.printed_by_rank_0
    assert exits == []


def test_of_a_killed_process_the_survivor_tells(exits):
    errors = both(lose_connection, lambda store: None)
    assert isinstance(errors[0], SslbenchError) and not errors[0].printed_by_rank_0


def watching(monkeypatch, rank):
    """Let only the process of a rank watch the other; return an event that its watch has ended."""
    real, ended = failures._Watch.run, threading.Event()

    def run(self):
        if self.process.rank == rank:
            real(self)
            ended.set()

    monkeypatch.setattr(failures._Watch, "run", run)
    return ended


def test_one_that_waits_for_the_failed_one_is_ended(exits, monkeypatch):
    monkeypatch.setattr(failures, "GRACE_SECONDS", 0.2)
    watching(monkeypatch, 1)
    both(fail(ValueError("observer")), lambda store: exits.wait_for(1))
    assert exits == [1]


def test_nobody_is_ended_after_a_run_without_errors(exits, monkeypatch):
    ended = watching(monkeypatch, 1)
    assert both(lambda store: None, lambda store: ended.wait(HANGING)) == [None, None]
    assert ended.is_set() and exits == []
    with pytest.raises(KeyError), failures.ending_together(Process(0, 2, 0), distributed.HashStore()):
        raise KeyError


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_process_is_named_and_all_end(frozen, exits, monkeypatch, caplog):
    real = failures._Watch.look_for_frozen
    monkeypatch.setattr(failures, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(failures, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(
        failures._Watch, "look_for_frozen", lambda self: real(self) if self.process.rank != frozen else None
    )
    both(lambda store: exits.wait_for(2), lambda store: exits.wait_for(2))
    assert exits == [1, 1]
    assert f"process {frozen} on " in caplog.text and "has not answered for 0 s" in caplog.text


FROZEN = """
import logging, os, signal, sys, torch
from torch.distributed import TCPStore
from sslbench.distributed import failures
from sslbench.distributed.collectives import barrier, process_group

if os.environ["RANK"] == "0":
    served = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    os.environ["MASTER_PORT"] = str(served.port)
    print(served.port, flush=True)
logging.basicConfig()
failures.LOOK_SECONDS, failures.GRACE_SECONDS = 0.1, 1
failures.SILENT_SECONDS = 3 if os.environ["RANK"] == "0" else 3600  # the first may be slow
with process_group(torch.device("cpu")):
    barrier()
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    barrier()
"""


@pytest.mark.long
def test_a_stopped_process_ends_the_run(tmp_path):
    """Of the second process; the first serves the store here, as under srun, and torchrun's launcher does otherwise."""
    (tmp_path / "frozen.py").write_text(FROZEN)

    def start(rank, **more):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", **more}
        command, pipe = [sys.executable, "frozen.py"], subprocess.PIPE
        return subprocess.Popen(command, cwd=tmp_path, env=os.environ | names, stdout=pipe, stderr=pipe, text=True)

    first = start("0")
    second = start("1", MASTER_PORT=first.stdout.readline().strip())
    try:
        _, errors = first.communicate(timeout=HANGING)
    finally:
        first.kill(), second.kill()
        second.communicate()
    assert first.returncode == 1
    assert "process 1 on " in errors and "has not answered for 3 s; ending all processes" in errors


def two_groups(rank):
    """Fail in a group, and look for failures of others in the next one."""
    looks = threading.Semaphore(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failures, "LOOK_SECONDS", 0.05)
        with pytest.raises(DataError), process_group(torch.device("cpu")):
            barrier()
            raise DataError("a part of a suite")
        real = failures._Watch.look_for_frozen
        patch.setattr(failures, "GRACE_SECONDS", 0.2)
        patch.setattr(failures._Watch, "look_for_frozen", lambda self: (real(self), looks.release()))
        with process_group(torch.device("cpu")):
            barrier()
            looked = [looks.acquire(timeout=HANGING) for _ in range(3)]
            barrier()
    return looked


def test_a_part_of_a_suite_that_failed_does_not_end_the_next():
    """The store outlives a group, with the addresses of its processes and the reason of its failure."""
    assert two_processes.run(two_groups, join=False) == [[True] * 3] * 2


def test_a_restart_by_torchrun_does_not_see_the_failure_before_it(monkeypatch):
    """The store of torchrun outlives the processes of an attempt."""
    served, stores = distributed.HashStore(), []
    monkeypatch.setattr(collectives, "this_process", lambda: Process(0, 2))
    monkeypatch.setattr(collectives, "set_rendezvous", lambda: None)
    monkeypatch.setattr(collectives, "_store", lambda *_: served)
    monkeypatch.setattr(collectives, "ending_together", lambda process, store: contextlib.nullcontext())
    monkeypatch.setattr(distributed, "init_process_group", lambda *_, store, **__: stores.append(store))
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: None)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        monkeypatch.setattr(collectives, "_GROUPS", itertools.count())  # as in a new process
        with process_group(torch.device("cpu")):
            assert not stores[-1].check(["failures/reason"])
            stores[-1].set("failures/reason", "a machine failed")
    assert len(stores) == 2
